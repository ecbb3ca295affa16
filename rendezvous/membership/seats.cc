#include "rendezvous/membership/seats.h"

#include <algorithm>
#include <unordered_map>

namespace ddp::rendezvous {

void Seats::fill(const std::vector<Candidate>& candidates) {
  const bool first_time = seats_.empty();
  std::unordered_map<HostNumber, std::size_t> waiting;  // host → its index, of those without a seat
  for (std::size_t i = 0; i < candidates.size(); ++i)
    waiting.emplace(candidates[i].host, i);
  const auto take = [&](Seat& seat, HostNumber host) {
    seat.owner = host;
    seat.taken = true;
    ++filled_;
    waiting.erase(host);
  };
  const auto owner_comes = [&](const Seat& seat) {
    const auto found = waiting.find(seat.owner);
    return found != waiting.end() && candidates[found->second].slots >= seat.size;
  };

  // Holders before those who return: a host may have left one seat and hold another.
  filled_ = 0;
  for (const bool held : {true, false}) {
    for (Seat& seat : seats_) {
      if (seat.taken != held) continue;
      if (held) seat.taken = false;
      if (filled_ < max_nodes_ && owner_comes(seat)) take(seat, seat.owner);
    }
  }
  for (Seat& seat : seats_) {
    if (seat.taken || filled_ >= max_nodes_ || waiting.empty()) continue;
    const auto fits = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) {
      return c.slots >= seat.size && waiting.contains(c.host);
    });
    if (fits != candidates.end()) take(seat, fits->host);
  }
  if (fixed_ && !first_time) return;
  for (const Candidate& candidate : candidates) {
    if (filled_ >= max_nodes_ || waiting.empty()) break;
    if (!waiting.contains(candidate.host)) continue;
    seats_.push_back({candidate.host, candidate.slots, false});
    take(seats_.back(), candidate.host);
  }
}

World Seats::world() const {
  World world;
  world.places.reserve(static_cast<std::size_t>(filled_));
  for (const Seat& seat : seats_) {
    if (!seat.taken) continue;
    world.places.push_back({seat.owner, static_cast<int>(world.places.size()), world.world_size, seat.size});
    world.world_size += seat.size;
  }
  return world;
}

}  // namespace ddp::rendezvous
