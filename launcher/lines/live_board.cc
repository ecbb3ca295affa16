// What a bar is (numbers may change, words may not); BarFold, which folds the bars of many ranks into a few
// rows; and LiveBoard, which decides when rows are shown.
#include "launcher/lines/live_board.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/result.h"
#include "base/text.h"

namespace ddp::launcher {
namespace {

enum class Kind { kNumber, kFill, kExact };

// Times and rates are numbers too: 00:05, 1.5, and "?" for an unknown value.
Kind kind_of(char c) {
  if ((c >= '0' && c <= '9') || c == '.' || c == ':' || c == '?') return Kind::kNumber;
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x80 || c == ' ' || c == '#' || c == '=' || c == '-' || c == '>' || c == '*')
    return Kind::kFill;
  return Kind::kExact;
}

std::size_t run_length(std::string_view text, Kind kind) {
  std::size_t length = 0;
  while (length < text.size() && kind_of(text[length]) == kind)
    ++length;
  return length;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Returns the number that ends before `end`, from at most 18 characters.
std::optional<double> number_before(std::string_view text, std::size_t end) {
  std::size_t begin = end;
  while (begin > 0 && end - begin < 18 && (is_digit(text[begin - 1]) || text[begin - 1] == '.'))
    --begin;
  double value = 0;
  double unit = 0;
  bool digits = false;
  for (const char c : text.substr(begin, end - begin)) {
    if (c == '.') {
      if (unit != 0) return {};
      unit = 1;
      continue;
    }
    digits = true;
    if (unit != 0) unit /= 10;
    value = unit != 0 ? value + (c - '0') * unit : value * 10 + (c - '0');
  }
  if (!digits) return {};
  return value;
}

/// Returns how many bytes at the start of `row` have the form of the frame `before`: numbers and runs of fill
/// characters may differ. 0: none, or the frame has no number, since a word that was printed twice is no bar.
std::size_t match_frame(std::string_view before, std::string_view row) {
  std::string_view pattern = before;
  std::string_view rest = row;
  bool numbers = false;
  while (!pattern.empty()) {
    // Walks both texts at once. Numbers and fill (the bar itself, padding) may have any length, everything
    // else must be equal.
    const Kind kind = kind_of(pattern.front());
    if (kind == Kind::kExact) {
      if (rest.empty() || rest.front() != pattern.front()) return 0;
      pattern.remove_prefix(1);
      rest.remove_prefix(1);
      continue;
    }
    const std::size_t length = run_length(rest, kind);
    // A run of fill may be empty: " 9%" and "10%".
    if (length == 0 && kind == Kind::kNumber) return 0;
    numbers = numbers || rest.substr(0, length).find_first_of("0123456789?") != std::string_view::npos;
    pattern.remove_prefix(run_length(pattern, kind));
    rest.remove_prefix(length);
  }
  return numbers ? row.size() - rest.size() : 0;
}

std::string percent(double value) {
  return std::to_string(static_cast<int>(std::floor(value)));
}

std::string spread_text(std::size_t ranks, std::optional<double> least, std::optional<double> most) {
  std::string text = "  [" + std::to_string(ranks) + " ranks";
  if (least) {
    text += ": " + percent(*least);
    if (percent(*least) != percent(*most)) text += "-" + percent(*most);
    text += "%";
  }
  return text + "]";
}

}  // namespace

std::string without_colours(std::string_view row) {
  std::string text;
  for (std::size_t at = 0; at < row.size();) {
    const std::size_t begin = std::min(row.find('\x1b', at), row.size());
    text += row.substr(at, begin - at);
    const std::size_t end = row.find('m', begin);
    at = end == std::string_view::npos ? begin : end + 1;
    if (end != std::string_view::npos || begin == row.size()) continue;
    return text += row.substr(begin);
  }
  return text;
}

std::string_view trimmed(std::string_view row) {
  const std::size_t end = row.find_last_not_of(' ');
  return row.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

std::size_t frame_length(std::string_view previous, std::string_view row) {
  const std::string_view before = trimmed(previous);
  // If a frame ends in a number or a fill run, the following text may continue it, so no border is visible.
  if (before.empty() || kind_of(before.back()) != Kind::kExact) return 0;
  std::size_t frame = match_frame(before, row);
  if (frame == 0) return 0;
  // A shorter frame is padded to the width of the previous one.
  const std::size_t shown = count_characters(row.substr(0, frame));
  const std::size_t full = count_characters(before);
  for (std::size_t pad = full > shown ? full - shown : 0; pad > 0 && frame < row.size() && row[frame] == ' ';
       --pad)
    ++frame;
  return frame;
}

bool is_same_bar(std::string_view previous, std::string_view row) {
  // A bar changes its colours when it is full.
  const std::string all_before = without_colours(previous);
  const std::string all = without_colours(row);
  const std::string_view before = trimmed(all_before);
  const std::string_view frame = trimmed(all);
  return !frame.empty() && match_frame(before, frame) == frame.size();
}

std::optional<double> progress_of(std::string_view row) {
  for (std::size_t at = row.find('%'); at != std::string_view::npos; at = row.find('%', at + 1)) {
    if (const auto value = number_before(row, at); value && *value <= 100) return value;
  }
  for (std::size_t at = row.find('/'); at != std::string_view::npos; at = row.find('/', at + 1)) {
    const std::size_t end = std::min(row.find_first_not_of("0123456789", at + 1), row.size());
    const std::size_t begin = row.find_last_not_of("0123456789", at - 1) + 1;
    if (at == 0 || (end < row.size() && row[end] == '/') || (begin > 0 && row[begin - 1] == '/'))
      continue;  // a path or a date
    const auto done = number_before(row, at);
    const auto all = number_before(row.substr(at + 1), end - at - 1);
    if (done && all && *all > 0 && *done <= *all) return 100 * *done / *all;
  }
  return {};
}

void BarFold::set(std::uint32_t rank, int node, std::string_view label, std::string_view rows) {
  if (rows.empty() || bars_ == Bars::kOff) {
    ranks_.erase(rank);
    return;
  }
  Entry& entry = ranks_[rank];
  entry.node = node;
  entry.label = label;
  entry.rows.clear();
  entry.progress.clear();
  for (std::size_t at = 0; at <= rows.size();) {
    const std::size_t end = std::min(rows.find('\n', at), rows.size());
    entry.rows.emplace_back(rows.substr(at, end - at));
    entry.progress.push_back(progress_of(entry.rows.back()));
    at = end + 1;
  }
}

void BarFold::append_folded(const Members& members, std::vector<LiveRow>& out) {
  const Entry& first = *members.front();
  for (std::size_t i = 0; i < first.rows.size(); ++i) {
    std::optional<double> least = first.progress[i];
    std::optional<double> most = least;
    for (const Entry* member : members) {
      if (!least || i >= member->rows.size() || !member->progress[i]) continue;
      least = std::min(*least, *member->progress[i]);
      most = std::max(*most, *member->progress[i]);
    }
    LiveRow row{first.label + first.rows[i], {}};
    if (members.size() > 1 && (least || i == 0)) row.suffix = spread_text(members.size(), least, most);
    out.push_back(std::move(row));
  }
}

bool BarFold::has_bar() const {
  return std::ranges::any_of(ranks_, [](const auto& rank) {
    return std::ranges::any_of(rank.second.progress, [](const auto& known) { return known.has_value(); });
  });
}

std::vector<LiveRow> BarFold::rows() const {
  std::vector<LiveRow> out;
  if (ranks_.empty()) return out;
  std::map<int, Members> groups;
  for (const auto& [rank, entry] : ranks_) {
    const int group = bars_ == Bars::kAll ? static_cast<int>(rank) : bars_ == Bars::kNode ? entry.node : 0;
    groups[group].push_back(&entry);
  }
  for (const auto& [group, members] : groups)
    append_folded(members, out);
  return out;
}

std::vector<LiveRow> LiveBoard::rows(int stream) const {
  const bool is_first = stream == 1;
  std::vector<LiveRow> rows = sides_[is_first ? 0 : 1].fold.rows();
  // Stderr's rows are below those of stdout.
  const bool is_last = !is_first || !sides_[1].has_view || sides_[1].fold.empty();
  const bool has_bar = std::ranges::any_of(sides_, [](const Side& each) { return each.fold.has_bar(); });
  if (!footer_.empty() && !rows.empty() && is_last && has_bar) rows.push_back({footer_, {}, true});
  return rows;
}

void LiveBoard::set_footer(std::string text) {
  if (text == footer_) return;
  footer_ = std::move(text);
  for (Side& each : sides_)
    each.rows_changed = each.rows_changed || !each.fold.empty();
}

/// The time of a change is that of the next tick, so that no clock is read for each piece of output.
void LiveBoard::note(Entry& entry) {
  entry.seen_ = entry.lines.revision();
  entry.touched_ = true;
  if (!std::exchange(entry.watched_, true)) {
    watched_.push_back(&entry);
    entry.line_ = 0;
  }
  // The entry's rows became lines, which are shown at once. The rows must not be shown as well.
  if (entry.on_board_ && entry.lines.held() == 0) post(entry, {});
}

void LiveBoard::post(Entry& entry, const std::string& rows) {
  if (rows.empty() && !entry.on_board_) return;
  Side& mine = side(entry.stream);
  mine.fold.set(entry.rank, entry.node, entry.lines.label().text(), rows);
  mine.rows_changed = mine.unsampled = true;
  // The footer moves to the other stream when this one has no rows any more.
  if (!footer_.empty()) sides_[0].rows_changed = true;
  entry.on_board_ = !rows.empty();
}

/// Returns false when the entry can change only by new output.
bool LiveBoard::take_sample(Entry& entry, Time now, std::string& lines) {
  const bool moved = std::exchange(entry.touched_, false);
  if (moved) {
    entry.since_ = now;
    entry.settled_ = false;
  }
  if (entry.line_ != entry.lines.line_feeds() + 1) entry.line_since_ = now;
  entry.line_ = entry.lines.held() > 0 ? entry.lines.line_feeds() + 1 : 0;
  const Time quiet = now - entry.since_;
  const bool was_settled = entry.settled_;
  if (quiet >= kQuiet) {
    entry.lines.finish_idle(quiet >= kLongQuiet, lines);
    entry.settled_ = true;
    entry.seen_ = entry.lines.revision();
  }
  if (moved || entry.settled_ != was_settled) {
    std::string rows;
    const bool bar = entry.lines.live(rows);
    // An unfinished line is usually finished soon. If it stays, it is a prompt or a slow "load...".
    const bool stands = now - entry.line_since_ >= kQuiet;
    if (!bar && (!stands || !side(entry.stream).has_view)) rows.clear();
    post(entry, rows);
  }
  return quiet < kLongQuiet && (entry.lines.held() > 0 || entry.on_board_);
}

void LiveBoard::tick(Time now, std::array<std::string, 2>& lines) {
  last_tick_ = now;
  const auto gone = std::remove_if(watched_.begin(), watched_.end(), [&](Entry* entry) {
    DDP_REQUIRE(entry->watched_, entry->rank, entry->stream);
    entry->watched_ = take_sample(*entry, now, lines[static_cast<std::size_t>(entry->stream - 1)]);
    return !entry->watched_;
  });
  watched_.erase(gone, watched_.end());
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    if (!sides_[i].has_view) sample(sides_[i], now, lines[i]);
  }
}

void LiveBoard::sample(Side& side, Time now, std::string& lines) const {
  if (!side.sample_at) {
    if (!side.fold.empty()) side.sample_at = now + kSample;
    return;
  }
  // Without a terminal the bars are shown as lines, one for each interval, and none if nothing has moved.
  if (now < *side.sample_at || !side.unsampled) return;
  side.unsampled = false;
  side.sample_at.reset();
  if (side.fold.empty()) return;
  side.sample_at = now + kSample;
  for (const LiveRow& row : side.fold.rows())
    lines += row.text + row.suffix + "\n";
}

std::optional<LiveBoard::Time> LiveBoard::due() const {
  if (!watched_.empty()) return last_tick_ + kFrame;
  std::optional<Time> next;
  for (const Side& side : sides_) {
    if (side.has_view || !side.unsampled || !side.sample_at) continue;
    next = next ? std::min(*next, *side.sample_at) : *side.sample_at;
  }
  return next;
}

void LiveBoard::clear() {
  watched_.clear();
  for (Side& side : sides_) {
    side.rows_changed = side.rows_changed || !side.fold.empty();
    side.fold.clear();
    side.unsampled = false;
    side.sample_at.reset();
  }
}

}  // namespace ddp::launcher
