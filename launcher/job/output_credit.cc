#include "launcher/job/output_credit.h"

#include <algorithm>
#include <limits>

#include "base/result.h"

namespace ddp::launcher {

void OutputCredit::start(std::size_t window) {
  room_.fill(static_cast<std::ptrdiff_t>(window));
}

void OutputCredit::add(std::uint8_t stream, std::size_t bytes) {
  if (stream == 1 || stream == 2) room_[stream - 1u] += static_cast<std::ptrdiff_t>(bytes);
}

void OutputCredit::spend(std::uint8_t stream, std::size_t bytes) {
  DDP_REQUIRE(stream == 1 || stream == 2, stream);
  room_[stream == 2 ? 1 : 0] -= static_cast<std::ptrdiff_t>(bytes);
}

std::size_t OutputCredit::room(std::uint8_t stream) const {
  if (lifted_) return std::numeric_limits<std::size_t>::max();
  const std::ptrdiff_t room = room_[stream == 2 ? 1 : 0];
  // The room may be negative: at a stop more is sent than there is credit for (decision 0009).
  return room < static_cast<std::ptrdiff_t>(kLeastRead) ? 0 : static_cast<std::size_t>(room);
}

std::span<const OutputTurns::Turn> OutputTurns::round(std::span<const Ready> ready, std::size_t room) {
  turns_.clear();
  // Quiet ranks first and completely, so that a line of one does not wait behind the megabytes of another.
  give_turns(ready, false, next_quiet_, room);
  give_turns(ready, true, next_loud_, room);
  DDP_REQUIRE(turns_.size() <= ready.size(), turns_.size(), ready.size());  // one for each pipe
  return turns_;
}

void OutputTurns::give_turns(std::span<const Ready> ready, bool loud, std::uint32_t& next,
                             std::size_t& room) {
  // Continues behind the rank that had the last turn; else low ranks would always be first, and high ones
  // last.
  const auto first = std::lower_bound(ready.begin(), ready.end(), next,
                                      [](const Ready& one, std::uint32_t who) { return one.who < who; });
  auto at = static_cast<std::size_t>(first - ready.begin());
  for (std::size_t count = 0; count < ready.size() && room > 0; ++count, ++at) {
    if (at == ready.size()) at = 0;
    const Ready& one = ready[at];
    if ((one.bytes > kLittle) != loud) continue;
    // The remaining room is too small to wake a worker.
    if (loud && room < kLeastRead && !turns_.empty()) return;
    const std::size_t bytes = std::min({std::max<std::size_t>(one.bytes, 1), kMost, room});
    turns_.push_back({one.who, bytes});
    room -= bytes;
    next = one.who + 1;
  }
}

}  // namespace ddp::launcher
