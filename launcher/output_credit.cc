#include "launcher/output_credit.h"

#include <algorithm>
#include <limits>

namespace ddp::launcher {

void OutputCredit::start(std::size_t window) {
  if (!lifted_) room_ = {window, window};
}

void OutputCredit::give(std::uint8_t stream, std::size_t bytes) {
  if (!lifted_ && (stream == 1 || stream == 2)) room_[stream - 1u] += bytes;
}

void OutputCredit::spend(std::uint8_t stream, std::size_t bytes) {
  std::size_t& room = room_[stream == 2 ? 1 : 0];
  if (!lifted_) room -= std::min(room, bytes);
}

std::size_t OutputCredit::room(std::uint8_t stream) const {
  const std::size_t room = room_[stream == 2 ? 1 : 0];
  return room < kLeastRead ? 0 : room;
}

void OutputCredit::lift() {
  lifted_ = true;
  room_.fill(std::numeric_limits<std::size_t>::max());
}

std::span<const OutputTurns::Turn> OutputTurns::round(std::span<const std::uint32_t> ready,
                                                      std::size_t room) {
  turns_.clear();
  if (ready.empty()) return turns_;
  const std::size_t share = std::clamp(room / ready.size(), kLeast, kMost);
  std::size_t at =
      static_cast<std::size_t>(std::lower_bound(ready.begin(), ready.end(), next_) - ready.begin());
  for (std::size_t count = 0; count < ready.size() && room > 0; ++count, ++at) {
    if (at == ready.size()) at = 0;
    turns_.push_back({ready[at], std::min(share, room)});
    room -= turns_.back().bytes;
    next_ = ready[at] + 1;
  }
  return turns_;
}

}  // namespace ddp::launcher
