#include "apps/ddplaunch/operate/job_logs.h"

#include <fcntl.h>
#include <regex.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "apps/ddplaunch/operate/journal_tail.h"
#include "apps/ddplaunch/operate/log_files.h"
#include "base/child_process.h"
#include "base/files.h"
#include "base/parse_text.h"
#include "base/safe_text.h"
#include "base/unique_fd.h"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

/// A disk may be that of another machine, which announces no changes.
constexpr std::chrono::milliseconds kLookEvery{200};
constexpr std::size_t kOneRead = 256u << 10;
/// A longer line is printed in parts.
constexpr std::size_t kLongLine = 1u << 20;
constexpr std::size_t kJournalBytes = 32u << 20;

volatile sig_atomic_t interrupted = 0;

struct LogFile {
  UniqueFd fd;       ///< none: `rest` has all of it
  std::string rest;  ///< what is not printed yet: the beginning of a line
};

/// The precision of the times in times.txt, and how far the clock of a disk may be behind.
constexpr std::chrono::milliseconds kTimeMargin{10'000};
constexpr std::size_t kTimesBytes = 32u << 20;

/// Returns the size of each file of an attempt at `since`, by its name. A file that it does not have was
/// smaller than any size that is known.
std::map<std::string, std::uint64_t> sizes_at(const fs::path& attempt, std::chrono::milliseconds since) {
  std::map<std::string, std::uint64_t> sizes;
  for (const char* name : {"times.txt.1", "times.txt"}) {
    std::istringstream lines(read_start((attempt / name).string(), kTimesBytes, O_NONBLOCK));
    std::int64_t time = 0;
    std::string file;
    std::uint64_t size = 0;
    while (lines >> time >> file >> size)
      if (std::chrono::milliseconds(time) <= since) sizes[file] = size;
  }
  return sizes;
}

/// Goes to the beginning of the line that has the byte at `offset`.
void seek_line(int fd, std::uint64_t offset) {
  std::string before(std::min<std::uint64_t>(offset, kLongLine), '\0');
  const auto begin = static_cast<off_t>(offset - before.size());
  const ssize_t count = ::pread(fd, before.data(), before.size(), begin);
  before.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  const std::size_t end = before.rfind('\n');
  ::lseek(fd, begin + static_cast<off_t>(end == std::string::npos ? 0 : end + 1), SEEK_SET);
}

/// Returns the rank of each attempt that is its root cause. Before the report exists, all ranks that failed
/// before ddplaunch began to stop the workers.
std::set<std::pair<std::uint32_t, std::uint32_t>> failed_ranks(const launcher::JobEntry& job) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> failed;
  const OrderedJson report = launcher::read_report(job);
  if (report.is_object()) {
    std::vector<OrderedJson> causes = report.value("earlier_attempts", std::vector<OrderedJson>());
    causes.push_back(report.value("root_cause", OrderedJson()));
    for (const OrderedJson& cause : causes)
      if (cause.is_object() && cause["rank"].is_number() && cause["attempt"].is_number())
        failed.emplace(cause["attempt"].get<std::uint32_t>(), cause["rank"].get<std::uint32_t>());
    return failed;
  }
  std::set<std::uint32_t> stopped;
  for (const char* file : {"/events.jsonl.1", "/events.jsonl"}) {
    const std::string text = read_start(job.directory + file, kJournalBytes, O_NONBLOCK);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      const OrderedJson event =
          OrderedJson::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                             text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
      at = end + 1;
      if (!event.is_object() || !event.contains("attempt") || !event["attempt"].is_number()) continue;
      const auto attempt = event["attempt"].get<std::uint32_t>();
      const std::string name = event.value("event", "");
      if (name == "attempt_stopping") stopped.insert(attempt);
      if (name != "rank_exited" || stopped.contains(attempt)) continue;
      if (event["exit_code"] != 0 && event["rank"].is_number())
        failed.emplace(attempt, event["rank"].get<std::uint32_t>());
    }
  }
  return failed;
}

/// A POSIX regular expression. Its matching has no recursion, so a long line cannot exhaust the stack.
class LinePattern {
 public:
  LinePattern() = default;
  LinePattern(const LinePattern&) = delete;
  LinePattern& operator=(const LinePattern&) = delete;
  ~LinePattern() {
    if (set_) ::regfree(&compiled_);
  }
  Result<> set(const std::string& text) {
    const int failed = ::regcomp(&compiled_, text.c_str(), REG_EXTENDED | REG_NOSUB);
    set_ = failed == 0;
    if (set_) return {};
    char why[200];
    ::regerror(failed, &compiled_, why, sizeof why);
    return Error{ErrorCode::kUsage, "--grep " + text + ": " + why};
  }
  bool matches(std::string_view line) const {
    regmatch_t part{0, static_cast<regoff_t>(line.size())};
    return !set_ || ::regexec(&compiled_, line.data(), 0, &part, REG_STARTEND) == 0;
  }

 private:
  regex_t compiled_{};
  bool set_ = false;
};

class LogPrinter {
 public:
  LogPrinter(const OperateOptions& options, const launcher::JobEntry& job)
      : options_(options), job_(job), journal_(job.directory) {}

  Result<> print_all() {
    if (!options_.grep.empty()) {
      if (auto compiled = pattern_.set(options_.grep); !compiled) return compiled;
    }
    for (;;) {
      // The state comes first: what was written before the end is printed then.
      const bool runs = launcher::state_of(job_).kind == launcher::RunState::Kind::kRunning;
      if (auto found = find_files(); !found) return found;
      for (auto& [key, file] : files_) {
        if (const auto read = print_new(key, file); !read) return read;
      }
      if (std::fflush(stdout) != 0) return system_error(errno, "standard output");
      if (options_.attach) print_events();
      if (!options_.follow || !runs || interrupted != 0) break;
      std::this_thread::sleep_for(kLookEvery);
    }
    for (auto& [key, file] : files_)
      if (!file.rest.empty()) print_line(key, file.rest);
    if (options_.failed && failed_.empty()) {
      const bool runs = launcher::state_of(job_).kind == launcher::RunState::Kind::kRunning;
      const std::string why = runs ? " has failed so far"
                                   : " is a root cause; ddplaunch status " + job_.job + " shows how it ended";
      std::fprintf(stderr, "ddplaunch: no rank of job %s%s\n", job_.job.c_str(), why.c_str());
    }
    if (options_.rank && files_.empty() && !options_.failed)
      std::fprintf(stderr, "ddplaunch: job %s has no output of rank %u in %s\n", job_.job.c_str(),
                   *options_.rank, job_.directory.c_str());
    if (std::fflush(stdout) != 0) return system_error(errno, "standard output");
    return {};
  }

 private:
  bool selects(const LogKey& key) const {
    if (options_.rank && key.rank != *options_.rank) return false;
    return !options_.failed || failed_.contains({key.attempt, key.rank});
  }

  void print_events() {
    for (const std::string& line : journal_.new_lines()) {
      const std::string text = event_text(line);
      if (options_.json && !text.empty())
        std::printf("%s\n", line.c_str());
      else if (!text.empty())
        std::fprintf(stderr, "ddplaunch: %s\n", text.c_str());
    }
  }

  Result<> find_files() {
    if (options_.failed) failed_ = failed_ranks(job_);
    for (const fs::path& directory : list_directory(job_.directory)) {
      const std::string name = directory.filename().string();
      if (!name.starts_with("attempt_")) continue;
      const auto attempt = parse_number<std::uint32_t>(std::string_view(name).substr(8));
      if (!attempt) continue;
      const bool first = !looked_ && options_.since.has_value();
      const auto sizes =
          first ? sizes_at(directory, *options_.since) : std::map<std::string, std::uint64_t>();
      for (const fs::path& path : list_directory(directory)) {
        const auto key = key_of(*attempt, path.filename().string());
        if (!key || !selects(*key) || files_.contains(*key)) continue;
        UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
        if (!fd && errno != ENOENT) return system_error(errno, path.string());
        if (fd && !looked_ && options_.attach) ::lseek(fd.get(), 0, SEEK_END);
        if (fd && first) skip_old(fd.get(), path.filename().string(), sizes);
        if (fd) files_[*key].fd = std::move(fd);
      }
    }
    add_short_attempts();
    looked_ = true;
    return {};
  }

  /// The files of an attempt that were read before are known already.
  void add_short_attempts() {
    for (ShortLog& log : read_short_attempts(job_.directory, short_attempts_read_)) {
      if (!selects(log.key) || files_.contains(log.key)) continue;
      LogFile& file = files_[log.key];
      if (looked_ || !options_.attach) file.rest = std::move(log.text);
    }
  }

  /// Goes to the first line that may have been written after --since.
  void skip_old(int fd, const std::string& name, const std::map<std::string, std::uint64_t>& sizes) const {
    struct stat status {};
    const bool known = ::fstat(fd, &status) == 0;
    const std::chrono::seconds changed(status.st_mtim.tv_sec);
    const auto size = sizes.find(name);
    if (known && changed + kTimeMargin < *options_.since)
      ::lseek(fd, 0, SEEK_END);
    else if (size != sizes.end())
      seek_line(fd, size->second);
  }

  Result<> print_new(const LogKey& key, LogFile& file) {
    if (!file.fd) {
      print_lines(key, file);
      return {};
    }
    std::string bytes(kOneRead, '\0');
    for (;;) {
      if (interrupted != 0) return {};
      const ssize_t count = ::read(file.fd.get(), bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return system_error(errno, job_.directory);
      if (count == 0) return {};
      file.rest.append(bytes, 0, static_cast<std::size_t>(count));
      print_lines(key, file);
      if (file.rest.size() < kLongLine) continue;
      print_line(key, file.rest);
      file.rest.clear();
    }
  }

  /// Prints all lines but an incomplete last one.
  void print_lines(const LogKey& key, LogFile& file) {
    std::size_t at = 0;
    for (std::size_t end = 0; (end = file.rest.find('\n', at)) != std::string::npos; at = end + 1)
      print_line(key, std::string_view(file.rest).substr(at, end - at));
    file.rest.erase(0, at);
  }

  void print_line(const LogKey& key, std::string_view line) {
    if (!pattern_.matches(line)) return;
    if (options_.json) {
      const OrderedJson json{
          {"attempt", key.attempt}, {"rank", key.rank}, {"stream", key.stream}, {"line", line}};
      std::printf("%s\n", json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace).c_str());
      return;
    }
    std::printf("[%u] ", key.rank);
    const std::string safe = terminal_ ? replace_unsafe(std::string(line)) : std::string();
    if (terminal_) line = safe;
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fputc('\n', stdout);
  }

  const OperateOptions& options_;
  const launcher::JobEntry& job_;
  JournalTail journal_;
  bool looked_ = false;  ///< the files that exist at the start are known
  const bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
  LinePattern pattern_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> failed_;
  std::map<LogKey, LogFile> files_;
  std::uint64_t short_attempts_read_ = 0;  ///< bytes
};

}  // namespace

Result<bool> print_logs(const OperateOptions& options, const launcher::JobEntry& job) {
  std::error_code ignored;
  if (!fs::is_directory(job.directory, ignored))
    return Error{ErrorCode::kUsage, "the files of job " + job.job + " are not here: " + job.directory};
  raise_nofile();  // one descriptor for each file
  if (options.attach) {
    struct sigaction action {};  // without SA_RESTART: Ctrl-C also ends a write to a terminal that is stopped
    action.sa_handler = [](int) { interrupted = 1; };
    ::sigaction(SIGINT, &action, nullptr);
  }
  const auto printed = LogPrinter(options, job).print_all();
  if (interrupted != 0) return false;
  if (!printed) return printed.error();
  return true;
}

}  // namespace ddp
