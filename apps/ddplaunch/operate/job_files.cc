#include "apps/ddplaunch/operate/job_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/control/control_socket.h"
#include "launcher/keeper/process_table.h"

namespace ddp {
namespace {

/// The bytes of short_attempts.txt that are read at a time. The files of an attempt have 64 KiB at most.
constexpr std::size_t kPartBytes = 4u << 20;
constexpr std::size_t kTimesBytes = 32u << 20;

/// Reads "==> attempt_7/rank_00000.stderr, 512 bytes <==". `size`: the number in it.
std::optional<LogKey> key_of_head(std::string_view line, std::size_t& size) {
  constexpr std::string_view kBegin = "==> attempt_";
  constexpr std::string_view kEnd = " bytes <==";
  if (!line.starts_with(kBegin) || !line.ends_with(kEnd)) return {};
  line.remove_prefix(kBegin.size());
  line.remove_suffix(kEnd.size());
  const std::size_t slash = line.find('/');
  const std::size_t comma = line.rfind(", ");
  if (slash == std::string_view::npos || comma == std::string_view::npos || comma < slash) return {};
  const auto attempt = parse_number<std::uint32_t>(line.substr(0, slash));
  const auto bytes = parse_number<std::size_t>(line.substr(comma + 2));
  if (!attempt || !bytes) return {};
  size = *bytes;
  return key_of(*attempt, line.substr(slash + 1, comma - slash - 1));
}

}  // namespace

std::optional<LogKey> key_of(std::uint32_t attempt, std::string_view name) {
  if (!name.starts_with("rank_")) return {};
  name.remove_prefix(5);
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return {};
  const auto rank = parse_number<std::uint32_t>(name.substr(0, dot));
  name.remove_prefix(dot + 1);
  const std::size_t end = std::min(name.find('.'), name.size());
  LogKey key{attempt, rank.value_or(0), std::string(name.substr(0, end)), 0};
  if (!rank || (key.stream != "stdout" && key.stream != "stderr")) return {};
  if (end < name.size()) {
    const auto part = parse_number<std::uint32_t>(name.substr(end + 1));
    if (!part) return {};
    key.part = *part;
  }
  return key;
}

std::vector<ShortLog> read_short_attempts(const std::string& directory, std::uint64_t& read) {
  std::vector<ShortLog> logs;
  const UniqueFd fd(
      ::open((directory + "/short_attempts.txt").c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return logs;
  std::string part(kPartBytes, '\0');
  for (;;) {
    const ssize_t count = ::pread(fd.get(), part.data(), part.size(), static_cast<off_t>(read));
    const std::string_view text(part.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    std::size_t at = 0;
    for (;;) {
      const std::size_t end = text.find('\n', at);
      if (end == std::string_view::npos) break;
      std::size_t size = 0;
      const auto key = key_of_head(text.substr(at, end - at), size);
      if (size > text.size() - end - 1) break;  // not all of it is there
      if (key) logs.push_back({*key, std::string(text.substr(end + 1, size))});
      at = end + 1 + size;
    }
    if (at == 0) return logs;
    read += at;
  }
}

using std::chrono::milliseconds;

std::map<std::string, FileTimes> file_times(const std::string& attempt_directory) {
  std::map<std::string, FileTimes> times;
  for (const char* name : {"/times.txt.1", "/times.txt"}) {
    std::istringstream lines(read_start(attempt_directory + name, kTimesBytes, O_NONBLOCK));
    std::int64_t time = 0;
    std::string file;
    std::uint64_t size = 0;
    while (lines >> time >> file >> size)
      times[file][size] = milliseconds(time);
  }
  return times;
}

std::optional<milliseconds> file_made(int fd, const FileTimes& times) {
  struct statx found {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_BTIME | STATX_MTIME, &found) != 0) return {};
  const auto time_of = [](const statx_timestamp& time) {
    return milliseconds(time.tv_sec * 1000 + time.tv_nsec / 1'000'000);
  };
  if ((found.stx_mask & STATX_BTIME) != 0) return time_of(found.stx_btime);
  return times.empty() ? time_of(found.stx_mtime) : times.begin()->second;
}

namespace {

using OrderedJson = nlohmann::ordered_json;

/// No line of a journal is longer, since texts are cut.
constexpr std::size_t kLongEvent = 1u << 20;

UniqueFd open_journal(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
}

}  // namespace

JournalTail::JournalTail(const std::string& directory, bool from_begin)
    : path_(directory + "/events.jsonl"), fd_(open_journal(path_)) {
  if (fd_ && !from_begin) ::lseek(fd_.get(), 0, SEEK_END);
}

bool JournalTail::was_replaced() const {
  struct stat ours {};
  struct stat named {};
  return ::fstat(fd_.get(), &ours) == 0 && ::stat(path_.c_str(), &named) == 0 && ours.st_ino != named.st_ino;
}

void JournalTail::read_rest(std::vector<std::string>& lines) {
  char part[16384];
  for (;;) {
    const ssize_t count = ::read(fd_.get(), part, sizeof part);
    if (count <= 0) return;
    rest_.append(part, static_cast<std::size_t>(count));
    std::size_t at = 0;
    for (std::size_t end = 0; (end = rest_.find('\n', at)) != std::string::npos; at = end + 1)
      lines.push_back(rest_.substr(at, end - at));
    rest_.erase(0, at);
    if (rest_.size() > kLongEvent) rest_.clear();
  }
}

std::vector<std::string> JournalTail::new_lines() {
  std::vector<std::string> lines;
  if (fd_) {
    const bool replaced = was_replaced();  // first, so that the old one is read to its end
    read_rest(lines);
    if (!replaced) return lines;
    rest_.clear();
  }
  fd_ = open_journal(path_);
  if (fd_) read_rest(lines);
  return lines;
}

Result<std::string> ask_running_job(const launcher::JobEntry& job, const std::string& method,
                                    const std::string& target, std::chrono::milliseconds time,
                                    const std::string& body) {
  const auto is_stopped = [&job] {
    const auto process = launcher::read_process(static_cast<pid_t>(job.pid));
    return process && process->state == 'T';
  };
  const auto stopped = [&job] {
    return Error{ErrorCode::kLinkLost, "the ddplaunch of job " + job.job +
                                           " is itself stopped (SIGSTOP), and answers nobody; kill -CONT " +
                                           std::to_string(job.pid) + " lets it go on"};
  };
  if (is_stopped()) return stopped();
  auto answer = launcher::ask_job(job.socket, method, target, time, body);
  if (answer) return answer;
  if (is_stopped()) return stopped();  // meanwhile
  return within("job " + job.job, answer.error());
}

std::string event_text(const std::string& line) {
  const OrderedJson event = OrderedJson::parse(line, nullptr, false);
  if (!event.is_object() || !event.contains("event") || !event["event"].is_string()) return "";
  const auto text = [&event](const char* key) { return launcher::text_of(event, key); };
  const auto number = [&event](const char* key) {
    const auto found = event.find(key);
    return found != event.end() && found->is_number_integer() ? std::to_string(found->get<std::int64_t>())
                                                              : "";
  };
  std::string name = text("event");
  if (name == "sample") return "";
  std::replace(name.begin(), name.end(), '_', ' ');
  const std::string attempt = number("attempt").empty() ? "" : "attempt " + number("attempt");
  std::string shown = name.starts_with("attempt ") ? attempt + name.substr(7)
                      : attempt.empty()            ? name
                                                   : attempt + ": " + name;
  if (!text("node").empty()) shown += ", " + text("node");
  if (!number("rank").empty()) shown += ", rank " + number("rank");
  if (!text("reason").empty()) shown += ": " + text("reason");
  return one_line(shown);
}

}  // namespace ddp
