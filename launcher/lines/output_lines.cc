// Labels; LineAssembler with its fast path; the bounds of unfinished lines; the end of stderr for reports;
// and lines as JSON.
#include "launcher/lines/output_lines.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/result.h"
#include "base/text.h"

namespace ddp::launcher {

// ---- labels

namespace {

enum class Placeholder { kHost, kRank, kLocalRank, kNodeRank, kStream, kTime };

constexpr std::array<std::pair<std::string_view, Placeholder>, 6> kPlaceholders{{
    {"host", Placeholder::kHost},
    {"rank", Placeholder::kRank},
    {"local_rank", Placeholder::kLocalRank},
    {"node_rank", Placeholder::kNodeRank},
    {"stream", Placeholder::kStream},
    {"time", Placeholder::kTime},
}};

/// Shown until the first stamp.
constexpr std::string_view kNoTime = "--:--:--.---";

/// Excludes red, which signals an error, and black and white, which may be the background.
constexpr std::array kColours = {36, 32, 33, 35, 34, 96, 92, 93, 95, 94};

Error label_error(std::size_t at, const std::string& what) {
  return Error{ErrorCode::kUsage, "--label, column " + std::to_string(at + 1) + ": " + what};
}

// Walks a template: calls `text` for runs of plain characters and `value` for placeholders. The check and the
// construction of labels share it.
template <class Text, class Value>
Result<> walk_label(std::string_view label, Text text, Value value) {
  for (std::size_t at = 0; at < label.size();) {
    const char c = label[at];
    if (c == '\n' || c == '\r') return label_error(at, "a label cannot contain a line break");
    if (c != '{' && c != '}') {
      const std::size_t end = std::min(label.find_first_of("{}\n\r", at), label.size());
      text(label.substr(at, end - at));
      at = end;
      continue;
    }
    if (at + 1 < label.size() && label[at + 1] == c) {
      text(label.substr(at, 1));
      at += 2;
      continue;
    }
    const std::size_t close = label.find('}', at);
    if (c == '}' || close == std::string_view::npos) {
      return label_error(at,
                         std::string("a lone '") + c + "'; write '" + c + c + "' for the character itself");
    }
    const std::string_view name = label.substr(at + 1, close - at - 1);
    const auto* const found = std::find_if(kPlaceholders.begin(), kPlaceholders.end(),
                                           [&](const auto& known) { return known.first == name; });
    if (found == kPlaceholders.end()) {
      return label_error(at, "unknown {" + std::string(name) +
                                 "}; known: {host} {rank} {local_rank} {node_rank} {stream} {time}");
    }
    value(found->second);
    at = close + 1;
  }
  return {};
}

void make(std::string_view label, const Label::LabelGroup& group, std::string& text,
          std::vector<std::size_t>& holes) {
  const auto value_of = [&](Placeholder placeholder) -> std::string_view {
    switch (placeholder) {
      case Placeholder::kHost: return group.hosts;
      case Placeholder::kRank: return group.ranks;
      case Placeholder::kLocalRank: return group.local_ranks;
      case Placeholder::kNodeRank: return group.node_ranks;
      case Placeholder::kStream: return group.stream;
      case Placeholder::kTime:
        // Each line has another time, and only these bytes of the label change.
        holes.push_back(text.size());
        return kNoTime;
    }
    return {};
  };
  (void)walk_label(
      label, [&](std::string_view plain) { text += plain; },
      [&](Placeholder placeholder) { text += value_of(placeholder); });
}

Label::LabelGroup group_of_one(const LineSource& source) {
  return {std::string(source.host), std::to_string(source.rank), std::to_string(source.local_rank),
          std::to_string(source.node_rank), source.stream};
}

}  // namespace

Result<> check_label_template(std::string_view label) {
  return walk_label(
      label, [](std::string_view) {}, [](Placeholder) {});
}

Label::Label(std::string_view label, const LineSource& source, int colour) {
  if (colour != 0) text_ = "\x1b[" + std::to_string(colour) + 'm';
  const std::size_t begin = text_.size();
  make(label, group_of_one(source), text_, holes_);
  if (colour == 0) return;
  // Trailing spaces stay outside the color, so that a background or underline begins where the line begins.
  const std::size_t end = std::max(begin, text_.find_last_not_of(' ') + 1);
  if (end == begin) {
    text_.erase(0, begin);  // nothing to color
  } else {
    text_.insert(end, "\x1b[0m");
  }
}

Label::Label(std::string_view label, const LabelGroup& group) {
  make(label, group, text_, holes_);
}

void Label::stamp(std::string_view time) {
  DDP_REQUIRE(time.size() >= kTimeWidth, time);
  for (const std::size_t hole : holes_)
    text_.replace(hole, kTimeWidth, time.substr(0, kTimeWidth));
}

int label_colour(int node_rank) {
  return kColours[static_cast<std::size_t>(std::max(node_rank, 0)) % kColours.size()];
}

bool colours_wanted(bool is_terminal, const char* no_color, const char* term) {
  // https://no-color.org: any non-empty value forbids color.
  const bool forbidden = no_color != nullptr && *no_color != '\0';
  return is_terminal && !forbidden && term != nullptr && std::string_view(term) != "dumb" && *term != '\0';
}

// ---- lines

namespace {

bool holds(std::string_view bytes, char c) {
  return std::memchr(bytes.data(), c, bytes.size()) != nullptr;
}

// memchr runs at memory speed and finds nothing in most output. A single search for all three characters
// would go byte by byte.
bool is_plain(std::string_view bytes) {
  return !holds(bytes, '\r') && !holds(bytes, '\x1b') && !holds(bytes, '\b');
}

bool is_special(char c) {
  return c == '\n' || c == '\r' || c == '\x1b' || c == '\b';
}

}  // namespace

void LineAssembler::add(std::string_view bytes, std::string& out) {
  if (bytes.empty()) return;
  if (!escape_.inside() && is_plain(bytes))
    add_plain(bytes, sink(out));
  else
    add_marked(bytes, sink(out));
}

void LineAssembler::add_plain(std::string_view bytes, const LineSink& sink) {
  bool idle = rows_.idle();
  while (!bytes.empty()) {
    // Without a label the lines need no work at all: everything up to the last line feed passes as one piece.
    const bool all = idle && sink.label.empty() && bytes.size() <= kMaxLine;
    const void* const end =
        all ? ::memrchr(bytes.data(), '\n', bytes.size()) : std::memchr(bytes.data(), '\n', bytes.size());
    const auto* found = static_cast<const char*>(end);
    const std::size_t length = found ? static_cast<std::size_t>(found - bytes.data()) : bytes.size();
    if (idle && found && length <= kMaxLine) {
      sink.whole(bytes.substr(0, length + 1));
    } else {
      rows_.text(bytes.substr(0, length), sink);
      if (found) rows_.line_feed(sink);
      idle = rows_.idle();
    }
    bytes.remove_prefix(length + (found ? 1 : 0));
  }
}

void LineAssembler::add_marked(std::string_view bytes, const LineSink& sink) {
  while (!bytes.empty()) {
    if (escape_.inside()) {
      const EscapeReader::Effect what = escape_.feed(bytes.front());
      // The byte that broke a sequence is text, or begins the next sequence.
      if (what != EscapeReader::Effect::kBroken) bytes.remove_prefix(1);
      rows_.escape(what, escape_, sink);
      continue;
    }
    const auto* special = std::find_if(bytes.begin(), bytes.end(), is_special);
    rows_.text({bytes.begin(), special}, sink);
    if (special == bytes.end()) return;
    add_special(*special, sink);
    bytes.remove_prefix(static_cast<std::size_t>(special - bytes.begin()) + 1);
  }
}

void LineAssembler::add_special(char c, const LineSink& sink) {
  if (c == '\n')
    rows_.line_feed(sink);
  else if (c == '\r')
    rows_.carriage_return();
  else if (c == '\b')
    rows_.backspace();
  else
    escape_.start();
}

void LineAssembler::finish(std::string& out) {
  escape_.reset();
  rows_.finish(sink(out));
}

void HeldLines::count(LineAssembler& lines) {
  DDP_REQUIRE(lines.counted_ <= bytes_, lines.counted_, bytes_);
  // Unsigned arithmetic: the difference may be negative and still adds up, since counted_ is part of bytes_.
  bytes_ += lines.held() - std::exchange(lines.counted_, lines.held());
}

void HeldLines::add(LineAssembler& lines, std::string_view bytes, std::string& out) {
  lines.add(bytes, out);
  count(lines);
  // Ranks that write without line feeds pay with a broken line, instead of all ranks with the master's
  // memory.
  if (bytes_ > kMost && lines.held() > kShort) finish(lines, out);
}

void HeldLines::finish(LineAssembler& lines, std::string& out) {
  lines.finish(out);
  count(lines);
}

void StderrTail::add(std::string_view bytes) {
  if (bytes.size() >= kMaxBytes) {
    overwritten_ = overwritten_ || !ring_.empty() || bytes.size() > kMaxBytes;
    ring_.assign(bytes.substr(bytes.size() - kMaxBytes));
    next_ = 0;
    return;
  }
  DDP_REQUIRE(ring_.size() <= kMaxBytes && (next_ == 0 || ring_.size() == kMaxBytes), ring_.size(), next_);
  const std::size_t fresh = std::min(kMaxBytes - ring_.size(), bytes.size());
  ring_ += bytes.substr(0, fresh);
  bytes.remove_prefix(fresh);
  while (!bytes.empty()) {
    overwritten_ = true;
    const std::size_t run = std::min(kMaxBytes - next_, bytes.size());
    std::copy_n(bytes.data(), run, ring_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ = (next_ + run) % kMaxBytes;
    bytes.remove_prefix(run);
  }
}

std::vector<std::string> StderrTail::lines() const {
  std::string all;
  LineAssembler assembler{std::string()};
  // The bytes are kept raw and become lines only here: most ranks never fail, and their stderr costs no more
  // than a copy.
  assembler.add(ring_.substr(next_) + ring_.substr(0, next_), all);
  assembler.finish(all);
  const auto lines = split_lines(all);
  std::vector<std::string> found(lines.begin(), lines.end());
  // The oldest line lacks its beginning. A traceback without it reads better than with half a line.
  if (overwritten_ && !found.empty()) {
    if (found.size() > 1) {
      found.erase(found.begin());
    } else {
      found.front().insert(0, "…");
    }
  }
  if (found.size() > kMaxLines)
    found.erase(found.begin(), found.end() - static_cast<std::ptrdiff_t>(kMaxLines));
  return found;
}

namespace {

constexpr std::string_view kHex = "0123456789abcdef";

void append_escape(unsigned value, std::string& out) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4)
    out += kHex[value >> shift & 0xf];
}

bool is_plain(unsigned char c) {
  return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

void append_control(unsigned char c, std::string& out) {
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\t': out += "\\t"; return;
    case '\r': out += "\\r"; return;
    case '\n': out += "\\n"; return;
    default: append_escape(c, out);
  }
}

}  // namespace

void append_json_string(std::string_view bytes, std::string& out) {
  out += '"';
  for (std::size_t at = 0; at < bytes.size();) {
    std::size_t end = at;
    while (end < bytes.size() && is_plain(static_cast<unsigned char>(bytes[end])))
      ++end;
    out += bytes.substr(at, end - at);
    if (end == bytes.size()) break;
    at = end;
    const auto c = static_cast<unsigned char>(bytes[at]);
    const Utf8Character character = first_character(bytes.substr(at));
    if (!character.valid) {
      // Surrogateescape (PEP 383): the byte 0xNN becomes U+DCNN, which no valid UTF-8 has, so that the way
      // back is unique.
      append_escape(0xdc00U + c, out);
    } else if (character.length == 1) {
      append_control(c, out);
    } else {
      out += bytes.substr(at, character.length);
    }
    at += character.length;
  }
  out += '"';
}

void JsonLines::add(const LineSource& source, std::uint8_t stream, std::string_view bytes,
                    std::string_view time, std::string& out) {
  JsonStream& state = streams_[{source.rank, stream}];
  // Built once for each stream: the same for all its lines.
  if (state.facts.empty()) {
    state.facts = R"(","host":)";
    append_json_string(source.host, state.facts);
    state.facts += R"(,"rank":)" + std::to_string(source.rank) + R"(,"local_rank":)" +
                   std::to_string(source.local_rank) + R"(,"stream":")" +
                   (stream == 1 ? "stdout" : "stderr") + R"(","line":)";
  }
  lines_.clear();
  if (bytes.empty()) {
    held_.finish(state.lines, lines_);
  } else {
    held_.add(state.lines, bytes, lines_);
  }
  std::string_view rest = lines_;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    out += R"({"time":")";
    out += time;
    out += state.facts;
    append_json_string(rest.substr(0, end), out);
    out += "}\n";
    rest.remove_prefix(end + 1);
  }
}

}  // namespace ddp::launcher
