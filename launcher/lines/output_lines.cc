#include "launcher/lines/output_lines.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/result.h"

namespace ddp::launcher {
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
  bytes_ += lines.held() - std::exchange(lines.counted_, lines.held());
}

void HeldLines::add(LineAssembler& lines, std::string_view bytes, std::string& out) {
  lines.add(bytes, out);
  count(lines);
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
  assembler.add(ring_.substr(next_) + ring_.substr(0, next_), all);
  assembler.finish(all);
  std::vector<std::string> found;
  std::string_view rest = all;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    found.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end + 1);
  }
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

}  // namespace ddp::launcher
