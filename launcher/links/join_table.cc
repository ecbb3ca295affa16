#include "launcher/links/join_table.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace ddp::launcher {
namespace {

using rendezvous::LinkAnswer;
using rendezvous::LinkHello;
using rendezvous::LinkRefusal;

constexpr std::string_view kNode = "node";

LinkAnswer refused(LinkRefusal why, std::string text) {
  return {std::nullopt, {}, why, std::move(text)};
}

}  // namespace

std::string join_host_name(int rank) {
  return std::string(kNode) + std::to_string(rank);
}

std::optional<int> join_host_rank(std::string_view name) {
  if (!name.starts_with(kNode)) return std::nullopt;
  const auto rank = parse_number<int>(name.substr(kNode.size()));
  return rank && *rank >= 0 ? rank : std::nullopt;
}

/// Returns a refusal if the hello itself is impossible.
std::optional<LinkAnswer> JoinTable::unfit(const LinkHello& hello) const {
  if (hello.protocol != terms_.protocol || hello.version != terms_.version) {
    return refused(LinkRefusal::kOtherVersion, "the master is ddplaunch " + terms_.version + " (protocol " +
                                                   std::to_string(terms_.protocol) + "), this node's is " +
                                                   hello.version + " (protocol " +
                                                   std::to_string(hello.protocol) +
                                                   "); install the same version on all nodes");
  }
  if (hello.nodes != 0 && hello.nodes != terms_.nodes) {
    return refused(LinkRefusal::kOtherSize,
                   "the job has " + std::to_string(terms_.nodes) + " nodes according to its master, but " +
                       std::to_string(hello.nodes) +
                       " according to this node; use the same --nnodes (and --spares) on all nodes");
  }
  if (!hello.rank) return std::nullopt;
  if (*hello.rank >= terms_.nodes) {
    return refused(LinkRefusal::kOutOfRange, "node rank " + std::to_string(*hello.rank) +
                                                 " is not one of 0 … " + std::to_string(terms_.nodes - 1) +
                                                 "; the job has " + std::to_string(terms_.nodes) + " nodes");
  }
  if (*hello.rank == 0) {
    return refused(LinkRefusal::kTaken,
                   "node rank 0 is the master's own node; give each node its own --node-rank");
  }
  return std::nullopt;
}

/// Returns whether the holder keeps its slot against `peer`.
bool JoinTable::holds(int rank, const JoiningPeer& peer, Time now, const LastHeard& last_heard) const {
  const JoinSlot& slot = slots_[static_cast<std::size_t>(rank)];
  if (!slot.live) return false;
  // A waiting node has no heartbeats. The next process of its own machine takes its slot.
  if (!slot.opened) return slot.holder.name != peer.name;
  return now - std::max(*slot.opened, last_heard(rank)) < kFresh;
}

std::optional<int> JoinTable::free_slot(const JoiningPeer& peer, Time now,
                                        const LastHeard& last_heard) const {
  // Several nodes may run on one machine, so a waiting slot of that machine may belong to another node.
  const auto is_free = [&](int rank) {
    const JoinSlot& slot = slots_[static_cast<std::size_t>(rank)];
    const bool waits = slot.live && !slot.opened;
    return slot.incarnation != 0 && !waits && !holds(rank, peer, now, last_heard);
  };
  if (const auto had = had_.find(peer.name); had != had_.end()) {
    for (const int rank : had->second) {
      if (slots_[static_cast<std::size_t>(rank)].holder.name == peer.name && is_free(rank)) return rank;
    }
  }
  if (unused_ < slots_.size()) return static_cast<int>(unused_);
  for (int rank = 1; rank < terms_.nodes; ++rank) {
    if (is_free(rank)) return rank;
  }
  return std::nullopt;
}

JoinTable::Decision JoinTable::join(const LinkHello& hello, const JoiningPeer& peer, Time now,
                                    const LastHeard& last_heard) {
  Decision decision;
  if (auto refusal = unfit(hello)) {
    decision.answer = std::move(*refusal);
    return decision;
  }
  const auto rank = hello.rank ? hello.rank : free_slot(peer, now, last_heard);
  if (!rank) {
    decision.answer = refused(LinkRefusal::kFull, "all " + std::to_string(terms_.nodes) +
                                                      " nodes of the job have joined already; start no more "
                                                      "than --nnodes says");
    return decision;
  }
  JoinSlot& slot = slots_[static_cast<std::size_t>(*rank)];
  if (holds(*rank, peer, now, last_heard)) {
    decision.answer =
        refused(LinkRefusal::kTaken, "node rank " + std::to_string(*rank) + " has already joined, from " +
                                         slot.holder.address + "; give each node its own --node-rank");
    return decision;
  }
  DDP_REQUIRE(*rank > 0 && *rank < terms_.nodes, *rank, terms_.nodes);  // 0 is the master's own
  decision.displaces = slot.live;
  slot = JoinSlot{peer, ++incarnations_, true};
  had_[peer.name].insert(*rank);
  while (unused_ < slots_.size() && slots_[unused_].incarnation != 0)
    ++unused_;
  decision.incarnation = slot.incarnation;
  decision.answer.rank = *rank;
  decision.answer.job_id = terms_.job_id;
  return decision;
}

void JoinTable::opened(int rank, Time now) {
  slots_[static_cast<std::size_t>(rank)].opened = now;
}

void JoinTable::ended(int rank, std::size_t incarnation) {
  JoinSlot& slot = slots_[static_cast<std::size_t>(rank)];
  if (slot.incarnation == incarnation) slot.live = false;
}

}  // namespace ddp::launcher
