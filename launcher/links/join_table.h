#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/link/link_hello.h"

namespace ddp::launcher {

/// The name of a node before its own name is known: "node3".
std::string join_host_name(int rank);
std::optional<int> join_host_rank(std::string_view name);

/// Assigns the slots of a job whose nodes join by themselves (per-node mode). Node 0 is the master's own.
/// Sans-IO. The driver's duties:
///   1. Act on the answer: send a refusal to the node; if `displaces`, end the node's older link.
///   2. Give the slot to the link only if it `is_latest` when the answer has been sent.
///   3. Call `opened` when the node's link carries heartbeats, and `ended` when that incarnation has ended.
class JoinTable {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using LastHeard = std::function<Time(int rank)>;  ///< when the live link of a slot was last heard
  /// Heartbeats come each second. A node that sent none for this long loses its slot to one that joins.
  static constexpr std::chrono::seconds kFresh{3};

  struct JoinTerms {
    int nodes = 0;  ///< all nodes, including node 0
    int protocol = 0;
    std::string version;
    std::string job_id;
  };
  /// A node that wants to join, as far as proven and seen.
  struct JoiningPeer {
    std::string name;     ///< the machine's name, proven with the token
    std::string address;  ///< the source address
  };
  struct Decision {
    rendezvous::LinkAnswer answer;
    bool displaces = false;       ///< the driver must end an older link of this node
    std::size_t incarnation = 0;  ///< of the new link, for `ended`
  };

  explicit JoinTable(JoinTerms terms)
      : terms_(std::move(terms)), slots_(static_cast<std::size_t>(terms_.nodes)) {}

  /// Assigns the requested rank. Without a request: the rank that this machine had before, else the lowest
  /// that was never assigned, else the lowest free one. A link that was silent for kFresh loses its slot;
  /// `last_heard` is asked for the links that matter, since bytes come far more often than nodes.
  Decision join(const rendezvous::LinkHello& hello, const JoiningPeer& peer, Time now,
                const LastHeard& last_heard);
  void opened(int rank, Time now);
  void ended(int rank, std::size_t incarnation);
  /// Returns whether no other link of this rank has joined since.
  bool is_latest(int rank, std::size_t incarnation) const {
    return slots_[static_cast<std::size_t>(rank)].incarnation == incarnation;
  }

 private:
  struct JoinSlot {
    JoiningPeer holder;  ///< the last holder
    std::size_t incarnation = 0;
    bool live = false;
    std::optional<Time> opened{};  ///< unset: it has no heartbeats yet
  };

  std::optional<rendezvous::LinkAnswer> unfit(const rendezvous::LinkHello& hello) const;
  bool holds(int rank, const JoiningPeer& peer, Time now, const LastHeard& last_heard) const;
  std::optional<int> free_slot(const JoiningPeer& peer, Time now, const LastHeard& last_heard) const;

  JoinTerms terms_;
  std::vector<JoinSlot> slots_;  ///< by rank; the first is the master's own
  /// All ranks that each machine ever had; others may have them now. Saves a scan of all slots in large jobs.
  std::unordered_map<std::string, std::set<int>> had_;
  std::size_t unused_ = 1;  ///< the lowest rank that was never assigned
  std::size_t incarnations_ = 0;
};

}  // namespace ddp::launcher
