#include "launcher/line_fold.h"

#include <algorithm>

namespace ddp::launcher {
namespace {

/// What an entry costs besides its text.
constexpr std::size_t kEntryCost = 256;

}  // namespace

void LineFold::add(int rank, std::uint8_t stream, std::string_view text, std::string_view stamp, Time now,
                   const Sink& sink) {
  tick(now, sink);
  std::uint64_t& next = next_[rank];
  // The earliest alike entry behind all lines of this rank: it has none of this rank's, and joining it
  // overtakes none.
  if (const auto alike = alike_.find(Key{stream, text}); alike != alike_.end()) {
    const auto found = std::lower_bound(alike->second.begin(), alike->second.end(), next);
    if (found != alike->second.end()) {
      queue_[static_cast<std::size_t>(*found - front_)].ranks.push_back(rank);
      held_ += sizeof(int);
      next = *found + 1;
      emit_complete(sink);
      return;
    }
  }
  queue_.push_back({stream, std::string(text), std::string(stamp), {rank}, now});
  const std::uint64_t number = front_ + queue_.size() - 1;
  alike_[Key{stream, queue_.back().text}].push_back(number);
  held_ += text.size() + kEntryCost;
  next = number + 1;
  emit_complete(sink);
  while (held_ > kMaxHeld)
    emit_front(sink);
}

void LineFold::tick(Time now, const Sink& sink) {
  while (!queue_.empty() && now - queue_.front().first >= kWindow)
    emit_front(sink);
}

void LineFold::flush(const Sink& sink) {
  while (!queue_.empty())
    emit_front(sink);
}

std::optional<LineFold::Time> LineFold::deadline() const {
  if (queue_.empty()) return std::nullopt;
  return queue_.front().first + kWindow;
}

/// From the front only: behind it are lines that must not come out before it.
void LineFold::emit_complete(const Sink& sink) {
  while (!queue_.empty() && queue_.front().ranks.size() >= everyone_)
    emit_front(sink);
}

void LineFold::emit_front(const Sink& sink) {
  Entry& entry = queue_.front();
  std::sort(entry.ranks.begin(), entry.ranks.end());
  sink({entry.stream, entry.text, entry.ranks, entry.stamp});
  held_ -= entry.text.size() + kEntryCost + (entry.ranks.size() - 1) * sizeof(int);
  const auto alike = alike_.find(Key{entry.stream, entry.text});
  alike->second.pop_front();
  if (alike->second.empty()) {
    alike_.erase(alike);
  } else {
    // The key's text lives in the entry that goes; the next alike one has the same.
    auto node = alike_.extract(alike);
    node.key().text = queue_[static_cast<std::size_t>(node.mapped().front() - front_)].text;
    alike_.insert(std::move(node));
  }
  queue_.pop_front();
  ++front_;
}

}  // namespace ddp::launcher
