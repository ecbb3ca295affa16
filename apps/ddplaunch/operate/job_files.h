#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/ddplaunch/operate/operate_options.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/control/job_registry.h"

namespace ddp {

/// Place of a file of a worker's output: attempt, rank, stream ("stderr" < "stdout"), part.
struct LogKey {
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::string stream;
  std::uint32_t part = 0;
  auto operator<=>(const LogKey&) const = default;
};

/// Reads "rank_00003.stdout.1". Unset: it is no such name.
std::optional<LogKey> key_of(std::uint32_t attempt, std::string_view name);

/// A file of an attempt that was moved into short_attempts.txt (docs/users/output.md).
struct ShortLog {
  LogKey key;
  std::string text;
};

/// Returns the files that were moved there behind the byte `read`, and moves `read` behind them. Blocks.
std::vector<ShortLog> read_short_attempts(const std::string& directory, std::uint64_t& read);

/// When a file of output had a size: the bytes behind it were written then, or at most kFileTimeMargin later.
using FileTimes = std::map<std::uint64_t, std::chrono::milliseconds>;
/// The precision of the times in times.txt, and how far the clock of a disk may be behind.
inline constexpr std::chrono::milliseconds kFileTimeMargin{10'000};
/// Returns the times of each file of an attempt, by its name, from times.txt. Blocks.
std::map<std::string, FileTimes> file_times(const std::string& attempt_directory);
/// Returns when the file's first byte was written. A file system may not know; then the first times count.
std::optional<std::chrono::milliseconds> file_made(int fd, const FileTimes& times);

/// Reads the events that a job adds to its journal (docs/users/journal.md): from now on, or `from_begin` of
/// the present file. Blocks on the disk.
class JournalTail {
 public:
  explicit JournalTail(const std::string& directory, bool from_begin = false);

  /// Returns the lines since the last call, also when a full journal was replaced by a new one.
  std::vector<std::string> new_lines();

 private:
  void read_rest(std::vector<std::string>& lines);
  bool was_replaced() const;

  std::string path_;
  UniqueFd fd_;
  std::string rest_;  ///< the beginning of a line
};

/// Sends a request to the ddplaunch of a job that runs on this host (docs/users/operate.md) and returns the
/// body of its answer. An error names the job. kLinkLost: its ddplaunch is stopped (SIGSTOP), which would
/// only look like a slow answer. Blocks up to `time`.
Result<std::string> ask_running_job(const launcher::JobEntry& job, const std::string& method,
                                    const std::string& target, std::chrono::milliseconds time,
                                    const std::string& body = {});

/// Returns an event for people: "attempt 1: rank exited, gpu02, rank 5: exited 3". Empty: it is none, or a
/// sample.
std::string event_text(const std::string& line);

/// Writes to standard output at once. Returns whether that took it; the verb ends with the first error.
bool print(std::string_view text);

/// The longest pattern of --grep. regcomp takes about 200 MiB for 5,000 times "a?".
inline constexpr std::uint64_t kMostPattern = 10'000;
/// Returns about how many characters an extended regular expression has once its bounds are written out, as
/// regcomp does it: 6 for "(a){3}". Only a size up to kMostPattern is complete.
std::uint64_t written_out_size(std::string_view regex);

/// Prints the workers' output from the files of the job, each line with its rank; with --follow until the job
/// has ended. It only reads files, so a viewer that is stopped costs the job nothing. With `attach` it begins
/// with what is written from now on, prints changes of the job's state to stderr, and returns false when
/// Ctrl-C has ended it. Blocks.
Result<bool> print_logs(const OperateOptions& options, const launcher::JobEntry& job);

}  // namespace ddp
