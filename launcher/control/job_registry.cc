// The entries of runs: written, read, found; the state of a run, by its files and its lock; and how old runs
// are deleted. All of it blocks on the disk.
#include "launcher/control/job_registry.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/files.h"
#include "base/program.h"
#include "base/unique_fd.h"
#include "launcher/report/report_json.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".job";
constexpr std::chrono::milliseconds kCheckEvery{200};
constexpr std::chrono::milliseconds kEndCheckEvery{50};
constexpr int kLockTries = 10;
/// Limits of files that this program reads. A report of many failures is longer than any entry.
constexpr std::size_t kEntryBytes = 64u << 10;
constexpr std::size_t kReportBytes = 16u << 20;
/// More than the last line of a journal, whose reason is limited.
constexpr std::size_t kJournalEndBytes = 16u << 10;

}  // namespace

std::string text_of(const OrderedJson& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

namespace {

std::vector<std::string> texts_of(const OrderedJson& json, const char* key) {
  std::vector<std::string> texts;
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) return texts;
  for (const OrderedJson& text : *found)
    if (text.is_string()) texts.push_back(text.get<std::string>());
  return texts;
}

/// Returns no object if the file has none. A FIFO in its place does not block.
OrderedJson parse_file(const std::string& path, std::size_t limit, int flags = 0) {
  return OrderedJson::parse(read_start(path, limit, flags | O_NONBLOCK), nullptr, false);
}

std::optional<JobEntry> read_entry(const fs::path& file) {
  const OrderedJson json = parse_file(file.string(), kEntryBytes, O_NOFOLLOW);
  if (!json.is_object()) return {};
  JobEntry job{
      file.stem().string(),    text_of(json, "job"),     text_of(json, "directory"), text_of(json, "host"), 0,
      text_of(json, "socket"), text_of(json, "command"), text_of(json, "started"),   file.string()};
  if (const auto pid = json.find("pid"); pid != json.end() && pid->is_number_integer())
    job.pid = pid->get<std::int64_t>();
  job.arguments = texts_of(json, "arguments");
  job.cwd = text_of(json, "cwd");
  job.label = text_of(json, "label");
  job.cleaned = text_of(json, "cleaned");
  job.hosts = texts_of(json, "hosts");
  if (job.job.empty() || !job.directory.starts_with('/')) return {};
  return job;
}

/// Returns whether a process listens at a Unix socket.
bool is_listening(const std::string& path) {
  sockaddr_un address{};
  if (path.empty() || path.size() >= sizeof address.sun_path) return false;
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  const UniqueFd client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
  return errno == EAGAIN;  // so many clients that a listener is sure
}

UniqueFd open_lock(const std::string& directory) {
  return UniqueFd(::open((directory + "/run.lock").c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
}

/// Returns whether a process has the lock of a run. A disk may show no locks of other hosts.
bool is_locked(const UniqueFd& lock) {
  return lock && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

bool is_alive(const JobEntry& job) {
  const RunState::Kind kind = state_of(job).kind;
  return kind == RunState::Kind::kRunning ||
         (kind == RunState::Kind::kElsewhere && is_locked(open_lock(job.directory)));
}

/// Waits some seconds at most: the holder may be stopped, or its disk may hang.
UniqueFd lock_directory(const std::string& directory) {
  UniqueFd lock(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int tries = 0; lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (errno != EWOULDBLOCK || tries == kLockTries) return {};
    std::this_thread::sleep_for(kCheckEvery);
  }
  return lock;
}

Result<> write_entry(const std::string& directory, const JobEntry& entry) {
  std::error_code failed;
  fs::create_directories(fs::path(directory).parent_path(), failed);
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return system_error(errno, "make " + directory);
  if (const std::string why = distrust_directory(directory); !why.empty())
    return Error{ErrorCode::kUsage, directory + ' ' + why};
  const std::string path = directory + '/' + entry.name + std::string(kSuffix);
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return system_error(errno, path);
  OrderedJson json{{"job", entry.job},        {"directory", entry.directory}, {"host", entry.host},
                   {"pid", entry.pid},        {"socket", entry.socket},       {"command", entry.command},
                   {"started", entry.started}};
  // An entry that is too long for its readers is worse than one without the command's words.
  const std::string brief = json_line(json, 1);
  json["cwd"] = entry.cwd;
  json["label"] = entry.label;
  json["arguments"] = entry.arguments;
  json["hosts"] = entry.hosts;
  const std::string whole = json_line(json, 1);
  auto written = write_bytes(file.get(), whole.size() <= kEntryBytes ? whole : brief, path);
  if (!written) ::unlink(path.c_str());
  return written;
}

std::optional<RunState> report_end(const std::string& directory) {
  const OrderedJson report = read_report(directory);
  if (!report.contains("exit_code") || !report["exit_code"].is_number_integer()) return {};
  return RunState{RunState::Kind::kEnded, report["exit_code"].get<int>(), text_of(report, "why")};
}

/// Returns the last bytes of a journal.
std::string end_of_journal(const std::string& directory) {
  const std::string path = directory + "/events.jsonl";
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  const off_t size = file ? ::lseek(file.get(), 0, SEEK_END) : 0;
  std::string text(kJournalEndBytes, '\0');
  const ssize_t count = ::pread(file.get(), text.data(), text.size(),
                                std::max<off_t>(0, size - static_cast<off_t>(text.size())));
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, count)));
  return text;
}

/// Returns the end of the job that its journal has. A full disk may have room for this line and none for the
/// report.
std::optional<RunState> journal_end(const std::string& directory) {
  std::string text = end_of_journal(directory);
  if (!text.ends_with('\n')) return {};  // its last line is incomplete
  text.pop_back();
  const OrderedJson line = OrderedJson::parse(text.substr(text.rfind('\n') + 1), nullptr, false);
  if (!line.is_object() || text_of(line, "event") != "job_ended") return {};
  const auto code = line.find("exit_code");
  if (code == line.end() || !code->is_number_integer()) return {};
  return RunState{RunState::Kind::kEnded, code->get<int>(), text_of(line, "reason")};
}

}  // namespace

OrderedJson last_sample(const std::string& directory) {
  const std::string text = end_of_journal(directory);
  OrderedJson sample;
  std::size_t end = text.rfind('\n');  // what follows was cut, as the begin may be
  while (end != std::string::npos && end > 0 && !sample.is_object()) {
    const std::size_t begin = text.rfind('\n', end - 1);
    if (begin == std::string::npos) break;
    OrderedJson line = OrderedJson::parse(text.substr(begin + 1, end - begin - 1), nullptr, false);
    if (line.is_object() && text_of(line, "event") == "sample") sample = std::move(line);
    end = begin;
  }
  return sample;
}

Result<> register_job(const JobRegistration& where, const JobEntry& entry) {
  Result<> written = Error{ErrorCode::kUsage, "no directory for the list of jobs"};
  for (const std::string& directory : where.directories) {
    written = write_entry(directory, entry);
    if (written) break;
  }
  return written;
}

Result<> mark_cleaned(const JobEntry& job, const std::string& time) {
  OrderedJson json = parse_file(job.file, kEntryBytes, O_NOFOLLOW);
  if (!json.is_object()) return Error{ErrorCode::kUsage, job.file + " is no entry of a job"};
  json["cleaned"] = time;
  const std::string fresh = job.file + ".new";  // without the suffix of an entry
  ::unlink(fresh.c_str());
  const UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return system_error(errno, fresh);
  auto written = write_bytes(file.get(), json_line(json, 1), fresh);
  if (written && ::rename(fresh.c_str(), job.file.c_str()) != 0) written = system_error(errno, job.file);
  if (!written) ::unlink(fresh.c_str());
  return written;
}

Result<UniqueFd> claim_job_id(const JobRegistration& where, const std::string& job, const std::string& advice,
                              const std::string& own_directory) {
  UniqueFd lock;
  for (const std::string& directory : where.directories) {
    if (!distrust_directory(directory).empty()) continue;
    // One lock suffices: all starts take that of the first directory that is usable.
    if (!lock) lock = lock_directory(directory);
    for (const fs::path& file : list_directory(directory)) {
      const std::string name = file.stem().string();
      if (file.extension() != kSuffix || (name != job && !name.starts_with(job + '.'))) continue;
      const auto other = read_entry(file);
      // The entry of an earlier run whose directory was deleted names the directory of this one.
      if (!other || other->job != job || other->directory == own_directory || !is_alive(*other)) continue;
      return Error{
          ErrorCode::kUsage,
          "a job with the id " + job + " runs already (pid " + std::to_string(other->pid) + " on " +
              other->host + "); " +
              (advice.empty() ? "choose another --job-id, or end that job first: ddplaunch stop " + job
                              : advice)};
    }
  }
  return lock;
}

std::vector<JobEntry> read_jobs(const std::vector<std::string>& directories) {
  std::vector<JobEntry> jobs;
  for (const std::string& directory : directories) {
    if (!distrust_directory(directory).empty()) continue;
    for (const fs::path& file : list_directory(directory)) {
      if (file.extension() != kSuffix) continue;
      if (auto job = read_entry(file)) jobs.push_back(std::move(*job));
    }
  }
  std::ranges::sort(jobs, {}, [](const JobEntry& job) { return std::pair(job.started, job.name); });
  return jobs;
}

namespace {

/// "20261129-094344-f1b478": no person has chosen it.
bool is_generated(std::string_view id) {
  constexpr std::string_view kForm = "00000000-000000-xxxxxx";
  return id.size() == kForm.size() && std::ranges::equal(id, kForm, [](char c, char form) {
           return form == '-' ? c == '-' : (c >= '0' && c <= '9') || (form == 'x' && c >= 'a' && c <= 'f');
         });
}

}  // namespace

Result<JobEntry> find_job(const std::vector<JobEntry>& jobs, std::string_view id, bool whole_names) {
  if (jobs.empty()) return Error{ErrorCode::kUsage, "there is no job of yours on this machine"};
  std::vector<const JobEntry*> found;
  std::vector<const JobEntry*> exact;
  for (const JobEntry& job : jobs) {
    if (job.job == id || job.name == id) exact.push_back(&job);
    if (job.job.starts_with(id) || job.name.starts_with(id)) found.push_back(&job);
  }
  if (!exact.empty())
    found = std::move(exact);
  else if (whole_names && !id.empty() && !found.empty()) {
    const std::string example = found.back()->job;
    std::erase_if(found, [](const JobEntry* job) { return !is_generated(job->job); });
    if (found.empty())
      return Error{ErrorCode::kUsage, "no job is called " + std::string(id) +
                                          "; here a name must be complete, such as " + example};
  }
  if (found.empty())
    return Error{ErrorCode::kUsage,
                 "no job begins with " + std::string(id) + "; ddplaunch ps --all lists all"};
  std::vector<const JobEntry*> running;
  for (const JobEntry* job : found)
    if (state_of(*job).kind == RunState::Kind::kRunning) running.push_back(job);
  // Whoever names a job by a part of its id usually means the one that runs.
  if (running.size() == 1) return *running.front();
  const bool choice = !running.empty();
  if (choice) found = std::move(running);
  std::set<std::string> ids;
  for (const JobEntry* job : found)
    ids.insert(job->job);
  if (!choice && (id.empty() || ids.size() == 1)) return *found.back();
  if (choice && ids.size() < found.size()) {  // one id runs twice
    ids.clear();
    for (const JobEntry* job : found)
      ids.insert(job->name);
  }
  std::string names;
  for (const std::string& name : ids)
    names += (names.empty() ? "" : ", ") + name;
  if (id.empty()) return Error{ErrorCode::kUsage, "several jobs run; name one of them: " + names};
  return Error{
      ErrorCode::kUsage,
      std::string(id) + (choice ? " names several jobs that run: " : " begins several jobs: ") + names};
}

OrderedJson read_report(const std::string& directory) {
  OrderedJson report = parse_file(directory + "/report.json", kReportBytes);
  return report.is_object() ? report : OrderedJson::object();
}

std::optional<RunState> recorded_end(const std::string& directory) {
  auto end = report_end(directory);
  return end ? end : journal_end(directory);
}

RunState state_of(const JobEntry& job) {
  using Kind = RunState::Kind;
  // The report first: it holds for every host, whoever reads it. The journal has the end a moment before the
  // report, so for a job of this host it counts only when nobody holds the lock any more.
  if (auto end = report_end(job.directory)) return *end;
  std::error_code ignored;
  if (job.host != host_name()) return journal_end(job.directory).value_or(RunState{Kind::kElsewhere});
  const UniqueFd lock = open_lock(job.directory);
  // The kernel releases the lock with the process, so it needs no pid, which may be in use again.
  if (is_locked(lock)) return {Kind::kRunning};
  if (!lock && is_listening(job.socket)) return {Kind::kRunning};  // somebody has deleted its directory
  if (!fs::is_directory(job.directory, ignored)) return {Kind::kDeleted};
  return journal_end(job.directory).value_or(RunState{Kind::kCrashed});
}

const char* state_name(RunState::Kind kind) {
  switch (kind) {
    case RunState::Kind::kRunning: return "running";
    case RunState::Kind::kEnded: return "ended";
    case RunState::Kind::kCrashed: return "crashed";
    case RunState::Kind::kElsewhere: return "elsewhere";
    case RunState::Kind::kDeleted: return "deleted";
  }
  return "";
}

Result<> wait_for_end(const JobEntry& job) {
  const UniqueFd lock = open_lock(job.directory);
  if (!lock && errno == ENOENT) {  // somebody has deleted its directory
    while (is_listening(job.socket))
      std::this_thread::sleep_for(kCheckEvery);
    return {};
  }
  if (!lock) return system_error(errno, job.directory + "/run.lock");
  // Its ddplaunch may live on: a hook of the end runs, or its output has no reader.
  for (; !report_end(job.directory); std::this_thread::sleep_for(kEndCheckEvery)) {
    if (::flock(lock.get(), LOCK_SH | LOCK_NB) == 0) break;
    if (errno != EWOULDBLOCK && errno != EINTR)
      return system_error(errno, "lock " + job.directory + "/run.lock");
  }
  return {};
}

void let_end(const JobEntry& job, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  do {
    std::this_thread::sleep_for(kEndCheckEvery);
  } while (state_of(job).kind == RunState::Kind::kRunning && !is_listening(job.socket) &&
           std::chrono::steady_clock::now() < until);
}

namespace {

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

/// Returns when a job last wrote a file in its directory.
Time last_written(const fs::path& directory) {
  return std::max({time_of(directory / "run.lock"), time_of(directory / "report.json"),
                   time_of(directory / "events.jsonl"), time_of(directory / "ddplaunch.log")});
}

std::uintmax_t size_of(const fs::path& directory) {
  std::uintmax_t size = 0;
  for (const fs::path& path : list_directory(directory)) {
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0) continue;
    if (S_ISDIR(found.st_mode))
      size += size_of(path);
    else
      // st_blocks counts units of 512 bytes whatever the file system's block size (stat(2)). Sparse files and
      // reserved blocks count as what they occupy.
      size += static_cast<std::uintmax_t>(found.st_blocks) * 512;
  }
  return size;
}

/// Returns all jobs of the directory, the newest first.
std::vector<KeptJob> jobs_in(const std::string& jobs_directory) {
  std::map<std::string, KeptJob> jobs;
  for (JobEntry& entry : read_jobs({jobs_directory})) {
    KeptJob& job = jobs[entry.name];
    job.ended = std::max(time_of(entry.file), last_written(entry.directory));
    job.entry = std::move(entry);
  }
  std::error_code ignored;
  for (const fs::path& path : list_directory(jobs_directory)) {
    // A directory without the lock file is no job's.
    if (!fs::is_directory(fs::symlink_status(path, ignored)) || time_of(path / "run.lock") == Time(0))
      continue;
    KeptJob& job = jobs[path.filename().string()];
    job.directory = path.string();
    job.ended = std::max(job.ended, last_written(path));
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
    // Under the lock, so that no other start takes the directory meanwhile.
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
  // O_EXCL: of two jobs that start at once, one looks.
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
    // Most starts end here, after the names of one directory.
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
