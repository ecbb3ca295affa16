#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/job/job_spec.h"
#include "launcher/output/output_file.h"

namespace ddp::launcher {

/// A job with many restarts keeps the files of its first and its last attempts as they are.
inline constexpr std::uint32_t kFirstAttemptsKept = 3;
inline constexpr std::uint32_t kLastAttemptsKept = 20;

/// Moves the files of an attempt that has at most 64 KiB into short_attempts.txt of the job's directory, each
/// below a line "==> attempt_7/rank_00000.stderr, 512 bytes <==". Leaves an attempt with lines.jsonl or more
/// bytes as it is, and also one that cannot be moved as a whole: no byte is lost. Blocks.
void pack_short_attempt(const std::string& job_dir, std::uint32_t attempt);

/// Identifies the output to which bytes belong.
struct OutputKey {
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  int local_rank = 0;
  std::uint8_t stream = 1;  ///< 1 stdout, 2 stderr, or a constant below
  auto operator<=>(const OutputKey&) const = default;
};
/// attempt_N/lines.jsonl with the lines of all ranks; not a worker's stream.
inline constexpr std::uint8_t kJsonLines = 3;
/// attempt_N/hang_rank_00003.txt: the state of a rank when the job hung; not a worker's stream.
inline constexpr std::uint8_t kHangText = 4;
/// ddplaunch.log: actions and messages of ddplaunch in the whole job. Its key has attempt 0 and rank 0.
inline constexpr std::uint8_t kJobLog = 5;
/// events.jsonl: the changes of the job's state (docs/users/journal.md). Its key is like that of kJobLog.
inline constexpr std::uint8_t kJournal = 6;
/// hooks.log: what the commands of --on print. Its key is like that of kJobLog.
inline constexpr std::uint8_t kHooks = 8;
/// The event file of --tensorboard. Its key is like that of kJobLog.
inline constexpr std::uint8_t kTensorBoard = 9;
/// attempt_N/times.txt: when the streams had which size (JobDir::note_time). Its key has rank 0.
inline constexpr std::uint8_t kTimes = 7;

/// The job's directory on the master: raw bytes of each rank and stream, `attempt_0/rank_00003.stderr`, and
/// their copies under --log-dir (docs/users/output.md). A file is created with its first byte. If there are
/// many attempts, the short ones are packed (pack_short_attempt). Deletes only parts beyond the user's limit
/// and the oldest content of a long ddplaunch.log. If the disk accepts nothing, only the files lose bytes.
/// This is reported once, and the missing bytes are reported when there is room again. Writes block; only the
/// thread of JobWriter calls this class, except for create() and file().
class JobDir {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Creates the directories (0700) and their parents, and claims them for this run until the process ends.
  /// Uses spec.fallback_job_dir, if there is one, when this user cannot create spec.job_dir.
  /// Errors: kSystem. kUsage if another run uses or has used a directory, or if others could read or move an
  /// existing directory or a parent (base/files.h).
  static Result<JobDir> create(const JobSpec& spec);

  /// Appends `bytes`. Returns messages for the user, usually none.
  std::vector<std::string> write(const OutputKey& key, std::string_view bytes, Time now);
  /// Counts `bytes` that will never arrive and are missing at this point.
  void lose(const OutputKey& key, std::uint64_t bytes);
  /// Returns the unreported losses of the files at the end; empty: none.
  std::string finish();

  std::string file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const;
  const std::string& path() const { return path_; }
  /// Returns why the job's files are in spec.fallback_job_dir, for the user; empty: they are not.
  const std::string& note() const { return note_; }
  /// Returns why a directory could not be claimed, for the user; empty: all are.
  const std::string& warning() const { return warning_; }

 private:
  JobDir() = default;
  struct StreamFiles {
    std::vector<OutputFile> files;  ///< the file in the job's directory, and its copy
    std::optional<Time> timed;      ///< of its last line in times.txt, or of its first bytes
  };
  struct Trouble {
    bool reported = false;  ///< and its end not yet
    Time last{};            ///< when a write failed
  };
  StreamFiles& output(const OutputKey& key);
  std::vector<std::string> note_time(const OutputKey& key, Time now);
  void close_all();
  void pack_attempts();
  std::string lost_text();
  void note_gaps(const std::vector<FileGap>& gaps);

  std::string path_;
  std::vector<UniqueFd> claims_;  ///< locked files; the lock ends with the process, even with a crash
  std::string note_;
  std::string warning_;
  std::string tensorboard_;  ///< path of the event file; empty: none
  std::string log_dir_;      ///< includes the run's name; empty: no copies
  StreamChoice copied_;
  OutputFile::Limits limits_;
  std::map<OutputKey, StreamFiles> outputs_;
  std::uint32_t attempt_ = 0;                       ///< the latest; files of earlier attempts are closed
  std::uint32_t next_packed_ = kFirstAttemptsKept;  ///< attempts before it are packed, or stay
  std::size_t open_ = 0;
  std::size_t max_open_ = 0;
  bool vanished_ = false;
  Trouble trouble_;              ///< of the job's files and their copies
  Trouble tensorboard_trouble_;  ///< that directory is often on another disk
};

}  // namespace ddp::launcher
