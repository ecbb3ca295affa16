#include "remote/bootstrap/bootstrap.h"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <utility>

#include "base/exit_status.h"
#include "base/result.h"
#include "base/text.h"

namespace ddp::remote {
namespace {

constexpr std::size_t kLongestShownLine = 400;
constexpr std::size_t kLongestVersion = 64;

bool is_version_byte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '+' ||
         c == '-' || c == '_' || c == '~';
}

bool is_version(std::string_view text) {
  return !text.empty() && text.size() <= kLongestVersion &&
         std::all_of(text.begin(), text.end(), is_version_byte);
}

std::string printable(std::string_view line) {
  std::string text = replace_unsafe(line.substr(0, kLongestShownLine));
  if (line.size() > kLongestShownLine) text += "...";
  return text;
}

std::optional<AgentHello> parse_hello(std::string_view words) {
  AgentHello hello;
  const char* end = words.data() + words.size();
  const auto [after, error] = std::from_chars(words.data(), end, hello.protocol);
  if (error != std::errc{} || hello.protocol < 1 || after == end || *after != ' ') return std::nullopt;
  hello.version.assign(after + 1, end);
  if (!is_version(hello.version)) return std::nullopt;
  return hello;
}

std::string install_advice() {
  return "install the same version there or name it with --agent PATH";
}

}  // namespace

std::string hello_line(const AgentHello& hello) {
  DDP_REQUIRE(hello.protocol > 0 && is_version(hello.version), hello.protocol, hello.version);
  return std::string(kHelloPrefix) + std::to_string(hello.protocol) + " " + hello.version + "\n";
}

void TailLines::finish_line() {
  if (!open_.empty() && open_.back() == '\r') open_.pop_back();
  if (!open_.empty()) lines_.push_back(printable(open_));
  if (lines_.size() > kNoiseLines) lines_.pop_front();
  open_.clear();
}

void TailLines::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, newline);
    // One byte more than the shown length marks the line as cut; the rest of the line is dropped.
    const std::size_t room = kLongestShownLine + 1 - std::min(open_.size(), kLongestShownLine + 1);
    open_ += piece.substr(0, room);
    if (newline == std::string_view::npos) return;
    finish_line();
    bytes.remove_prefix(newline + 1);
  }
}

std::deque<std::string> TailLines::lines() const {
  std::deque<std::string> all = lines_;
  if (!open_.empty()) all.push_back(printable(open_));
  return all;
}

std::string TailLines::text(std::string_view indent) const {
  std::string text;
  for (const std::string& line : lines()) {
    text += '\n';
    text += indent;
    text += line;
  }
  return text;
}

Bootstrap::Bootstrap(std::string host, std::string agent, Lookup lookup, std::string intermediary)
    : host_(std::move(host)),
      agent_(std::move(agent)),
      lookup_(lookup),
      intermediary_(std::move(intermediary)),
      spoken_(lookup == Lookup::kNone) {}

Bootstrap::State Bootstrap::feed(std::string_view bytes) {
  DDP_REQUIRE(state_ != State::kReading || rest_.empty(), rest_.size());  // bytes are read in their order
  while (state_ == State::kReading && !bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    pending_ += bytes.substr(0, newline);
    consumed_ += newline == std::string_view::npos ? bytes.size() : newline + 1;
    if (consumed_ > kBootstrapLimit) {
      noise_.feed(pending_);
      state_ = State::kFailed;
      break;
    }
    if (newline == std::string_view::npos) break;
    bytes.remove_prefix(newline + 1);
    read_line(std::exchange(pending_, {}));
  }
  if (state_ != State::kReading && state_ != State::kFailed) rest_ += bytes;
  return state_;
}

Bootstrap::State Bootstrap::go_on() {
  DDP_REQUIRE(state_ == State::kNeed || state_ == State::kSend, state_);
  if (state_ == State::kSend) ++sent_;
  state_ = State::kReading;
  return feed(std::exchange(rest_, {}));
}

void Bootstrap::read_line(const std::string& line) {
  // The prefix may stand inside a line: a start-up file may print a prompt without a newline.
  std::size_t start = line.find(kHelloPrefix);
  std::string_view prefix = kHelloPrefix;
  if (lookup_ != Lookup::kNone && start == std::string::npos) {
    for (const std::string_view other : {kRunsPrefix, kFailPrefix, kNeedPrefix, kSendPrefix}) {
      const bool of_a_push = other == kNeedPrefix || other == kSendPrefix;
      if (start == std::string::npos && (lookup_ == Lookup::kPush || !of_a_push)) {
        start = line.find(other);
        prefix = other;
      }
    }
  }
  const std::string_view found = std::string_view(line).substr(std::min(start, line.size()));
  const std::string_view words = found.substr(std::min(prefix.size(), found.size()));
  if (words.starts_with('$')) {  // unexpanded "$": an echo of the command, which no shell has run
    printed_ = true;
    start = std::string::npos;
  }
  noise_.feed(start == 0 ? std::string() : line.substr(0, start) + "\n");
  if (start == std::string::npos) return;
  spoken_ = true;
  if (prefix == kHelloPrefix) {
    read_hello(found);
  } else if (prefix == kRunsPrefix) {
    began_ = words;
    agent_ = printable(words);
  } else if (prefix == kNeedPrefix) {
    asked_ ? damage(found) : read_need(words);
  } else if (prefix == kSendPrefix) {
    asked_ ? read_send(words) : damage(found);
  } else {
    refused_ = printable(words);
    state_ = State::kFailed;
  }
}

void Bootstrap::damage(std::string_view line) {
  damaged_ = printable(line);
  state_ = State::kFailed;
}

void Bootstrap::read_need(std::string_view words) {
  asked_ = true;
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    if (need_.machine.empty()) {
      need_.machine = printable(word);
      continue;
    }
    need_.attempts.push_back(leading_number<int>(word).value_or(0));
  }
  state_ = State::kNeed;
}

void Bootstrap::read_send(std::string_view words) {
  const std::string expected = std::to_string(sent_);
  // A terminal on the way ends its lines with CR LF. The check of the received file reports that damage.
  if (words == expected || words == expected + "\r") {
    state_ = State::kSend;
  } else {
    damage(std::string(kSendPrefix) + std::string(words));
  }
}

void Bootstrap::read_hello(std::string_view line) {
  const auto hello = parse_hello(line.substr(kHelloPrefix.size()));
  if (hello) {
    hello_ = *hello;
    state_ = State::kHello;
  } else {
    damage(line);
  }
}

std::string Bootstrap::last_lines() const {
  TailLines out = noise_;
  out.feed(pending_);
  if (out.empty() && errors_.empty()) return "; it wrote nothing";
  return "; its last lines:" + out.text() + errors_.text();
}

Error Bootstrap::failure() const {
  if (!refused_.empty() && lookup_ == Lookup::kGiven)
    return {ErrorCode::kAgentMissing, host_ + ": " + refused_ + "; " + install_advice()};
  if (!refused_.empty()) {
    return {ErrorCode::kAgentMissing, host_ + ": ddplaunchd is not installed there, and copying it failed: " +
                                          refused_ + "; " + install_advice()};
  }
  if (!damaged_.empty()) {
    return {ErrorCode::kAgentMismatch, host_ + ": the greeting of " + agent_ + " cannot be read: \"" +
                                           damaged_ + "\"; " + install_advice()};
  }
  if (!spoken_) {
    return {ErrorCode::kUnreachable, host_ + ": " + intermediary_ +
                                         " printed 64 KiB before the search for ddplaunchd began; check "
                                         "which start-up file prints that much" +
                                         last_lines()};
  }
  return {ErrorCode::kAgentMismatch, host_ + ": 64 KiB came without a greeting of " + agent_ + last_lines()};
}

Error Bootstrap::ended(std::optional<int> status) const {
  if (!status) {
    return {ErrorCode::kUnreachable,
            host_ + ": the connection closed before " + agent_ + " answered" + last_lines()};
  }
  std::string how = "ended with exit status " + std::to_string(*status);
  if (*status > 128 && *status < 128 + NSIG) how += " (128 + " + signal_name(*status - 128) + ")";
  if (!spoken_ && printed_) {
    return {ErrorCode::kUnreachable,
            host_ + ": " + intermediary_ +
                " printed the command behind it and did not run it; it must run it, as "
                "'docker exec -i NAME' does"};
  }
  if (!spoken_) {
    return {ErrorCode::kUnreachable, host_ + ": " + intermediary_ + " " + how +
                                         " before the search for ddplaunchd began" + last_lines()};
  }
  if (*status == 127)
    return {ErrorCode::kAgentMissing, host_ + ": no ddplaunchd at " + agent_ + "; " + install_advice()};
  if (*status == 126) {
    return {ErrorCode::kAgentMismatch,
            host_ + ": " + agent_ + " cannot be executed there; " + install_advice() + last_lines()};
  }
  return {ErrorCode::kAgentMismatch,
          host_ + ": " + agent_ + " " + how + " before its greeting" + last_lines()};
}

Error Bootstrap::timed_out() const {
  return {ErrorCode::kTimeout,
          host_ + ": no greeting of " + agent_ + " before the start limit" +
              (spoken_ ? std::string() : "; is " + intermediary_ + " waiting for something?") + last_lines()};
}

Result<void> check_hello(const std::string& host, const AgentHello& theirs, const AgentHello& ours) {
  if (theirs.protocol == ours.protocol && theirs.version == ours.version) return {};
  return Error{ErrorCode::kAgentMismatch, host + ": its ddplaunchd is version " + theirs.version +
                                              " (protocol " + std::to_string(theirs.protocol) +
                                              "), this ddplaunch is version " + ours.version + " (protocol " +
                                              std::to_string(ours.protocol) + "); " + install_advice()};
}

}  // namespace ddp::remote
