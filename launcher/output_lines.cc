#include "launcher/output_lines.h"

#include <algorithm>
#include <cstring>

namespace ddp::launcher {
namespace {

// A buffer that once held a huge line is given back: there is one per stream of every rank.
constexpr std::size_t kKeptCapacity = 64 * 1024;

// What a terminal shows of a row: CRs at the end move the cursor only, what follows an earlier one replaced
// the rest.
std::string_view after_carriage_returns(std::string_view line) {
  // memchr runs at memory speed and finds nothing in most lines; rfind goes byte by byte.
  if (line.empty() || !std::memchr(line.data(), '\r', line.size())) return line;
  while (!line.empty() && line.back() == '\r')
    line.remove_suffix(1);
  const std::size_t cr = line.rfind('\r');
  return cr == std::string_view::npos ? line : line.substr(cr + 1);
}

}  // namespace

void LineAssembler::emit(std::string_view line, std::string& out) {
  out += label_;
  out += line;
  out += '\n';
}

void LineAssembler::add(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const auto* found = static_cast<const char*>(std::memchr(bytes.data(), '\n', bytes.size()));
    const std::size_t length = found ? static_cast<std::size_t>(found - bytes.data()) : bytes.size();
    const std::string_view text = bytes.substr(0, length);
    if (found && held_.empty() && text.size() <= kMaxLine) {
      // A whole line in one chunk, the common case, goes from the chunk to the output. A CR held back before
      // it would only have cleared a line that is empty anyway.
      emit(after_carriage_returns(text), out);
      pending_cr_ = false;
    } else {
      add_text(text, out);
      if (found) end_line(out);
    }
    bytes.remove_prefix(length + (found ? 1 : 0));
  }
}

// Without newlines. Text thrown away by a CR is dropped at once, so that a bar which never ends its line
// holds one row only, and the limit is on what is left: that is what makes the result independent of the
// chunks.
void LineAssembler::add_text(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const std::size_t cr = std::min(text.find('\r'), text.size());
    std::string_view part = text.substr(0, cr);
    if (!part.empty() && pending_cr_) {
      held_.clear();
      pending_cr_ = false;
    }
    while (held_.size() + part.size() > kMaxLine) {
      const std::size_t room = kMaxLine - held_.size();
      held_ += part.substr(0, room);
      held_ += kSplitMark;
      emit(held_, out);
      held_.clear();
      part.remove_prefix(room);
    }
    held_ += part;
    if (cr == text.size()) return;
    pending_cr_ = true;
    text.remove_prefix(cr + 1);
  }
}

void LineAssembler::end_line(std::string& out) {
  emit(held_, out);
  held_.clear();
  pending_cr_ = false;
  if (held_.capacity() > kKeptCapacity) std::string().swap(held_);
}

void LineAssembler::finish(std::string& out) {
  if (!held_.empty()) end_line(out);
  pending_cr_ = false;
}

void StderrTail::add(std::string_view bytes) {
  if (bytes.size() >= kMaxBytes) {
    overwritten_ = overwritten_ || !ring_.empty() || bytes.size() > kMaxBytes;
    ring_.assign(bytes.substr(bytes.size() - kMaxBytes));
    next_ = 0;
    return;
  }
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
  const std::string all = ring_.substr(next_) + ring_.substr(0, next_);
  std::vector<std::string> found;
  std::string_view rest = all;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    found.emplace_back(after_carriage_returns(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
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
