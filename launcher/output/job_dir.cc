// Short attempts; how a directory is made, claimed and refused; and JobDir, which writes.
#include "launcher/output/job_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/job/job_spec.h"
#include "launcher/output/output_file.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = 64u << 10;

/// Returns the files of a short attempt in the order of their names; unset: it stays as it is.
std::optional<std::vector<fs::path>> short_files(const fs::path& attempt) {
  std::error_code failed;
  std::vector<fs::path> files = list_directory(attempt, failed);
  std::uintmax_t bytes = 0;
  for (const fs::path& file : files) {
    if (fs::symlink_status(file, failed).type() != fs::file_type::regular) return std::nullopt;
    if (file.filename() == "lines.jsonl") return std::nullopt;
    bytes += fs::file_size(file, failed);
  }
  if (failed || bytes > kMostBytes) return std::nullopt;
  std::sort(files.begin(), files.end());
  return files;
}

/// Appends all of `text`, or nothing.
bool append(const fs::path& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  const off_t before = file ? ::lseek(file.get(), 0, SEEK_END) : -1;
  if (before < 0) return false;
  if (::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) return true;
  (void)!::ftruncate(file.get(), before);  // the files of the attempt are still there
  return false;
}

}  // namespace

void pack_short_attempt(const std::string& job_dir, std::uint32_t attempt) {
  const std::string name = "attempt_" + std::to_string(attempt);
  const fs::path directory = fs::path(job_dir) / name;
  const auto files = short_files(directory);
  if (!files) return;
  std::string text;
  for (const fs::path& path : *files) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (!file) return;
    text += "==> " + name + '/' + path.filename().string() + ", " + std::to_string(bytes.size()) +
            " bytes <==\n" + bytes;
    if (!bytes.ends_with('\n')) text += '\n';
  }
  std::error_code ignored;
  // In this order: an attempt is deleted only after all of it is in the other file.
  if (append(fs::path(job_dir) / "short_attempts.txt", text)) fs::remove_all(directory, ignored);
}

namespace {

/// Files that may be open at once even if the nodes need nearly all descriptors.
constexpr rlim_t kFewFiles = 16;
/// The trouble is over after this time without a failure, because a nearly full disk accepts a few bytes now
/// and then.
constexpr std::chrono::seconds kSettled{2};
/// Limits of ddplaunch.log and of ddplaunch.log.1, its older half.
constexpr OutputFile::Limits kLogLimits{64u << 20, 2, true};
/// The same of events.jsonl.
constexpr OutputFile::Limits kJournalLimits{16u << 20, 2, true};
/// The same of times.txt.
constexpr OutputFile::Limits kTimesLimits{16u << 20, 2, true};
/// The precision of the times in times.txt.
constexpr std::chrono::seconds kTimeEvery{10};
/// Number of files in a message that are named; the rest are counted.
constexpr std::size_t kNamed = 4;

/// Returns the directory, or its nearest existing parent, if that is no directory; else an empty text.
std::string file_in_the_way(std::filesystem::path path) {
  std::error_code error;
  for (; !path.empty() && path != path.root_path(); path = path.parent_path()) {
    const auto found = std::filesystem::status(path, error);
    if (std::filesystem::is_directory(found)) break;
    if (std::filesystem::exists(found)) return path.string();
  }
  return "";
}

/// True if no directory can ever be created at this path, so that the user must choose another. False for a
/// lack of resources, which may pass.
bool is_directory_problem(int reason) {
  switch (reason) {
    case EACCES:
    case EINVAL:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOENT:  // below /proc
    case ENOTDIR:
    case EPERM: return true;
    default: return false;
  }
}

/// `named` is the path that the user gave: `path` itself or its parent.
Result<> make_directory(const std::string& path, const std::filesystem::path& named, const std::string& what,
                        const std::string& advice) {
  std::error_code error;
  const std::filesystem::path directory(path);
  const auto refused = [&](const std::string& why) {
    return Error{ErrorCode::kUsage, one_line(what + ' ' + path + why) + "; choose another with " + advice};
  };
  if (const std::string file = file_in_the_way(directory); !file.empty()) {
    Error failure = refused(": " + file + " is not a directory");
    failure.sys = ENOTDIR;
    return failure;
  }
  for (const auto& parent : {directory.parent_path(), named.parent_path()}) {
    // Before anything is created: in a directory that others may write they could put a link in the way.
    if (const std::string why = distrust_parent(parent); !why.empty()) return refused(": " + why);
  }
  if (directory.has_parent_path()) std::filesystem::create_directories(directory.parent_path(), error);
  // If a parent could not be created, its error is the reason.
  // 0700 from the begin: the files have the workers' output, and a later chmod would leave a moment.
  int reason = error ? error.value() : ::mkdir(path.c_str(), 0700) == 0 ? 0 : errno;
  if (reason == EEXIST) {
    if (const std::string why = distrust_directory(path); !why.empty()) return refused(' ' + why);
    if (std::filesystem::is_directory(directory, error)) reason = 0;
  }
  if (reason != 0) {
    Error failure = system_error(reason, what + ' ' + path,
                                 is_directory_problem(reason) ? ErrorCode::kUsage : ErrorCode::kSystem);
    failure.text += "; choose another with " + advice;
    return failure;
  }
  return {};
}

/// Returns "/home is read-only", with the nearest existing directory; empty: another directory is no remedy,
/// or is not safe.
std::string unusable_text(const std::string& path, int reason) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::path(path).parent_path();
  while (there.has_relative_path() && !std::filesystem::exists(there, error))
    there = there.parent_path();
  const std::string name = one_line(there.string());
  switch (reason) {
    case EROFS: return name + " is read-only";
    case EACCES:
    case EPERM: return "no permission to write in " + name;
    case ENOENT:  // below /proc
      return "no directory can be created in " + name;
    case ENOTDIR: return name + " is not a directory";
    default: return "";
  }
}

/// Creates /tmp/ddplaunch-UID/jobs/NAME. Anybody may create files in /tmp, so the user's directory there must
/// belong to this user, also if that is root.
Result<> make_fallback(const std::string& path) {
  const auto own = std::filesystem::path(path).parent_path().parent_path();
  for (const auto& directory : {own, own / "jobs"}) {
    if (auto made = make_directory(directory, directory, "the directory for the job's files", "--job-dir");
        !made)
      return made;
  }
  return make_directory(path, path, "the job directory", "--job-dir");
}

/// "pid 4711", or "pid 4711 on gpu01" if the holder runs on another host of a network disk.
std::string holder_text(int lock) {
  char text[128] = {};
  char host[65] = {};
  long pid = 0;
  if (::pread(lock, text, sizeof text - 1, 0) <= 0 || std::sscanf(text, "%ld %64s", &pid, host) != 2)
    return "another ddplaunch";
  return "ddplaunch with pid " + std::to_string(pid) +
         (host == host_name() ? "" : std::string(" on ") + host);
}

/// Claims the directory for this run, and refuses one that another run uses or has used: their files would be
/// mixed. The claim ends with this process, however it ends. Sets `warning` if the directory cannot be
/// locked.
Result<UniqueFd> claim_directory(const std::string& path, const std::string& what, const std::string& advice,
                                 std::string& warning) {
  // The kernel releases the lock with the process, however it ends, so a stale file blocks nobody (decision
  // 0028).
  UniqueFd lock(::open((path + "/run.lock").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
    const std::string holder = std::to_string(::getpid()) + ' ' + host_name() + '\n';
    // The text only helps the message of another run. The lock holds without it.
    if (::ftruncate(lock.get(), 0) == 0) (void)!::pwrite(lock.get(), holder.data(), holder.size(), 0);
  } else if (lock && errno == EWOULDBLOCK) {
    return Error{ErrorCode::kUsage, one_line(what + ' ' + path + " is in use by " + holder_text(lock.get())) +
                                        "; wait until that run has ended, or choose another with " + advice};
  } else {
    warning = "warning: " + one_line(system_error(errno, what + ' ' + path + " cannot be locked").text) +
              "; nothing prevents a second run from using it at the same time";
  }
  std::error_code ignored;
  for (const char* name : {"attempt_0", "report.json", "ddplaunch.log"}) {
    if (std::filesystem::exists(std::filesystem::symlink_status(path + '/' + name, ignored))) {
      return Error{ErrorCode::kUsage,
                   one_line(what + ' ' + path) + " holds an earlier run; choose another with " + advice};
    }
  }
  return lock;
}

std::string trouble_text(const Error& error, bool of_tensorboard) {
  const bool full = error.sys == ENOSPC || error.sys == EDQUOT || error.sys == EFBIG;
  return std::string("warning: ") + (full ? "no space left for " : "cannot write ") +
         (of_tensorboard ? "the file of --tensorboard: " : "the job's files: ") + error.text +
         "; the job continues; its " + (of_tensorboard ? "steps and loss are" : "output is") + " not saved " +
         (of_tensorboard ? "there " : "") + "until this is fixed";
}

}  // namespace

Result<JobDir> JobDir::create(const JobSpec& spec) {
  const OutputOptions& options = spec.output;
  JobDir job;
  job.path_ = spec.job_dir;
  if (auto made = make_directory(job.path_, job.path_, "the job directory", "--job-dir"); !made) {
    const std::string why = unusable_text(job.path_, made.error().sys);
    if (spec.fallback_job_dir.empty() || why.empty()) return made.error();
    job.path_ = spec.fallback_job_dir;
    if (made = make_fallback(job.path_); !made) return within(why, made.error());
    job.note_ = why + "; the job's files are in " + job.path_;
  }
  job.claims_.push_back(DDP_TRY(claim_directory(job.path_, "the job directory", "--job-dir", job.warning_)));
  // A disk that the job's own output fills still has room for its report.
  const auto reserved = reserve_report(job.path_ + "/report.json");
  // Some file systems reserve nothing.
  const int why = reserved ? 0 : reserved.error().sys;
  if (why == ENOSPC || why == EDQUOT || why == EIO || why == EROFS) {
    job.warning_ +=
        (job.warning_.empty() ? "" : "\nddplaunch: ") +
        ("warning: no room for the report of this job in " + job.path_) + ": " +
        system_error(why, "").text.substr(2) +
        "; the job runs, but its output and its end are not saved until there is room; make room, or "
        "choose another --job-dir";
  }
  if (!options.log_dir.empty()) {
    job.log_dir_ = options.log_dir;
    const std::filesystem::path named = std::filesystem::path(job.log_dir_).parent_path();
    if (job.log_dir_ == job.path_) {
      return Error{ErrorCode::kUsage, "--log-dir " + named.string() + " and the job directory " + job.path_ +
                                          " are the same directory; choose another with --log-dir"};
    }
    DDP_TRY(make_directory(job.log_dir_, named, "the log directory", "--log-dir"));
    job.claims_.push_back(
        DDP_TRY(claim_directory(job.log_dir_, "the log directory", "--log-dir or --job-id", job.warning_)));
    job.copied_ = options.copied();
  }
  job.tensorboard_ = options.tensorboard;
  job.limits_ = {options.log_max_size, options.log_max_parts};
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t needed = descriptors_needed(spec);
  job.max_open_ = std::max(kFewFiles, limit.rlim_cur > needed ? (limit.rlim_cur - needed) / 2 : 0);
  return job;
}

std::string JobDir::file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const {
  if (stream == kJobLog) return path_ + "/ddplaunch.log";
  if (stream == kJournal) return path_ + "/events.jsonl";
  if (stream == kTensorBoard) return tensorboard_;
  if (stream == kHooks) return path_ + "/hooks.log";
  if (stream == kTimes) return path_ + format_text("/attempt_%u/times.txt", attempt);
  if (stream == kJsonLines) return path_ + format_text("/attempt_%u/lines.jsonl", attempt);
  if (stream == kHangText) return path_ + format_text("/attempt_%u/hang_rank_%05u.txt", attempt, rank);
  return path_ + format_text("/attempt_%u/rank_%05u.%s", attempt, rank, stream == 1 ? "stdout" : "stderr");
}

JobDir::StreamFiles& JobDir::output(const OutputKey& key) {
  const auto found = outputs_.find(key);
  if (found != outputs_.end()) return found->second;
  // Files of earlier attempts rarely get more bytes, so their descriptors are given back at once.
  if (key.attempt > attempt_) {
    close_all();
    attempt_ = key.attempt;
    pack_attempts();
  }
  StreamFiles& output = outputs_[key];
  output.files.emplace_back(file(key.attempt, key.rank, key.stream),
                            key.stream == kTensorBoard ? OutputFile::Limits{.whole = true}
                            : key.stream == kJobLog    ? kLogLimits
                            : key.stream == kJournal || key.stream == kHooks ? kJournalLimits
                            : key.stream == kTimes                           ? kTimesLimits
                                                                             : limits_);
  if (!log_dir_.empty() && key.stream <= 2 && copied_.has(key.local_rank, key.stream)) {
    output.files.emplace_back(log_dir_ + "/attempt_" + std::to_string(key.attempt) + '/' +
                                  std::to_string(key.rank) +
                                  (key.stream == 1 ? "/stdout.log" : "/stderr.log"),
                              limits_);
  }
  return output;
}

/// Packs the attempts between the first and the last ones, if they wrote little.
void JobDir::pack_attempts() {
  for (; limits_.part_size == 0 && next_packed_ + kLastAttemptsKept <= attempt_; ++next_packed_) {
    const auto first = outputs_.lower_bound({next_packed_, 0, 0, 0});
    const auto last = outputs_.lower_bound({next_packed_ + 1, 0, 0, 0});
    // Gaps are noted by file and offset, so a file with gaps keeps its place.
    const bool whole = std::all_of(first, last, [](const auto& output) {
      return std::none_of(output.second.files.begin(), output.second.files.end(),
                          [](const OutputFile& file) { return file.has_gaps(); });
    });
    if (!whole) continue;
    outputs_.erase(first, last);
    pack_short_attempt(path_, next_packed_);
  }
}

/// Closing all files is cheap and rare. Each is opened again for its next bytes.
void JobDir::close_all() {
  for (auto& [key, output] : outputs_) {
    for (OutputFile& file : output.files)
      file.close();
  }
  open_ = 0;
}

/// Adds "MILLISECONDS FILE SIZE" to times.txt, if the last such line of this stream is old: until that time
/// of day the file had that size.
std::vector<std::string> JobDir::note_time(const OutputKey& key, Time now) {
  if (key.stream > 2) return {};
  StreamFiles& stream = output(key);
  if (stream.timed && now - *stream.timed < kTimeEvery) return {};
  // Before the first bytes there is nothing whose time could be noted.
  if (!std::exchange(stream.timed, now)) return {};
  const OutputFile& file = stream.files.front();
  const auto wall = std::chrono::duration_cast<std::chrono::milliseconds>(read_clock(CLOCK_REALTIME));
  return write({key.attempt, 0, 0, kTimes},
               std::to_string(wall.count()) + ' ' + std::filesystem::path(file.part()).filename().string() +
                   ' ' + std::to_string(file.size()) + '\n',
               now);
}

std::vector<std::string> JobDir::write(const OutputKey& key, std::string_view bytes, Time now) {
  std::vector<std::string> words = note_time(key, now);
  bool failed_now = false;
  Trouble& trouble = key.stream == kTensorBoard ? tensorboard_trouble_ : trouble_;
  for (OutputFile& file : output(key).files) {
    if (!file.is_open() && ++open_ > max_open_) {
      close_all();
      open_ = 1;
    }
    const OutputFile::WriteOutcome outcome = file.write(bytes);
    if (!file.is_open()) --open_;
    if (outcome.vanished && !std::exchange(vanished_, true)) {
      words.push_back("warning: " + file.path() +
                      " was deleted while the job runs; its content is lost; a new file replaces it");
    }
    if (outcome.error.sys == 0) continue;
    failed_now = true;
    trouble.last = now;
    if (!std::exchange(trouble.reported, true))
      words.push_back(trouble_text(outcome.error, key.stream == kTensorBoard));
  }
  if (trouble.reported && !failed_now && now - trouble.last >= kSettled) {
    trouble.reported = false;
    const std::string lost = lost_text();
    words.push_back(
        (lost.empty() ? "" : "warning: ") +
        std::string(key.stream == kTensorBoard ? "the file of --tensorboard is" : "the job's files are") +
        " written again" + lost);
  }
  return words;
}

void JobDir::lose(const OutputKey& key, std::uint64_t bytes) {
  for (OutputFile& file : output(key).files)
    file.lose(bytes);
}

std::string JobDir::finish() {
  std::string lost = lost_text();
  if (lost.empty()) return {};
  return "warning: the job's files are incomplete" + lost;
}

/// Returns "; missing: rank_00000.stdout 512 bytes, …" and writes the list to gaps.txt. Empty: no byte is
/// missing.
std::string JobDir::lost_text() {
  std::vector<FileGap> gaps;
  std::vector<std::pair<std::string, std::uint64_t>> files;
  std::uint64_t others = 0;
  for (auto& [key, output] : outputs_) {
    for (OutputFile& file : output.files) {
      std::uint64_t missing = 0;
      for (FileGap& gap : file.take_gaps()) {
        missing += gap.bytes;
        gaps.push_back(std::move(gap));
      }
      if (files.size() >= kNamed) others += missing;
      if (missing != 0) files.emplace_back(file.path(), missing);
    }
  }
  if (files.empty()) return {};
  std::string text = "; missing:";
  for (std::size_t i = 0; i < std::min(files.size(), kNamed); ++i)
    text += (i == 0 ? " " : ", ") + counted(files[i].second, "byte") + " of " + files[i].first;
  if (files.size() > kNamed)
    text +=
        ", and " + counted(others, "byte") + " of " + std::to_string(files.size() - kNamed) + " other files";
  note_gaps(gaps);
  return text;
}

/// The note is a separate file, because the output files hold only the workers' bytes.
void JobDir::note_gaps(const std::vector<FileGap>& gaps) {
  std::string text;
  for (const FileGap& gap : gaps)
    text += gap.path + ": " + counted(gap.bytes, "byte") + " missing at offset " +
            std::to_string(gap.offset) + '\n';
  OutputFile note(path_ + "/gaps.txt", {});
  (void)note.write(text);  // the disk may lack room for this file too; the terminal shows the totals
}

}  // namespace ddp::launcher
