#include "launcher/lines/live_board.h"

#include <algorithm>

#include "base/result.h"

namespace ddp::launcher {

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
    entry.lines.settle(quiet >= kLongQuiet, lines);
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
