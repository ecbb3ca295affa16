#include "launcher/link_protocol/join_table.h"

#include <utility>

namespace ddp::launcher {
namespace {

JoinAnswer refused(JoinRefusal why, std::string text) {
  JoinAnswer answer;
  answer.refusal = why;
  answer.text = std::move(text);
  return answer;
}

}  // namespace

/// What is wrong with the request itself.
std::optional<JoinAnswer> JoinTable::unfit(const JoinRequest& request) const {
  if (request.protocol != mine_.protocol || request.version != mine_.version) {
    return refused(JoinRefusal::kOtherVersion, "the master is ddplaunch " + mine_.version + " (protocol " +
                                                   std::to_string(mine_.protocol) + "), this node's is " +
                                                   request.version + " (protocol " +
                                                   std::to_string(request.protocol) +
                                                   "); install the same version on all nodes");
  }
  if (request.nodes != 0 && request.nodes != mine_.nodes) {
    return refused(JoinRefusal::kOtherSize,
                   "the job has " + std::to_string(mine_.nodes) + " nodes at its master, and " +
                       std::to_string(request.nodes) +
                       " for this node; give the same --nnodes (and --spares) to all nodes");
  }
  if (!request.rank) return std::nullopt;
  if (*request.rank >= mine_.nodes) {
    return refused(JoinRefusal::kOutOfRange, "node rank " + std::to_string(*request.rank) +
                                                 " is not one of 0 … " + std::to_string(mine_.nodes - 1) +
                                                 "; the job has " + std::to_string(mine_.nodes) + " nodes");
  }
  if (*request.rank == 0) {
    return refused(JoinRefusal::kTaken,
                   "node rank 0 is the master's own node; give each node its own --node-rank");
  }
  return std::nullopt;
}

/// Whether the holder keeps its place against `peer`.
bool JoinTable::holds(const Place& place, const Peer& peer, Time now) const {
  if (!place.live) return false;
  // One that waits has no heartbeats: its own machine's next process takes its place.
  if (place.waiting) return place.holder.name != peer.name;
  return now - place.heard < kFresh;
}

std::vector<int> JoinTable::about(const JoinRequest& request, const Peer& peer) const {
  std::vector<int> ranks;
  if (request.rank) {
    if (*request.rank > 0 && *request.rank < mine_.nodes) ranks.push_back(*request.rank);
  } else if (unused_ < places_.size()) {
    const auto had = had_.find(peer.name);
    if (had != had_.end()) ranks.assign(had->second.begin(), had->second.end());
  } else {
    for (int rank = 1; rank < mine_.nodes; ++rank)
      ranks.push_back(rank);
  }
  return ranks;
}

std::optional<int> JoinTable::free_place(const Peer& peer, Time now) const {
  // Processes of one machine may be several nodes: one that waits is not another's former self.
  const auto is_free = [&](int rank) {
    const Place& place = places_[static_cast<std::size_t>(rank)];
    return place.life != 0 && !place.waiting && !holds(place, peer, now);
  };
  if (const auto had = had_.find(peer.name); had != had_.end()) {
    for (const int rank : had->second) {
      if (places_[static_cast<std::size_t>(rank)].holder.name == peer.name && is_free(rank)) return rank;
    }
  }
  if (unused_ < places_.size()) return static_cast<int>(unused_);
  for (int rank = 1; rank < mine_.nodes; ++rank) {
    if (is_free(rank)) return rank;
  }
  return std::nullopt;
}

JoinTable::Decision JoinTable::join(const JoinRequest& request, const Peer& peer, Time now) {
  Decision decision;
  if (auto refusal = unfit(request)) {
    decision.answer = std::move(*refusal);
    return decision;
  }
  const auto rank = request.rank ? request.rank : free_place(peer, now);
  if (!rank) {
    decision.answer = refused(JoinRefusal::kFull, "all " + std::to_string(mine_.nodes) +
                                                      " nodes of the job are there already; start no more "
                                                      "than --nnodes says");
    return decision;
  }
  Place& place = places_[static_cast<std::size_t>(*rank)];
  if (holds(place, peer, now)) {
    decision.answer =
        refused(JoinRefusal::kTaken, "node rank " + std::to_string(*rank) + " is already there, from " +
                                         place.holder.address + "; give each node its own --node-rank");
    return decision;
  }
  decision.displaces = place.live;
  place = Place{peer, ++lives_, true, true, now};
  had_[peer.name].insert(*rank);
  while (unused_ < places_.size() && places_[unused_].life != 0)
    ++unused_;
  decision.life = place.life;
  decision.answer.rank = *rank;
  decision.answer.job_id = mine_.job_id;
  return decision;
}

void JoinTable::opened(int rank, Time now) {
  Place& place = places_[static_cast<std::size_t>(rank)];
  place.waiting = false;
  place.heard = now;
}

void JoinTable::heard(int rank, Time when) {
  Place& place = places_[static_cast<std::size_t>(rank)];
  if (when > place.heard) place.heard = when;
}

void JoinTable::ended(int rank, std::size_t life) {
  Place& place = places_[static_cast<std::size_t>(rank)];
  if (place.life == life) place.live = place.waiting = false;
}

}  // namespace ddp::launcher
