// Deletes the files of old jobs.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "base/program.h"
#include "base/unique_fd.h"
#include "launcher/control/job_registry.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;
using Time = std::chrono::nanoseconds;  // of CLOCK_REALTIME

constexpr std::chrono::hours kMostAge{30 * 24};
constexpr std::uintmax_t kMostBytes = 16ull << 30;
constexpr std::size_t kAlwaysKept = 10;
constexpr std::chrono::seconds kPruneTime{5};
constexpr std::chrono::hours kLookEvery{1};
/// A file whose time is that of the last look.
constexpr const char* kMark = ".pruned";
/// 1/kSlack more jobs than the limit may stay, so that most starts read no old job.
constexpr std::size_t kSlack = 8;

/// A job in a directory of jobs: its entry, its files, or both.
struct KeptJob {
  std::optional<JobEntry> entry;
  std::string directory;  ///< of its files, in the directory of jobs; empty: elsewhere or gone
  Time ended{0};          ///< when it was last active
};

/// Returns the time of the last change; 0: there is no such file.
Time time_of(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return Time(0);
  return std::chrono::seconds(found.st_mtim.tv_sec) + std::chrono::nanoseconds(found.st_mtim.tv_nsec);
}

std::uintmax_t size_of(const fs::path& directory) {
  std::uintmax_t size = 0;
  for (const fs::path& path : list_directory(directory)) {
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0) continue;
    if (S_ISDIR(found.st_mode))
      size += size_of(path);
    else
      size += static_cast<std::uintmax_t>(found.st_blocks) * 512;
  }
  return size;
}

/// Returns all jobs of the directory, the newest first.
std::vector<KeptJob> jobs_in(const std::string& jobs_directory) {
  std::map<std::string, KeptJob> jobs;
  for (JobEntry& entry : read_jobs({jobs_directory})) {
    KeptJob& job = jobs[entry.name];
    job.ended =
        std::max({time_of(entry.file), time_of(entry.directory + "/report.json"),
                  time_of(entry.directory + "/events.jsonl"), time_of(entry.directory + "/ddplaunch.log")});
    job.entry = std::move(entry);
  }
  std::error_code ignored;
  for (const fs::path& path : list_directory(jobs_directory)) {
    // A directory without the lock file is no job's.
    if (!fs::is_directory(fs::symlink_status(path, ignored)) || time_of(path / "run.lock") == Time(0))
      continue;
    KeptJob& job = jobs[path.filename().string()];
    job.directory = path.string();
    job.ended = std::max({job.ended, time_of(path / "run.lock"), time_of(path / "report.json"),
                          time_of(path / "events.jsonl"), time_of(path / "ddplaunch.log")});
  }
  std::vector<KeptJob> sorted;
  for (auto& [name, job] : jobs)
    sorted.push_back(std::move(job));
  std::ranges::sort(sorted, std::greater<>(), &KeptJob::ended);
  return sorted;
}

/// A lock proves that the job has ended. Locks of another host may be invisible here, so its job counts as
/// ended only if its files say so.
bool delete_job(const KeptJob& job) {
  std::error_code ignored;
  UniqueFd lock;
  if (!job.directory.empty()) {
    const bool ended = recorded_end(job.directory).has_value();
    if (!ended && !(job.entry && job.entry->host == host_name())) return false;
    lock.reset(::open((job.directory + "/run.lock").c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (lock ? ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 : !ended) return false;
    fs::remove_all(job.directory, ignored);
  } else {
    const RunState::Kind kind = state_of(*job.entry).kind;
    if (kind == RunState::Kind::kRunning || kind == RunState::Kind::kElsewhere) return false;
  }
  if (!job.entry) return true;
  struct stat socket {};  // left by a ddplaunch that was killed
  const bool left = job.entry->host == host_name() && ::lstat(job.entry->socket.c_str(), &socket) == 0;
  if (left && S_ISSOCK(socket.st_mode)) ::unlink(job.entry->socket.c_str());
  ::unlink(job.entry->file.c_str());
  return true;
}

std::string mark_of(const std::string& jobs_directory) {
  return jobs_directory + "/" + kMark;
}

/// Returns at least the number of jobs in the directory, without a look into their files.
std::size_t count_jobs(const std::string& jobs_directory) {
  std::set<std::string> names;
  for (const fs::path& path : list_directory(jobs_directory))
    if (path.filename() != kMark) names.insert(path.extension() == ".job" ? path.stem() : path.filename());
  return names.size();
}

/// Returns whether ages and sizes of all jobs are to be found, at most once an hour: on a network disk this
/// may take seconds.
bool is_due(const std::string& directory, Time now) {
  const std::string mark = mark_of(directory);
  if (now - time_of(mark) < kLookEvery) return false;
  ::unlink(mark.c_str());
  const UniqueFd made(::open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  return static_cast<bool>(made);
}

}  // namespace

bool remove_job(const JobEntry& job) {
  const fs::path files = fs::path(job.file).parent_path() / job.name;
  std::error_code ignored;
  // Without the lock file and an end it is deleted in part, or no job's; state_of decides.
  const bool is_jobs = fs::exists(files / "run.lock", ignored) || recorded_end(files.string());
  const bool beside = job.directory == files && is_jobs;
  return delete_job({job, beside ? files.string() : "", Time(0)});
}

void prune_jobs(const JobRegistration& kept) {
  if (kept.keep == 0) return;
  const auto deadline = std::chrono::steady_clock::now() + kPruneTime;
  const Time now = read_clock(CLOCK_REALTIME);
  for (const std::string& directory : kept.directories) {
    if (!distrust_directory(directory).empty()) continue;
    const bool due = is_due(directory, now);
    if (!due && count_jobs(directory) <= kept.keep + kept.keep / kSlack) continue;
    std::size_t number = 0;
    std::uintmax_t bytes = 0;
    for (const KeptJob& job : jobs_in(directory)) {
      if (std::chrono::steady_clock::now() > deadline) {
        ::unlink(mark_of(directory).c_str());  // the next job continues
        return;
      }
      if (due && !job.directory.empty()) bytes += size_of(job.directory);
      const bool old = now - job.ended > kMostAge || bytes > kMostBytes;
      if (++number > kept.keep || (old && number > kAlwaysKept)) delete_job(job);
    }
  }
}

}  // namespace ddp::launcher
