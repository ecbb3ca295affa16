#include "apps/ddplaunch/operate/job_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/files.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/control/control_socket.h"
#include "launcher/control/job_registry.h"
#include "launcher/keeper/process_table.h"

namespace ddp {
namespace {

/// The bytes of short_attempts.txt that are read at a time. The files of an attempt have 64 KiB at most.
constexpr std::size_t kPartBytes = 4u << 20;
constexpr std::size_t kTimesBytes = 32u << 20;
constexpr std::size_t kOnePart = 256u << 10;

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

UniqueFd open_job_file(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
}

void visit_new_lines(int fd, std::string& rest, const std::function<void(std::string_view line)>& visit,
                     std::size_t most, std::size_t longest) {
  std::string part(kOnePart, '\0');
  for (std::size_t all = 0; all < most;) {
    const ssize_t count = ::read(fd, part.data(), part.size());
    if (count <= 0) return;
    all += static_cast<std::size_t>(count);
    rest.append(part, 0, static_cast<std::size_t>(count));
    std::size_t at = 0;
    const std::size_t searched = rest.size() - static_cast<std::size_t>(count);
    for (std::size_t end = searched; (end = rest.find('\n', end)) != std::string::npos; at = ++end)
      visit(std::string_view(rest).substr(at, end - at));
    rest.erase(0, at);
    if (rest.size() > longest) rest.clear();
  }
}

std::vector<ShortLog> read_short_attempts(const std::string& directory, std::uint64_t& read) {
  std::vector<ShortLog> logs;
  const UniqueFd fd = open_job_file(directory + "/short_attempts.txt");
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
constexpr std::size_t kJournalBytes = 32u << 20;

}  // namespace

JournalTail::JournalTail(const std::string& directory, bool from_begin)
    : path_(directory + "/events.jsonl"), fd_(open_job_file(path_)) {
  if (fd_ && !from_begin) ::lseek(fd_.get(), 0, SEEK_END);
}

bool JournalTail::was_replaced() const {
  struct stat ours {};
  struct stat named {};
  return ::fstat(fd_.get(), &ours) == 0 && ::stat(path_.c_str(), &named) == 0 && ours.st_ino != named.st_ino;
}

void JournalTail::read_rest(std::vector<std::string>& lines) {
  const auto take = [&lines](std::string_view line) { lines.emplace_back(line); };
  visit_new_lines(fd_.get(), rest_, take, std::string::npos, kLongEvent);
}

std::vector<std::string> JournalTail::new_lines() {
  std::vector<std::string> lines;
  if (fd_) {
    const bool replaced = was_replaced();  // first, so that the old one is read to its end
    read_rest(lines);
    if (!replaced) return lines;
    rest_.clear();
  }
  fd_ = open_job_file(path_);
  if (fd_) read_rest(lines);
  return lines;
}

void visit_events(const std::string& directory,
                  const std::function<void(const OrderedJson& event, std::string_view line)>& visit) {
  for (const char* file : {"/events.jsonl.1", "/events.jsonl"}) {
    std::istringstream lines(read_start(directory + file, kJournalBytes, O_NOFOLLOW | O_NONBLOCK));
    for (std::string line; std::getline(lines, line);) {
      const OrderedJson event = OrderedJson::parse(line, nullptr, false);  // a full disk cuts lines
      if (event.is_object() && event.contains("event")) visit(event, line);
    }
  }
}

std::optional<std::uint32_t> number_in(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) return {};
  return found->get<std::uint32_t>();
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

std::string step_time_text(double seconds) {
  return seconds < 0.1 ? format_text("%.1f ms/step", 1000 * seconds) : format_text("%.2f s/step", seconds);
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

namespace {

using OrderedJson = nlohmann::ordered_json;
using std::chrono::milliseconds;

/// Of what exists at the start, all files together.
constexpr std::size_t kFirstBytes = 4u << 20;
constexpr std::size_t kLeastStreamBytes = 4u << 10;
constexpr std::size_t kMostTimedBytes = 16u << 20;
/// A stream that is written faster than this continues with its last bytes.
constexpr std::uint64_t kMostBehind = 1u << 20;
/// The time of a line that is read while the job runs: read() is called once a second.
constexpr milliseconds kPolledMargin{1'000};
/// Bars of more ranks than this say the same.
constexpr std::size_t kMostOpen = 32;
/// Calls of read() after which a bar that does not move is a line.
constexpr int kQuietReads = 2;

/// Estimates when the byte at `offset` was written. Between two known times the bytes are taken as written
/// evenly, since lines of many ranks must be put into one order.
std::optional<milliseconds> time_at(const FileTimes& times, std::uint64_t offset) {
  const auto next = times.upper_bound(offset);
  if (next == times.begin()) return {};
  const auto before = std::prev(next);
  if (next == times.end()) return before->second;
  const milliseconds span = std::clamp(next->second - before->second, milliseconds(0), kFileTimeMargin);
  const double part =
      static_cast<double>(offset - before->first) / static_cast<double>(next->first - before->first);
  return before->second + milliseconds(static_cast<std::int64_t>(part * static_cast<double>(span.count())));
}

/// Reads bytes of lines.jsonl that are not UTF-8, which it has as \udcHH, as U+FFFD.
std::string without_lone_surrogates(std::string line) {
  for (std::size_t at = line.find("\\udc"); at != std::string::npos; at = line.find("\\udc", at + 6)) {
    const bool is_pair = at >= 6 && line.compare(at - 6, 3, "\\ud") == 0;  // of an ordinary character
    if (!is_pair && at + 6 <= line.size()) line.replace(at, 6, "\\ufffd");
  }
  return line;
}

std::uint64_t new_id() {
  static std::uint64_t last = 0;
  return ++last;
}

}  // namespace

OutputTail::OutputTail(std::string job_directory, std::uint32_t attempt, std::optional<std::uint32_t> rank)
    : job_directory_(std::move(job_directory)),
      directory_(job_directory_ + "/attempt_" + std::to_string(attempt)),
      attempt_(attempt),
      rank_(rank),
      id_(new_id()) {}

void OutputTail::read() {
  if (!read_any_) timed_ = open_job_file(directory_ + "/lines.jsonl");
  if (timed_) {
    read_timed_lines();
  } else {
    std::map<StreamKey, std::map<std::uint32_t, std::string>> found;  // parts of each stream
    for (const auto& path : list_directory(directory_)) {
      std::string name = path.filename().string();
      const auto key = key_of(attempt_, name);
      if (key && (!rank_ || key->rank == *rank_))
        found[{key->rank, key->stream == "stderr"}][key->part] = std::move(name);
    }
    const std::size_t budget =
        std::clamp(kFirstBytes / std::max<std::size_t>(found.size(), 1), kLeastStreamBytes, kStreamBytes);
    const auto times = read_any_ ? std::map<std::string, FileTimes>() : file_times(directory_);
    for (const auto& [key, parts] : found) {
      const auto [stream, is_new] = streams_.try_emplace(key);
      if (is_new) stream->second.part = read_any_ ? parts.begin()->first : parts.rbegin()->first;
      read_stream(key, stream->second, parts, budget, times);
    }
    if (found.empty() && !read_any_) read_short_attempt();
  }
  read_any_ = true;
  take_new();
}

void OutputTail::read_stream(const StreamKey& key, Stream& stream,
                             const std::map<std::uint32_t, std::string>& parts, std::size_t budget,
                             const std::map<std::string, FileTimes>& times) {
  const std::uint64_t before = stream.read;
  const std::uint32_t part_before = stream.part;
  for (auto part = parts.lower_bound(stream.part); part != parts.end(); ++part) {
    if (part->first != stream.part) stream.read = 0;
    stream.part = part->first;
    const std::string path = directory_ + '/' + part->second;
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size <= stream.read) continue;
    const UniqueFd fd = open_job_file(path);
    if (!fd) continue;
    const std::uint64_t most = read_any_ ? kMostBehind : budget;
    const bool skips = size - stream.read > most;
    if (skips) stream.read = size - most;
    FileTimes known;
    if (!read_any_) {
      if (const auto found = times.find(part->second); found != times.end()) known = found->second;
      if (const auto made = file_made(fd.get(), known)) known.emplace(0, *made);
      known.emplace(size, milliseconds(status.st_mtim.tv_sec * 1000 + status.st_mtim.tv_nsec / 1'000'000));
    }
    std::string text(size - stream.read, '\0');
    const ssize_t count = ::pread(fd.get(), text.data(), text.size(), static_cast<off_t>(stream.read));
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    std::size_t at =
        skips ? text.find('\n') + 1 : 0;  // without an end of a line, which is npos + 1, all is one line
    milliseconds last{0};  // the clocks of the file system and of times.txt may differ; the order must stay
    while (at < text.size()) {
      const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
      Line line{unix_now(), kPolledMargin, key.first, key.second, ""};
      if (!read_any_) {
        line.time = time_at(known, stream.read + at);
        if (line.time) line.time = last = std::max(last, *line.time);
        line.margin = kFileTimeMargin;
      }
      add_bytes(key, stream, std::string_view(text).substr(at, end - at), std::move(line));
      at = end;
    }
    stream.read += text.size();
  }
  stream.quiet = before == stream.read && part_before == stream.part ? stream.quiet + 1 : 0;
  if (stream.quiet == 0 || stream.lines.held() == 0) return;
  std::string lines;
  stream.lines.finish_idle(stream.quiet >= kQuietReads, lines);
  add_lines(key, lines, {unix_now(), kPolledMargin, key.first, key.second, ""});
}

void OutputTail::read_short_attempt() {
  std::uint64_t read = 0;
  for (const ShortLog& log : read_short_attempts(job_directory_, read)) {
    if (log.key.attempt != attempt_ || (rank_ && log.key.rank != *rank_)) continue;
    const StreamKey key{log.key.rank, log.key.stream == "stderr"};
    add_bytes(key, streams_[key], log.text, {std::nullopt, milliseconds(0), key.first, key.second, ""});
  }
}

void OutputTail::read_timed_lines() {
  if (!read_any_) {
    const off_t end = ::lseek(timed_.get(), 0, SEEK_END);
    const auto most = static_cast<off_t>(rank_ ? kMostTimedBytes : kFirstBytes);
    if (::lseek(timed_.get(), std::max<off_t>(0, end - most), SEEK_SET) > 0) timed_rest_ = "cut";
  }
  const std::string of_rank = rank_ ? "\"rank\":" + std::to_string(*rank_) + ',' : "";
  const auto take = [&](std::string_view text) {
    if (text.find(of_rank) == std::string_view::npos) return;
    const OrderedJson json = OrderedJson::parse(without_lone_surrogates(std::string(text)), nullptr, false);
    const auto rank = number_in(json, "rank");
    if (!rank || (rank_ && *rank != *rank_)) return;
    new_.push_back({parse_moment(launcher::text_of(json, "time"), milliseconds(0)), milliseconds(0), *rank,
                    launcher::text_of(json, "stream") == "stderr", launcher::text_of(json, "line")});
    // Only the newest are kept anyway.
    if (new_.size() > 2 * kMostLines) new_.erase(new_.begin(), new_.end() - kMostLines);
  };
  visit_new_lines(timed_.get(), timed_rest_, take, 2 * kMostTimedBytes);
}

void OutputTail::add_bytes(const StreamKey& key, Stream& stream, std::string_view bytes, Line line) {
  std::string lines;
  stream.lines.add(bytes, lines);
  add_lines(key, lines, line);
}

void OutputTail::add_lines(const StreamKey& key, std::string_view lines, const Line& like) {
  for (const std::string_view line : split_lines(lines))
    new_.push_back({like.time, like.margin, key.first, key.second, std::string(line)});
}

void OutputTail::take_new() {
  // Stable: equal times must not change the order of a stream.
  std::stable_sort(new_.begin(), new_.end(), [](const Line& a, const Line& b) {
    return a.time.value_or(milliseconds(0)) < b.time.value_or(milliseconds(0));
  });
  for (Line& line : new_) {
    bytes_ += line.text.size();
    lines_.push_back(std::move(line));
  }
  new_.clear();
  while (lines_.size() > kMostLines || (bytes_ > kMostBytes && lines_.size() > 1)) {
    bytes_ -= lines_.front().text.size();
    lines_.pop_front();
    ++dropped_;
  }
}

OrderedJson OutputTail::line_json(const Line& line) const {
  return {attempt_,
          line.time ? OrderedJson(line.time->count()) : OrderedJson(),
          line.margin.count(),
          line.rank,
          line.is_stderr ? 2 : 1,
          line.text};
}

OrderedJson OutputTail::answer(std::string_view after) const {
  const std::string mark = std::to_string(id_) + '.';
  std::optional<std::uint64_t> next;
  if (after.starts_with(mark)) next = parse_number<std::uint64_t>(after.substr(mark.size()));
  const std::uint64_t end = dropped_ + lines_.size();
  const bool restart = !next || *next < dropped_ || *next > end;
  OrderedJson json{{"next", mark + std::to_string(end)},
                   {"restart", restart},
                   {"lines", OrderedJson::array()},
                   {"open", OrderedJson::array()}};
  for (std::uint64_t i = restart ? dropped_ : *next; i < end; ++i)
    json["lines"].push_back(line_json(lines_[i - dropped_]));
  for (const auto& [key, stream] : streams_) {
    std::string rows;
    if (json["open"].size() >= kMostOpen || stream.lines.held() == 0) continue;
    (void)stream.lines.live(rows);  // an unfinished line is shown, too
    if (rows.empty()) continue;
    Line line{std::nullopt, milliseconds(0), key.first, key.second, std::move(rows)};
    json["open"].push_back(line_json(line));
  }
  return json;
}

}  // namespace ddp
