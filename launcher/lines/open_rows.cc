// EscapeReader finds the control sequences, and OpenRows applies them: text, the ends of rows, movements of
// the cursor, and when a row becomes a line. The reasons are in docs/decisions/0011-the-view-of-bars.md.
#include "launcher/lines/open_rows.h"

#include <algorithm>
#include <utility>

#include "base/result.h"
#include "launcher/lines/live_board.h"

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
    case State::kOutside: return Effect::kBroken;
    case State::kEscape: return after_escape(c);
    case State::kControl: return in_control(c);
    case State::kCharset:
      if (is_foreign(c)) return finish(Effect::kBroken);
      // ECMA-35: intermediate bytes are 0x20 to 0x2f, and the first byte above them ends the sequence.
      return c < 0x30 ? Effect::kMore : finish(Effect::kIgnored);
    case State::kString:
    case State::kStringEscape: return in_string(c);
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
  // ECMA-48: OSC, DCS, SOS, PM and APC carry a string, which ends with ST (ESC \); xterm also ends an OSC
  // with BEL.
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
  // ECMA-48: parameters and intermediate bytes lie below 0x40, the final byte at or above it. A sequence that
  // is too long is read to its end all the same.
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
    case 'A': return Effect::kUp;
    case 'B': return Effect::kDown;
    case 'E': return Effect::kDownToStart;
    case 'F': return Effect::kUpToStart;
    // Only column 1 is the start of a row. Rows have no columns here (decision 0011).
    case 'G':
    case '`': return count_ == 1 ? Effect::kStartOfRow : Effect::kIgnored;
    case 'K': return given == 0 ? Effect::kEraseToEnd : Effect::kEraseRow;
    case 'J': return given == 0 ? Effect::kEraseBelow : Effect::kEraseScreen;
    default: return Effect::kIgnored;
  }
}

namespace {

// A buffer that held a huge line is freed, since each stream of every rank has one.
constexpr std::size_t kKeptCapacity = 64 * 1024;
constexpr std::size_t kMaxColour = 256;
// A longer row is no frame of a bar. Its text need not be kept when it is redrawn.
constexpr std::size_t kMaxBarFrame = 4 * 1024;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(' ') == std::string_view::npos;
}

/// True if the text has more than spaces and colors.
bool says_something(std::string_view text) {
  while (!text.empty()) {
    const std::size_t colour = text.front() == '\x1b' ? text.find('m') : std::string_view::npos;
    if (colour == std::string_view::npos && text.front() != ' ') return true;
    text.remove_prefix(colour == std::string_view::npos ? 1 : colour + 1);
  }
  return false;
}

/// Returns the bytes of the color sequence that `text` ends with, or 0. It searches back only as far as a
/// sequence can reach. A row of a million letters and as many backspaces therefore takes only a million small
/// steps.
std::size_t colour_at_end(std::string_view text) {
  if (text.empty() || text.back() != 'm') return 0;
  const std::string_view end = text.substr(text.size() - std::min(text.size(), EscapeReader::kMaxBytes));
  const std::size_t escape = end.rfind('\x1b');
  if (escape == std::string_view::npos ||
      end.find_first_not_of("[0123456789;:", escape + 1) != end.size() - 1) {
    return 0;
  }
  return end.size() - escape;
}

}  // namespace

/// Only a row that was redrawn in the same form is certainly a bar. A log line may replace a bar, too.
bool OpenRows::OpenRow::is_bar() const {
  return rewritten && !log && is_same_bar(previous, text);
}

void OpenRows::OpenRow::keep_as_previous() {
  previous.swap(text);
  if (previous.size() > kMaxBarFrame) previous = std::string();
}

bool OpenRows::idle() const {
  return rows_.size() == 1 && rows_[0].text.empty() && !rows_[0].stays && !rows_[0].erased && !returned_ &&
         back_ == 0 && colour_.empty() && !hidden_;
}

std::size_t OpenRows::bytes() const {
  std::size_t sum = 0;
  for (const OpenRow& row : rows_)
    sum += row.text.size() + row.previous.size();
  return sum;
}

bool OpenRows::live(std::string& rows) const {
  std::size_t count = rows_.size();
  while (count > 0 && trimmed(rows_[count - 1].text).empty())
    --count;
  bool rewritten = count > 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) rows += '\n';
    rows += trimmed(rows_[i].text);
    rewritten = rewritten || rows_[i].rewritten;
  }
  return rewritten;
}

void OpenRows::text(std::string_view part, const LineSink& sink) {
  if (part.empty()) return;
  begin_text(sink);
  // Text that a CR discarded is already gone, and the limit applies to the rest. The result therefore does
  // not depend on the chunks.
  while (row().text.size() + part.size() > kMaxLine) {
    finish_above(row_, sink);
    std::string& text = row().text;
    const std::size_t room = text.size() < kMaxLine ? kMaxLine - text.size() : 0;
    text += part.substr(0, room);
    text += kSplitMark;
    sink.line(text);
    text.clear();
    part.remove_prefix(room);
  }
  row().text += part;
  if (rows_.size() > 1) bound(sink);
}

void OpenRows::begin_text(const LineSink& sink) {
  DDP_REQUIRE(row_ < rows_.size(), row_, rows_.size());
  ++revision_;
  drew_ = std::exchange(moved_up_, false) || drew_;
  if (std::exchange(above_, false)) {  // a log line behind a bar has ended; this is the next
    rows_.insert(rows_.begin() + static_cast<std::ptrdiff_t>(row_), OpenRow{});
    row().log = true;
  } else if (row().log && returned_ && row_ + 1 < rows_.size()) {  // the bar returns to the log line's row
    rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(row_) + 1);
    row().log = false;
  }
  if (at_start_) {
    const bool redrawn = !is_blank(row().text) || row().erased;
    // The row was redrawn without moving up, so no bar is above.
    if (redrawn && reach_ == 0 && row_ + 1 == rows_.size()) finish_above(row_, sink);
    begin_row(row());
  }
  at_start_ = returned_ = false;
  if (back_ > 0) back_up(row());
  row().text += std::exchange(colour_, std::string());
}

/// Starts the first text in a row, or the first after a CR.
void OpenRows::begin_row(OpenRow& row) {
  if (!is_blank(row.text)) {
    row.stays = row.rewritten = true;
    row.keep_as_previous();
  } else if (row.erased) {
    // The row was erased and is written by a bar, or by a log line that made room for itself. The line must
    // wait only if bars are above it.
    row.stays = reach_ > 0;
    row.rewritten = true;
  } else if (!row.text.empty()) {
    row.stays = false;  // erased with spaces: tqdm.write
  } else if (!row.made_up) {
    row.stays = returned_;
    row.rewritten = row.rewritten || returned_;
  }
  row.text.clear();
  row.erased = row.made_up = false;
}

void OpenRows::back_up(OpenRow& row) {
  for (; back_ > 0 && !row.text.empty(); --back_) {
    if (const std::size_t colour = colour_at_end(row.text); colour > 0) {
      row.text.resize(row.text.size() - colour);  // a color has no width
      ++back_;
      continue;
    }
    // A character of UTF-8 is one step of the cursor: its continuation bytes go with it.
    while (!row.text.empty() && (static_cast<unsigned char>(row.text.back()) & 0xc0) == 0x80)
      row.text.pop_back();
    if (!row.text.empty()) row.text.pop_back();
    row.rewritten = true;
  }
  back_ = 0;
}

void OpenRows::carriage_return() {
  ++revision_;
  at_start_ = returned_ = true;
  above_ = false;
  back_ = 0;
}

void OpenRows::line_feed(const LineSink& sink) {
  DDP_REQUIRE(row_ < rows_.size(), row_, rows_.size());
  ++revision_;
  ++line_feeds_;
  back_ = 0;
  row().text += std::exchange(colour_, std::string());
  returned_ = moved_up_ = false;
  // A bar was redrawn from a higher row down to here; rows above that row will not be redrawn.
  if (std::exchange(drew_, false)) finish_beyond_reach(sink);
  if (split_log(sink)) return;
  at_start_ = true;
  if (std::exchange(above_, false) && rows_.size() == 1) {
    above_ = true;
    return sink.line({});
  }
  const bool gap = row().text.empty() && row_ > 0;  // the cursor is on its way to a lower bar
  if (row().stays || hidden_ || gap) {
    row().ended = true;
    if (++row_ == rows_.size()) rows_.emplace_back();
    return bound(sink);
  }
  above_ = row().log;
  finish_above(row_ + 1, sink);
  if (rows_.size() == 1 && is_blank(rows_[0].text)) {
    rows_[0] = OpenRow{};
    reach_ = 0;
  }
}

/// Moves a log line that was written right behind a bar above the bar. The LF belongs to the log line, so the
/// bar's row stays.
bool OpenRows::split_log(const LineSink& sink) {
  if (!row().stays || row().previous.empty() || at_start_) return false;
  const std::size_t frame = frame_length(row().previous, row().text);
  if (frame == 0 || frame >= row().text.size()) return false;
  const std::string log = row().text.substr(frame);
  // A log line has visible text. A word after a space belongs to the bar: "100% complete".
  if (!says_something(log) || log.front() == ' ') return false;
  row().text.resize(frame);
  finish_above(row_, sink);
  sink.line(log);
  at_start_ = above_ = true;
  return true;
}

void OpenRows::escape(EscapeReader::Effect effect, const EscapeReader& sequence, const LineSink& sink) {
  using Effect = EscapeReader::Effect;
  ++revision_;
  switch (effect) {
    case Effect::kMore:
    case Effect::kBroken:
    case Effect::kIgnored: return;
    case Effect::kColour:
      if (colour_.size() + sequence.bytes().size() > kMaxColour) colour_.clear();
      colour_ += sequence.bytes();
      return;
    case Effect::kUpToStart: carriage_return(); return up(sequence.count());
    case Effect::kUp: return up(sequence.count());
    case Effect::kDownToStart: carriage_return(); return down(sequence.count(), sink);
    case Effect::kDown: return down(sequence.count(), sink);
    case Effect::kStartOfRow: return carriage_return();
    case Effect::kEraseRow: return erase_row();
    case Effect::kEraseToEnd:
      if (at_start_) return erase_row();
      return back_up(row());
    case Effect::kEraseBelow: return erase_below();
    case Effect::kEraseScreen:  // "clear": the erased rows were output all the same
      return finish_rows(sink);
    case Effect::kHideCursor: hidden_ = true; return;
    case Effect::kShowCursor:
      hidden_ = false;
      reach_ = 0;
      return finish_above(row_, sink);
  }
}

void OpenRows::up(int count) {
  const std::size_t wanted = std::min(static_cast<std::size_t>(count), kMaxRows - 1);
  above_ = false;
  if (wanted > row_) {
    // The program moves above what is open: it will redraw rows that were taken for finished lines. They stay
    // lines, and new rows stand for them.
    const std::size_t missing = std::min(wanted - row_, kMaxRows - rows_.size());
    OpenRow made_up;
    made_up.made_up = true;
    rows_.insert(rows_.begin(), missing, made_up);
    row_ += missing;
  }
  const std::size_t from = row_;
  row_ -= std::min(wanted, row_);
  for (std::size_t i = row_; i <= from; ++i)
    rows_[i].stays = rows_[i].rewritten = true;
  reach_ = std::max(reach_, rows_.size() - 1 - row_);
  moved_up_ = true;
}

void OpenRows::down(int count, const LineSink& sink) {
  above_ = moved_up_ = drew_ = false;
  // bound() finishes the rows above, so the cursor may first be below the limit.
  row_ = std::min(row_ + static_cast<std::size_t>(count), 2 * kMaxRows);
  if (row_ >= rows_.size()) rows_.resize(row_ + 1);
  bound(sink);
}

void OpenRows::erase_row() {
  OpenRow& erased = row();
  if (is_blank(erased.text)) return;
  erased.erased = true;
  erased.keep_as_previous();
  erased.text.clear();
}

void OpenRows::erase_below() {
  rows_.resize(row_ + 1);
  if (at_start_) erase_row();
}

void OpenRows::finish_idle(bool long_quiet, const LineSink& sink) {
  if (reach_ > 0) {
    finish_beyond_reach(sink);
  } else if (!hidden_ || long_quiet) {
    if (row_ > 0) ++revision_;
    finish_above(row_, sink);
  }
}

void OpenRows::finish(const LineSink& sink) {
  if (!row().text.empty()) row().text += colour_;
  split_log(sink);
  finish_rows(sink);
  // The counters go on: LiveBoard compares them, and a new object would repeat old values.
  const std::uint64_t revision = revision_ + 1;
  const std::uint64_t line_feeds = line_feeds_ + 1;
  *this = OpenRows();
  revision_ = revision;
  line_feeds_ = line_feeds;
}

/// Finishes all rows, except empty ones at the end without a line end.
void OpenRows::finish_rows(const LineSink& sink) {
  const auto is_nothing = [](const OpenRow& row) {
    return row.stays ? is_blank(row.text) : row.text.empty() && !row.ended;
  };
  std::size_t count = rows_.size();
  while (count > 0 && is_nothing(rows_[count - 1]))
    --count;
  finish_above(count, sink);
  rows_.assign(1, OpenRow{});
  row_ = 0;
  above_ = false;
}

/// Finishes the first `count` rows. At least one row remains, an empty one if necessary.
void OpenRows::finish_above(std::size_t count, const LineSink& sink) {
  if (count == 0) return;
  for (std::size_t i = 0; i < count; ++i) {
    const OpenRow& done = rows_[i];
    if (done.made_up && is_blank(done.text)) continue;
    if (!sink.bar_ends && done.is_bar()) continue;
    sink.line(done.stays ? trimmed(done.text) : std::string_view(done.text));
  }
  if (count < rows_.size()) {
    rows_.erase(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(count));
    row_ -= std::min(row_, count);
    return;
  }
  rows_.resize(1);
  std::string kept = std::move(rows_[0].text);
  kept.clear();
  if (kept.capacity() > kKeptCapacity) kept = std::string();
  rows_[0] = OpenRow{};
  rows_[0].text = std::move(kept);
  row_ = 0;
}

/// Finishes the rows that the cursor never reached from the lowest one.
void OpenRows::finish_beyond_reach(const LineSink& sink) {
  const std::size_t lowest = rows_.size() - 1;
  if (lowest > reach_) finish_above(std::min(lowest - reach_, row_), sink);
}

void OpenRows::bound(const LineSink& sink) {
  // The oldest row goes first, as a line. The one with the cursor stays, whatever its size; text() bounds it.
  while (rows_.size() > kMaxRows || (rows_.size() > 1 && bytes() > kMaxLine))
    finish_above(1, sink);
  DDP_REQUIRE(row_ < rows_.size(), row_, rows_.size());
}

}  // namespace ddp::launcher
