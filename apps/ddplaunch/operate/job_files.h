#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/ddplaunch/operate/operate_options.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/control/job_registry.h"
#include "launcher/lines/output_lines.h"

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

/// Opens a file of a job to read it, without waiting. Symbolic links are not followed.
UniqueFd open_job_file(const std::string& path);

/// Calls `visit` for each line that a file has got since the last call, without its end. `rest` is the
/// beginning of the next line; one with more than about `longest` bytes is dropped. Reads about `most` bytes
/// at most. Blocks on the disk.
void visit_new_lines(int fd, std::string& rest, const std::function<void(std::string_view line)>& visit,
                     std::size_t most = std::string::npos, std::size_t longest = std::string::npos);

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

/// Calls `visit` for each event of a job's journal with its line, those of the older file first. Blocks on
/// the disk.
void visit_events(
    const std::string& directory,
    const std::function<void(const nlohmann::ordered_json& event, std::string_view line)>& visit);

/// Returns a number of an object, such as the "rank" of an event. Unset: there is none.
std::optional<std::uint32_t> number_in(const nlohmann::ordered_json& object, const char* key);

/// Sends a request to the ddplaunch of a job that runs on this host (docs/users/operate.md) and returns the
/// body of its answer. An error names the job. kLinkLost: its ddplaunch is stopped (SIGSTOP), which would
/// only look like a slow answer. Blocks up to `time`.
Result<std::string> ask_running_job(const launcher::JobEntry& job, const std::string& method,
                                    const std::string& target, std::chrono::milliseconds time,
                                    const std::string& body = {});

/// Returns an event for people: "attempt 1: rank exited, gpu02, rank 5: exited 3". Empty: it is none, or a
/// sample.
std::string event_text(const std::string& line);

/// Returns the duration of a step: "21.3 ms/step", "1.92 s/step".
std::string step_time_text(double seconds);

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

/// The last lines of an attempt for the page: of all ranks, or of one, as a terminal would show them, in the
/// order of time. It reads the files of the job, so that it costs the job nothing. Blocks on the disk. One
/// thread.
class OutputTail {
 public:
  /// The most bytes of one stream that are read of what exists at the start.
  static constexpr std::size_t kStreamBytes = 64u << 10;
  static constexpr std::size_t kMostLines = 10'000;
  static constexpr std::size_t kMostBytes = 4u << 20;

  /// `rank` unset: of all ranks.
  OutputTail(std::string job_directory, std::uint32_t attempt, std::optional<std::uint32_t> rank);

  /// Reads what the files have got since the last call. The first call reads the last bytes of each file.
  void read();

  bool empty() const { return lines_.empty() && streams_.empty(); }
  /// Returns the lines behind `after`, the "next" of an earlier answer, as JSON: {"next", "restart": these
  /// are all lines, "lines": a list of [attempt, ms since 1970 or null, margin in ms, rank, 1 or 2 (stderr),
  /// text], "open": rows of bars that still move, as lines}. An unknown `after` is as none.
  nlohmann::ordered_json answer(std::string_view after) const;

 private:
  struct Line {
    std::optional<std::chrono::milliseconds> time;
    std::chrono::milliseconds margin{0};  ///< it was written then, or at most this much later
    std::uint32_t rank = 0;
    bool is_stderr = false;
    std::string text;
  };
  struct Stream {
    std::uint32_t part = 0;
    std::uint64_t read = 0;  ///< bytes of the part, with those that were skipped
    int quiet = 0;           ///< calls of read() without a new byte
    launcher::LineAssembler lines{std::string()};
  };
  using StreamKey = std::pair<std::uint32_t, bool>;  ///< rank, is_stderr

  nlohmann::ordered_json line_json(const Line& line) const;
  void read_stream(const StreamKey& key, Stream& stream, const std::map<std::uint32_t, std::string>& parts,
                   std::size_t budget, const std::map<std::string, FileTimes>& times);
  void read_short_attempt();
  void read_timed_lines();
  void add_bytes(const StreamKey& key, Stream& stream, std::string_view bytes, Line line);
  void add_lines(const StreamKey& key, std::string_view lines, const Line& like);
  void take_new();

  std::string job_directory_;
  std::string directory_;  ///< of the attempt
  std::uint32_t attempt_;
  std::optional<std::uint32_t> rank_;
  std::uint64_t id_;  ///< of this object, so that no other one's "next" is taken for its own
  bool read_any_ = false;
  std::map<StreamKey, Stream> streams_;
  UniqueFd timed_;          ///< lines.jsonl (--jsonl), which has all lines with their exact times
  std::string timed_rest_;  ///< the begin of its last line
  std::vector<Line> new_;   ///< of this call of read()
  std::deque<Line> lines_;
  std::size_t bytes_ = 0;      ///< of lines_
  std::uint64_t dropped_ = 0;  ///< older lines that are not in lines_
};

}  // namespace ddp
