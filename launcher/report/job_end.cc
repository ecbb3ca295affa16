#include "launcher/report/job_end.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
namespace {

constexpr std::size_t kDepth = 16;
constexpr double kLatest = 1e12;  ///< upper limit of a time of day

/// Collects the needed strings while the text is read, so that a truncated text still yields its complete
/// parts.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::optional<std::string> message;  ///< an inner one overrides the outer
  std::string trace;
  std::string time;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return scalar(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(std::to_string(value)); }
  bool number_float(number_float_t value, const string_t&) override {
    return value < 0 || value > kLatest || scalar(std::to_string(static_cast<std::int64_t>(value)));
  }
  bool string(string_t& value) override { return scalar(value); }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    path_.push_back(key_);
    // The text comes from a worker. Deep nesting would only cost memory, since nothing below the second level
    // is read.
    return path_.size() < kDepth;
  }
  bool key(string_t& name) override {
    key_ = name;
    return true;
  }
  bool end_object() override {
    path_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return start_object(0); }
  bool end_array() override { return end_object(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool scalar(const std::string& value) {
    const bool top = path_.size() == 1;
    const bool inside = path_.size() == 2 && path_[1] == "message";
    const bool extra = !path_.empty() && path_.back() == "extraInfo";
    if (key_ == "message" && (top || inside)) message = value;
    if (key_ == "py_callstack" && extra) trace = value;
    if (key_ == "timestamp" && extra) time = value;
    return true;
  }

  std::string key_;
  std::vector<std::string> path_;  ///< keys that lead to the current object; the first is empty
};

/// Returns a truncated JSON text with an end for the string that was cut.
std::string closed_string(std::string_view text) {
  const std::size_t escape = text.rfind("\\u");
  // The cut may be within \uXXXX, behind a backslash, or within a UTF-8 sequence. None of them may stay at
  // the end.
  if (escape != std::string_view::npos && text.size() - escape < 6) text = text.substr(0, escape);
  while (text.ends_with('\\') || (!text.empty() && (text.back() & 0xc0) == 0x80))
    text.remove_suffix(1);
  if (!text.empty() && (text.back() & 0x80) != 0) text.remove_suffix(1);
  return std::string(text) + '"';
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

/// Returns `File "/a/b.py", line 12, in main` as "/a/b.py:12 in main"; empty for any other line.
std::string place_of(std::string_view line) {
  constexpr std::string_view kFile = "File \"";
  constexpr std::string_view kLine = "\", line ";
  line = trimmed(line);
  if (!line.starts_with(kFile)) return {};
  line.remove_prefix(kFile.size());
  const std::size_t quote = line.find(kLine);
  if (quote == std::string_view::npos) return {};
  const std::string file(line.substr(0, quote));
  line.remove_prefix(quote + kLine.size());
  const std::size_t comma = std::min(line.find(','), line.size());
  return file + ":" + std::string(line.substr(0, comma)) +
         (comma < line.size() ? " " + std::string(trimmed(line.substr(comma + 1))) : "");
}

}  // namespace

std::optional<WorkerException> parse_error_json(std::string_view text) {
  if (text.empty()) return std::nullopt;
  Reader reader;
  const bool whole = nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  const bool cut_trace = !whole && reader.trace.empty();  // its last frames are missing
  if (!whole) {
    // Evidence is cut at a number of bytes, usually within the traceback, the longest string. The message
    // stands before it.
    const std::string closed = closed_string(text);
    reader = {};
    nlohmann::json::sax_parse(closed.begin(), closed.end(), &reader);
  }
  if (!reader.message) return std::nullopt;
  rendezvous::clean_text(*reader.message);
  rendezvous::clean_text(reader.trace);
  WorkerException exception = split_exception(*reader.message);
  exception.trace = std::move(reader.trace);
  if (!cut_trace) exception.frame = last_frame(exception.trace);
  if (const auto seconds = leading_number<long long>(reader.time).value_or(0); seconds > 0)
    exception.unix_time = seconds;
  return exception;
}

WorkerException split_exception(std::string_view text) {
  WorkerException exception;
  const std::size_t colon = text.find(':');
  const std::string_view type = text.substr(0, colon);
  const bool is_name = !type.empty() && type.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789_.") == std::string_view::npos;
  if (!is_name || colon == std::string_view::npos) {
    exception.message = text;
    return exception;
  }
  exception.type = type;
  exception.message = trimmed(text.substr(colon + 1));
  return exception;
}

std::string last_frame(std::string_view trace) {
  std::string frame;
  bool code_next = false;
  for (const std::string_view line : split_lines(trace)) {
    if (std::string place = place_of(line); !place.empty()) {
      frame = std::move(place);
      code_next = true;
    } else if (code_next) {
      // The code follows its location, indented; it is missing without the source.
      if (line.starts_with("    ") && !trimmed(line).empty()) frame += ": " + std::string(trimmed(line));
      code_next = false;
    }
  }
  return frame;
}

std::string HangVerdict::text_of(std::string_view source) const {
  const auto found = std::ranges::find(witnesses, source, &Witness::source);
  return found == witnesses.end() ? "" : found->text;
}

int count_nodes(const std::vector<Failure>& failures) {
  std::set<std::string_view> nodes;
  for (const Failure& failure : failures)
    if (failure.kind == Failure::Kind::kNode) nodes.insert(failure.host);
  return static_cast<int>(nodes.size());
}

Evidence read_evidence(const rendezvous::WorkerEvidence& message) {
  return {message.oom, message.xid, parse_error_json(message.error_json)};
}

}  // namespace ddp::launcher
