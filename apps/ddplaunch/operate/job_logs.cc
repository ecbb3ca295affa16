#include "apps/ddplaunch/operate/job_files.h"

#include <regex.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/job/job_spec.h"
#include "launcher/lines/live_board.h"
#include "launcher/lines/output_lines.h"
#include "launcher/output/console.h"
#include "launcher/report/report_json.h"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;
using std::chrono::milliseconds;

/// A disk may be that of another machine, which announces no changes.
constexpr milliseconds kLookEvery{200};
constexpr std::size_t kOneRead = 256u << 10;
/// How far back the begin of a line is searched.
constexpr std::size_t kLongLine = 1u << 20;

constexpr std::size_t kOneWrite = 64u << 10;
/// Of the time at which a new line is read.
constexpr milliseconds kReadMargin{1'000};
/// How far behind the last one the time of a line is searched in lines.jsonl.
constexpr std::size_t kLinesAhead = 1000;
/// How often the state of a bar is a line, where bars cannot be drawn.
constexpr std::chrono::seconds kBarEvery{10};

volatile sig_atomic_t interrupted = 0;

/// When a line was written: then, or at most `margin` later.
struct LineTime {
  milliseconds at{0};  ///< since 1970
  milliseconds margin{0};
};

/// The lines of an attempt with their times, from its lines.jsonl.
struct TimedLines {
  UniqueFd fd;
  std::string rest;  ///< the begin of a line
  /// Time and hash of the lines of a rank and stream that were not found in its file yet.
  std::map<std::pair<std::uint32_t, std::string>, std::deque<std::pair<milliseconds, std::size_t>>> lines;
};

std::size_t hash_of(std::string_view line) {
  return std::hash<std::string_view>()(line);
}

/// Reads what the file has got since the last call. Forgets lines from before `from`.
void read_times(TimedLines& timed, milliseconds from) {
  visit_new_lines(timed.fd.get(), timed.rest, [&](std::string_view text) {
    const OrderedJson line = OrderedJson::parse(text, nullptr, false);
    const auto rank = number_in(line, "rank");
    if (!rank) return;  // the line has bytes that are not UTF-8
    const auto time = parse_moment(launcher::text_of(line, "time"), milliseconds(0));
    if (!time || *time < from) return;
    timed.lines[{*rank, launcher::text_of(line, "stream")}].emplace_back(
        *time, hash_of(launcher::without_colours(launcher::text_of(line, "line"))));
  });
}

struct LogFile {
  UniqueFd fd;             ///< none: `text` has all of it
  std::string text;        ///< what was not printed yet
  std::uint64_t read = 0;  ///< bytes of the file, with those that were skipped
  FileTimes times;
  std::optional<milliseconds> made;  ///< of the file's first byte; unset: unknown
  bool at_end = false;               ///< all that was there at the start was read
  int quiet = 0;                     ///< looks without a new byte
  launcher::LineAssembler lines{std::string()};
  launcher::Label label;
};

/// Returns when the bytes that are read next were written.
std::optional<LineTime> time_of_next(const LogFile& file) {
  if (file.at_end) return LineTime{unix_now(), kReadMargin};
  const auto next = file.times.upper_bound(file.read);
  const auto time = next == file.times.begin() ? file.made : std::prev(next)->second;
  return time ? std::optional(LineTime{*time, kFileTimeMargin}) : std::nullopt;
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

/// Goes before the last `count` lines.
void seek_tail(int fd, std::uint64_t count) {
  std::string part(kOneWrite, '\0');
  off_t at = ::lseek(fd, 0, SEEK_END);
  std::uint64_t feeds = 0;
  while (at > 0) {
    const off_t begin = std::max<off_t>(0, at - static_cast<off_t>(part.size()));
    const ssize_t read = ::pread(fd, part.data(), static_cast<std::size_t>(at - begin), begin);
    for (ssize_t i = read; i-- > 0;) {
      if (part[static_cast<std::size_t>(i)] != '\n' || feeds++ < count) continue;
      ::lseek(fd, begin + i + 1, SEEK_SET);
      return;
    }
    at = read > 0 ? begin : 0;
  }
  ::lseek(fd, 0, SEEK_SET);
}

/// Returns the rank of each attempt that is its root cause. Before the report exists, all ranks that failed
/// before ddplaunch began to stop the workers.
std::set<std::pair<std::uint32_t, std::uint32_t>> failed_ranks(const launcher::JobEntry& job) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> failed;
  OrderedJson report = launcher::read_report(job.directory);
  if (!report.empty()) {
    OrderedJson causes =
        report["earlier_attempts"].is_array() ? report["earlier_attempts"] : OrderedJson::array();
    causes.push_back(report["root_cause"]);
    for (const OrderedJson& cause : causes)
      if (const auto attempt = number_in(cause, "attempt"), rank = number_in(cause, "rank"); attempt && rank)
        failed.emplace(*attempt, *rank);
    return failed;
  }
  std::set<std::uint32_t> stopped;
  visit_events(job.directory, [&](const OrderedJson& event, std::string_view) {
    const std::string name = launcher::text_of(event, "event");
    const auto attempt = number_in(event, "attempt");
    const auto rank = number_in(event, "rank");
    if (attempt && name == "attempt_stopping") stopped.insert(*attempt);
    if (name != "rank_exited" || !attempt || !rank || stopped.contains(*attempt)) return;
    if (number_in(event, "exit_code") != 0u) failed.emplace(*attempt, *rank);
  });
  return failed;
}

/// Returns the index behind the bracket expression that begins at `at`: "[]a]", "[^[:digit:]]".
std::size_t end_of_bracket(std::string_view text, std::size_t at) {
  at += at + 1 < text.size() && text[at + 1] == '^' ? 2 : 1;
  if (at < text.size() && text[at] == ']') ++at;
  for (; at < text.size() && text[at] != ']'; ++at)
    if (text[at] == '[' && at + 1 < text.size() &&
        std::string_view(".:=").find(text[at + 1]) != std::string_view::npos)
      at = std::min(text.find(std::string{text[at + 1], ']'}, at + 2), text.size() - 2) + 1;
  return std::min(at + 1, text.size());
}

/// Returns how often a bound repeats what is before it: the 5 of "2,5". An open one has one copy more.
std::uint64_t times_of(std::string_view bound) {
  const std::size_t comma = bound.find(',');
  const auto number = [](std::string_view digits) {
    return std::min<std::uint64_t>(parse_number<std::uint64_t>(digits).value_or(0), 1 << 20);
  };
  const std::uint64_t least = number(bound.substr(0, comma));
  if (comma == std::string_view::npos) return least;
  return comma + 1 == bound.size() ? least + 1 : std::max(least, number(bound.substr(comma + 1)));
}

}  // namespace

std::uint64_t written_out_size(std::string_view regex) {
  std::vector<std::uint64_t> outside;  // sizes of the open groups up to the next one in each
  std::uint64_t before = 0, last = 0;  // the present group up to its last item, and that item
  const auto add = [&](std::uint64_t size) { before += std::exchange(last, size); };
  for (std::size_t at = 0; at < regex.size() && before + last <= kMostPattern; ++at) {
    switch (regex[at]) {
      case '(':
        outside.push_back(before + last);
        before = last = 0;
        break;
      case ')':
        if (outside.empty()) break;
        last += before + 1;
        before = outside.back();
        outside.pop_back();
        break;
      case '*':
      case '?': ++last; break;
      case '+': last *= 2; break;
      case '{': {
        const std::size_t end = std::min(regex.find('}', at), regex.size());
        last *= std::max<std::uint64_t>(1, times_of(regex.substr(at + 1, end - at - 1)));
        at = end;
        break;
      }
      case '[':
        at = end_of_bracket(regex, at) - 1;
        add(1);
        break;
      case '\\':
        ++at;
        add(1);
        break;
      default: add(1);
    }
  }
  return std::accumulate(outside.begin(), outside.end(), before + last);
}

namespace {

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
    // For more regcomp might take all memory of the machine.
    if (written_out_size(text) > kMostPattern)
      return Error{ErrorCode::kUsage, "--grep " + text.substr(0, kShownPattern) +
                                          (text.size() > kShownPattern ? "…" : "") + ": it has more than " +
                                          std::to_string(kMostPattern) +
                                          " characters when its bounds {} are written out"};
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
  static constexpr std::size_t kShownPattern = 200;

  regex_t compiled_{};
  bool set_ = false;
};

class LogPrinter {
 public:
  LogPrinter(const OperateOptions& options, const launcher::JobEntry& job)
      : options_(options), job_(job), journal_(job.directory) {
    if (options.rank) label_.clear();
    if (!options.rank && !job.label.empty()) label_ = job.label;
    wants_times_ = options.timestamps || launcher::Label(label_, launcher::LineSource()).has_time();
    if (terminal_ && options.follow && !options.json && options.grep.empty())
      view_.emplace(launcher::terminal_reflows());
  }

  Result<> print_all() {
    if (!options_.grep.empty()) {
      DDP_TRY(pattern_.set(options_.grep));
    }
    if (const int ranks = options_.rank ? world_size() : 0;
        ranks > 0 && *options_.rank >= static_cast<std::uint32_t>(ranks)) {
      return Error{ErrorCode::kUsage, "job " + job_.job + " has no rank " + std::to_string(*options_.rank) +
                                          ", only " + (ranks == 1 ? "rank " : "ranks ") +
                                          format_number_range(0, ranks)};
    }
    for (;;) {
      // The state comes first: what was written before the end is printed then.
      const bool runs = launcher::state_of(job_).kind == launcher::RunState::Kind::kRunning;
      const bool last = !options_.follow || !runs || interrupted != 0;
      const bool first = !looked_;
      DDP_TRY(find_files());
      if (first && options_.attach) {  // what is written after this line is shown
        std::fprintf(stderr, "ddplaunch: output of job %s from now on; Ctrl-C leaves the job alone\n",
                     job_.job.c_str());
      }
      for (auto& [key, file] : files_)
        DDP_TRY(print_new(key, file, last));
      print_kept();
      if (options_.attach) print_events();
      if (!show(last)) return system_error(errno, "standard output");
      if (last) break;
      std::this_thread::sleep_for(kLookEvery);
    }
    if (const std::string why = why_nothing(); !why.empty())
      std::fprintf(stderr, "ddplaunch: %s\n", why.c_str());
    return {};
  }

 private:
  struct KeptLine {
    const LogKey* key;
    LogFile* file;
    std::string text;
    std::optional<LineTime> time;
  };

  /// Returns the most ranks of an attempt; 0: none has started.
  int world_size() const {
    int most = 0;
    visit_events(job_.directory, [&most](const OrderedJson& event, std::string_view) {
      if (launcher::text_of(event, "event") != "attempt_started" || !event["nodes"].is_array()) return;
      for (const OrderedJson& node : event["nodes"])
        most = std::max(most, node.value("first_rank", 0) + node.value("ranks", 0));
    });
    return most;
  }

  bool selects(const LogKey& key) const {
    if (options_.rank && key.rank != *options_.rank) return false;
    if (options_.attempt && key.attempt != *options_.attempt) return false;
    if (!options_.stream.empty() && key.stream != options_.stream) return false;
    return !options_.failed || failed_.contains({key.attempt, key.rank});
  }

  /// Returns why no file was selected; empty: one was, or nothing was asked for by name.
  std::string why_nothing() const {
    if (!files_.empty()) return "";
    std::string of;
    if (options_.rank) of += " of rank " + std::to_string(*options_.rank);
    if (options_.attempt) of += " of attempt " + std::to_string(*options_.attempt);
    if (!options_.stream.empty()) of += " on " + options_.stream;
    if (!options_.failed)
      return of.empty() ? "" : "job " + job_.job + " has no output" + of + " in " + job_.directory;
    const bool runs = launcher::state_of(job_).kind == launcher::RunState::Kind::kRunning;
    if (failed_.empty())
      return "no rank of job " + job_.job +
             (runs ? " has failed so far"
                   : " is a root cause; ddplaunch status " + job_.job + " shows how it ended");
    return "the ranks of job " + job_.job + " that failed have no output" + of;
  }

  void print_events() {
    for (const std::string& line : journal_.new_lines()) {
      const std::string text = event_text(line);
      if (text.empty()) continue;
      if (options_.json) {
        out_ += line + '\n';
        continue;
      }
      if (view_ && view_->shows_rows()) (void)show(true);  // the terminal may be that of stderr
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
      const bool exact = has_exact_times(*attempt, directory);
      const bool first = !looked_ && options_.since.has_value();
      const auto times =
          first || wants_times_ ? file_times(directory.string()) : std::map<std::string, FileTimes>();
      for (const fs::path& path : list_directory(directory)) {
        const std::string file_name = path.filename().string();
        const auto key = key_of(*attempt, file_name);
        if (!key || !selects(*key) || files_.contains(*key)) continue;
        UniqueFd fd = open_job_file(path.string());
        if (!fd && errno != ENOENT) return system_error(errno, path.string());
        if (!fd) continue;
        LogFile& file = add_file(*key);
        if (const auto found = times.find(file_name); found != times.end()) file.times = found->second;
        if (wants_times_) file.made = file_made(fd.get(), file.times);
        if (!looked_ && options_.attach) {
          ::lseek(fd.get(), 0, SEEK_END);
          file.at_end = true;
        }
        if (first) skip_old(fd.get(), file.times);
        // Of lines that do not match, no number is known.
        if (!looked_ && options_.tail && !first && !exact && options_.grep.empty())
          seek_tail(fd.get(), *options_.tail);
        file.read = static_cast<std::uint64_t>(std::max<off_t>(0, ::lseek(fd.get(), 0, SEEK_CUR)));
        file.fd = std::move(fd);
      }
    }
    // The files of an attempt that were read before are known already.
    for (ShortLog& log : read_short_attempts(job_.directory, short_attempts_read_)) {
      if (!selects(log.key) || files_.contains(log.key)) continue;
      LogFile& file = add_file(log.key);
      if (looked_ || !options_.attach) file.text = std::move(log.text);
    }
    looked_ = true;
    return {};
  }

  /// Reads the times of an attempt as far as they exist. Returns false if it has none, or none is wanted.
  bool has_exact_times(std::uint32_t attempt, const fs::path& directory) {
    if (!wants_times_ && !options_.since) return false;
    auto found = timed_.find(attempt);
    if (found == timed_.end()) {
      UniqueFd fd = open_job_file((directory / "lines.jsonl").string());
      if (!fd) return false;
      if (!looked_ && options_.attach) ::lseek(fd.get(), 0, SEEK_END);
      found = timed_.emplace(attempt, TimedLines{std::move(fd), "", {}}).first;
    }
    // A file is read from a byte that was written up to two margins before.
    read_times(found->second, options_.since ? *options_.since - 3 * kFileTimeMargin : milliseconds(0));
    return true;
  }

  LogFile& add_file(const LogKey& key) {
    LogFile& file = files_[key];
    if (label_.empty()) return file;
    if (!nodes_.contains(key.attempt)) {
      nodes_[key.attempt];  // once, even if the journal has lost it
      visit_events(job_.directory, [this](const OrderedJson& event, std::string_view) {
        const auto attempt = number_in(event, "attempt");
        if (attempt && launcher::text_of(event, "event") == "attempt_started" && event["nodes"].is_array())
          nodes_[*attempt] = event["nodes"];
      });
    }
    std::string host = "?";
    launcher::LineSource source{host, static_cast<int>(key.rank), 0, 0, key.stream};
    int node_rank = 0;
    for (const OrderedJson& node : nodes_[key.attempt]) {
      const int local = source.rank - node.value("first_rank", 0);
      if (local >= 0 && local < node.value("ranks", 0)) {
        host = replace_unsafe(node.value("node", "?"));
        source = {host, source.rank, local, node_rank, key.stream};
      }
      ++node_rank;
    }
    file.label = launcher::Label(label_, source, coloured_ ? launcher::label_colour(source.node_rank) : 0);
    return file;
  }

  /// Goes to the first line that may have been written after --since.
  void skip_old(int fd, const FileTimes& times) const {
    struct stat status {};
    const bool known = ::fstat(fd, &status) == 0;
    const std::chrono::seconds changed(status.st_mtim.tv_sec);
    std::optional<std::uint64_t> size;
    for (const auto& [at, time] : times)
      if (time <= *options_.since) size = at;
    if (known && changed + kFileTimeMargin < *options_.since)
      ::lseek(fd, 0, SEEK_END);
    else if (size)
      seek_line(fd, *size);
  }

  /// `last`: no byte follows, so an unfinished line and a bar are printed as they are.
  Result<> print_new(const LogKey& key, LogFile& file, bool last) {
    std::optional<LineTime> time;
    const std::uint64_t before = file.read;
    if (!file.text.empty()) {
      print_part(key, file, file.text, time);
      file.text.clear();
    }
    while (file.fd && interrupted == 0) {
      time = time_of_next(file);
      const auto next = file.times.upper_bound(file.read);
      const std::size_t most = next == file.times.end()
                                   ? buffer_.size()
                                   : std::min<std::uint64_t>(buffer_.size(), next->first - file.read);
      const ssize_t count = ::read(file.fd.get(), buffer_.data(), most);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return system_error(errno, job_.directory);
      if (count == 0) break;
      file.read += static_cast<std::uint64_t>(count);
      print_part(key, file, std::string_view(buffer_).substr(0, static_cast<std::size_t>(count)), time);
    }
    file.at_end = true;
    std::string lines;
    file.quiet = file.read == before ? file.quiet + 1 : 0;
    if (last)
      file.lines.finish(lines);
    else if (file.quiet > 0 && file.lines.held() > 0)
      file.lines.finish_idle(file.quiet * kLookEvery >= launcher::LiveBoard::kLongQuiet, lines);
    take_lines(key, file, lines, time);
    return {};
  }

  void print_part(const LogKey& key, LogFile& file, std::string_view bytes, std::optional<LineTime> time) {
    std::string lines;
    file.lines.add(bytes, lines);
    take_lines(key, file, lines, time);
  }

  void take_lines(const LogKey& key, LogFile& file, std::string_view lines, std::optional<LineTime> time) {
    for (const std::string_view line : split_lines(lines))
      take_line(key, file, line, time);
  }

  /// Returns the time of the next line of a stream with this text; unset: lines.jsonl does not have it.
  std::optional<LineTime> exact_time(const LogKey& key, std::string_view plain) {
    const auto attempt = timed_.find(key.attempt);
    if (attempt == timed_.end()) return {};
    auto& lines = attempt->second.lines[{key.rank, key.stream}];
    const std::size_t hash = hash_of(plain);
    for (std::size_t i = 0; i < std::min(lines.size(), kLinesAhead); ++i) {
      if (lines[i].second != hash) continue;
      const LineTime found{lines[i].first, milliseconds(0)};
      lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return found;
    }
    return {};
  }

  void take_line(const LogKey& key, LogFile& file, std::string_view line, std::optional<LineTime> time) {
    std::string plain = launcher::without_colours(line);
    if (const auto exact = exact_time(key, plain)) {
      if (options_.since && exact->at < *options_.since) return;
      time = exact;
    }
    if (!pattern_.matches(plain)) return;
    KeptLine taken{&key, &file, coloured_ && !options_.json ? std::string(line) : std::move(plain), time};
    if (!options_.tail || kept_shown_) return print_line(taken);
    std::deque<KeptLine>& kept = kept_[{key.rank, key.stream}];
    kept.push_back(std::move(taken));
    if (kept.size() > *options_.tail) kept.pop_front();
  }

  void print_kept() {
    if (std::exchange(kept_shown_, true)) return;
    for (const auto& [stream, lines] : kept_)
      for (const KeptLine& line : lines)
        print_line(line);
    kept_.clear();
  }

  static std::string time_text(const KeptLine& line) {
    using std::chrono::system_clock;
    if (!line.time) return "-";
    const std::string text = launcher::utc_text(system_clock::time_point(line.time->at));
    return line.time->margin == milliseconds(0) ? text : text.substr(0, 19) + 'Z';
  }

  void print_line(const KeptLine& line) {
    const LogKey& key = *line.key;
    if (options_.json) {
      OrderedJson json{{"format", 1},
                       {"attempt", key.attempt},
                       {"rank", key.rank},
                       {"stream", key.stream},
                       {"line", line.text}};
      if (options_.timestamps) {
        json["time"] = line.time ? OrderedJson(time_text(line)) : OrderedJson();
        json["time_margin_s"] =
            line.time ? OrderedJson(line.time->margin / std::chrono::seconds(1)) : OrderedJson();
      }
      out_ += launcher::json_line(json);
    } else {
      const bool rough = line.time && line.time->margin > kReadMargin;
      if (line.time && line.file->label.has_time()) {
        const std::time_t seconds = line.time->at.count() / 1000;
        std::tm local{};
        ::localtime_r(&seconds, &local);
        char text[16] = {};
        std::strftime(text, sizeof text, "%H:%M:%S", &local);
        std::string stamp = (rough ? "~" : "") + std::string(text);
        stamp += line.time->margin == milliseconds(0)
                     ? format_text(".%03d", static_cast<int>(line.time->at.count() % 1000))
                     : ".---";
        line.file->label.stamp(stamp);  // as wide as a time, which costs a rough one its last -
      }
      out_ += line.file->label.text();
      if (options_.timestamps) out_ += (rough ? "~" : "") + time_text(line) + ' ';
      terminal_ ? launcher::append_visible(line.text + '\n', out_) : void(out_.append(line.text) += '\n');
    }
    if (out_.size() >= kOneWrite) (void)show(true);
  }

  /// Where no bar can be drawn, prints their state from time to time, if it has changed. The end of a bar is
  /// a line anyway.
  void sample_bars() {
    std::uint64_t changes = 0;
    for (auto& [key, file] : files_) {
      std::string open;
      if (file.lines.live(open))
        changes += file.lines.revision();
      else
        open.clear();
      bars_.set(key.rank * 2 + (key.stream == "stderr" ? 1 : 0), 0, file.label.text(),
                launcher::without_colours(open));
    }
    const auto now = std::chrono::steady_clock::now();
    if (bars_.empty() || changes == sampled_ || now < sample_at_) return;
    sampled_ = changes;
    sample_at_ = now + kBarEvery;
    for (const launcher::LiveRow& row : bars_.rows())
      out_ += row.text + row.suffix + '\n';
  }

  /// Writes what was printed, and on a terminal the bars below it, unless `last`. Returns false with errno if
  /// it cannot be written.
  bool show(bool last) {
    if (view_) {
      std::vector<launcher::LiveRow> rows;
      for (auto& [key, file] : files_) {
        std::string open;
        // An unfinished line is usually finished soon. If it stays, it is a prompt.
        if (last || (!file.lines.live(open) && file.quiet == 0)) open.clear();
        bars_.set(key.rank * 2 + (key.stream == "stderr" ? 1 : 0), 0, file.label.text(), open);
      }
      out_ = view_->draw(out_, bars_.rows(), launcher::terminal_size(STDOUT_FILENO));
    } else if (options_.follow && !options_.json && options_.grep.empty() && !last) {
      sample_bars();
    }
    const bool written = print(out_);
    out_.clear();
    return written;
  }

  const OperateOptions& options_;
  const launcher::JobEntry& job_;
  JournalTail journal_;
  bool looked_ = false;      ///< the files that exist at the start are known
  bool kept_shown_ = false;  ///< --tail has an effect on what exists at the start
  bool wants_times_ = false;
  const bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
  const bool coloured_ = launcher::colours_wanted(terminal_, std::getenv("NO_COLOR"), std::getenv("TERM"));
  LinePattern pattern_;
  std::string label_ = launcher::OutputOptions().label;
  std::map<std::uint32_t, OrderedJson> nodes_;  ///< of each attempt, as in its attempt_started
  std::set<std::pair<std::uint32_t, std::uint32_t>> failed_;
  std::map<LogKey, LogFile> files_;
  std::map<std::uint32_t, TimedLines> timed_;                                   ///< by attempt
  std::map<std::pair<std::uint32_t, std::string>, std::deque<KeptLine>> kept_;  ///< by rank and stream
  std::uint64_t short_attempts_read_ = 0;                                       ///< bytes
  std::string buffer_ = std::string(kOneRead, '\0');
  std::string out_;  ///< not written yet
  std::optional<launcher::TerminalView> view_;
  launcher::BarFold bars_{launcher::OutputOptions().bars};
  std::uint64_t sampled_ = 0;  ///< changes of the bars at the last sample
  std::chrono::steady_clock::time_point sample_at_;
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
