#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "launcher/job/job_spec.h"
#include "launcher/output/output_file.h"

namespace ddp::launcher {

/// Which output a piece of bytes belongs to.
struct OutputKey {
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  int local_rank = 0;
  std::uint8_t stream = 1;  ///< 1 stdout, 2 stderr, or one of those below
  auto operator<=>(const OutputKey&) const = default;
};
/// Not a worker's stream: attempt_N/lines.jsonl, of all ranks.
inline constexpr std::uint8_t kJsonLines = 3;
/// Not a worker's stream either: attempt_N/hang_rank_00003.txt, what a rank was doing when the job hung.
inline constexpr std::uint8_t kHangText = 4;
/// Of attempt 0 and rank 0, but of the whole job: ddplaunch.log, what ddplaunch itself did and said.
inline constexpr std::uint8_t kJobLog = 5;

/// The job's directory on the master: raw bytes of each rank and stream, `attempt_0/rank_00003.stderr`, and
/// their copies under --log-dir (docs/output.md). A file appears with its first byte. Nothing is deleted but
/// parts beyond the number that the user gave, and what is old in a long ddplaunch.log. A disk that takes
/// nothing costs the files their bytes and nobody else anything: it is said once, and what is missing when
/// there is room again. Blocking writes; the thread of JobWriter only, but for create() and file().
class JobDir {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Makes the directories (0700) and their parents. Errors: kSystem; kUsage when an earlier run's output is
  /// in one, and when one was there, or is above, that others could read or move (base/trusted_path.h).
  static Result<JobDir> create(const JobSpec& spec);

  /// Appends. Returns what a person should read, nothing for the most part.
  std::vector<std::string> write(const OutputKey& key, std::string_view bytes, Time now);
  /// So many bytes come never, and are missing here.
  void lose(const OutputKey& key, std::uint64_t bytes);
  /// What the files lack at the end, if it has not been said; empty: nothing.
  std::string finish();

  std::string file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const;
  const std::string& path() const { return path_; }

 private:
  JobDir() = default;
  struct StreamFiles {
    std::vector<OutputFile> files;  ///< in the job's directory, and its copy
  };
  StreamFiles& output(const OutputKey& key);
  void close_all();
  std::string lost_text();
  void note_gaps(const std::vector<FileGap>& gaps);

  std::string path_;
  std::string log_dir_;  ///< with the job's id; empty: no copies
  StreamChoice copied_;
  OutputFile::Limits limits_;
  std::map<OutputKey, StreamFiles> outputs_;
  std::uint32_t attempt_ = 0;  ///< the latest; the files of those before are closed
  std::size_t open_ = 0;
  std::size_t max_open_ = 0;
  bool failing_ = false;  ///< said, and its end was not yet
  bool vanished_ = false;
  Time last_failure_{};
};

}  // namespace ddp::launcher
