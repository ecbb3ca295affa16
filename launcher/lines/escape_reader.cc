#include "launcher/lines/escape_reader.h"

#include <algorithm>

#include "base/result.h"

namespace ddp::launcher {
namespace {

// Limit of a title or a link. An unterminated string is garbage and must not swallow the output.
constexpr std::size_t kMaxString = 4096;

// Within a sequence only 0x20..0x7e are valid.
bool is_foreign(char c) {
  return c < 0x20 || c > 0x7e;  // bytes from 0x80 are negative if char is signed, else > 0x7e
}

}  // namespace

void EscapeReader::start() {
  DDP_REQUIRE(!inside(), bytes_.size());
  state_ = State::kEscape;
  bytes_.assign(1, '\x1b');
  string_bytes_ = 0;
}

EscapeReader::Effect EscapeReader::finish(Effect effect) {
  state_ = State::kOutside;
  return effect;
}

EscapeReader::Effect EscapeReader::feed(char c) {
  DDP_REQUIRE(inside(), static_cast<int>(c));
  switch (state_) {
    case State::kOutside:
      return Effect::kBroken;
    case State::kEscape:
      return after_escape(c);
    case State::kControl:
      return in_control(c);
    case State::kCharset:
      if (is_foreign(c)) return finish(Effect::kBroken);
      return c < 0x30 ? Effect::kMore : finish(Effect::kIgnored);
    case State::kString:
    case State::kStringEscape:
      return in_string(c);
  }
  return Effect::kBroken;
}

EscapeReader::Effect EscapeReader::after_escape(char c) {
  bytes_ += c;
  if (is_foreign(c)) return finish(Effect::kBroken);
  if (c == '[') {
    state_ = State::kControl;
    return Effect::kMore;
  }
  if (c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_') {
    state_ = State::kString;
    return Effect::kMore;
  }
  if (c < 0x30) {  // an intermediate byte: a final one follows
    state_ = State::kCharset;
    return Effect::kMore;
  }
  count_ = 1;
  return finish(c == 'M' ? Effect::kUp : Effect::kIgnored);
}

EscapeReader::Effect EscapeReader::in_control(char c) {
  if (is_foreign(c)) return finish(Effect::kBroken);
  const bool fits = bytes_.size() < kMaxBytes;
  if (fits) bytes_ += c;
  if (c < 0x40) return Effect::kMore;
  return finish(fits ? control_done(c) : Effect::kIgnored);
}

EscapeReader::Effect EscapeReader::in_string(char c) {
  if (state_ == State::kStringEscape) {
    if (c == '\\') return finish(Effect::kIgnored);
    state_ = State::kString;
  }
  if (c == '\a') return finish(Effect::kIgnored);
  // A line end or a bar's CR shows that this was no string.
  if (c == '\n' || c == '\r' || ++string_bytes_ > kMaxString) return finish(Effect::kBroken);
  if (c == '\x1b') state_ = State::kStringEscape;
  return Effect::kMore;
}

void EscapeReader::read_count() {
  count_ = 0;
  for (std::size_t at = 2; at < bytes_.size() && bytes_[at] >= '0' && bytes_[at] <= '9'; ++at)
    count_ = std::min(count_ * 10 + (bytes_[at] - '0'), kMaxCount);
}

EscapeReader::Effect EscapeReader::control_done(char final) {
  read_count();
  const int given = count_;
  count_ = std::max(count_, 1);
  if (final != 'm' && bytes_[2] >= 0x3c && bytes_[2] <= 0x3f) {  // private: ESC [ ? 25 l
    if (bytes_ == "\x1b[?25l") return Effect::kHideCursor;
    if (bytes_ == "\x1b[?25h") return Effect::kShowCursor;
    return Effect::kIgnored;
  }
  switch (final) {
    case 'm':
      // Accepts only real colors: ESC [ > 4 m and similar set keyboard modes.
      return bytes_.find_first_not_of("0123456789;:", 2) == bytes_.size() - 1 ? Effect::kColour
                                                                              : Effect::kIgnored;
    case 'A':
      return Effect::kUp;
    case 'B':
      return Effect::kDown;
    case 'E':
      return Effect::kDownToStart;
    case 'F':
      return Effect::kUpToStart;
    case 'G':
    case '`':
      return count_ == 1 ? Effect::kStartOfRow : Effect::kIgnored;
    case 'K':
      return given == 0 ? Effect::kEraseToEnd : Effect::kEraseRow;
    case 'J':
      return given == 0 ? Effect::kEraseBelow : Effect::kEraseScreen;
    default:
      return Effect::kIgnored;
  }
}

}  // namespace ddp::launcher
