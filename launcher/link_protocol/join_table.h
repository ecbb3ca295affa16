#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "launcher/link_protocol/join_line.h"

namespace ddp::launcher {

/// Who is which node of a job whose nodes come by themselves (per-node mode). Node 0 is the master's own.
/// Sans-IO. The driver's duties:
///   1. before `join`, tell `heard` of the links that live at the places which it is `about`: one that is
///   silent for kFresh gives way;
///   2. act on the answer: a refusal is said to the node, `displaced` is ended;
///   3. tell `opened` when the node's link carries heartbeats, `ended` when that very link has ended.
class JoinTable {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// Heartbeats come each second. Who sent none for so long has no claim to its place against one who is
  /// there.
  static constexpr std::chrono::seconds kFresh{3};

  struct Mine {
    int nodes = 0;  ///< all, node 0 included
    int protocol = 0;
    std::string version;
    std::string job_id;
  };
  /// Who wants to join, in what has been proven and seen.
  struct Peer {
    std::string name;     ///< of its machine, proven with the token
    std::string address;  ///< that it came from
  };
  struct Decision {
    JoinAnswer answer;
    bool displaces = false;  ///< an older link of this node is to be ended
    std::size_t life = 0;    ///< of the new link, for `ended`
  };

  explicit JoinTable(Mine mine) : mine_(std::move(mine)), places_(static_cast<std::size_t>(mine_.nodes)) {}

  /// The ranks that the answer may hang on.
  std::vector<int> about(const JoinRequest& request, const Peer& peer) const;
  /// The rank that was asked for; without one that which this machine had before, else the lowest that nobody
  /// had, else the lowest that nobody has.
  Decision join(const JoinRequest& request, const Peer& peer, Time now);
  void opened(int rank, Time now);
  void heard(int rank, Time when);
  void ended(int rank, std::size_t life);

 private:
  struct Place {
    Peer holder;  ///< the last one
    std::size_t life = 0;
    bool live = false;
    bool waiting = false;  ///< joined, and nobody has asked for it yet: no heartbeats
    Time heard;
  };

  std::optional<JoinAnswer> unfit(const JoinRequest& request) const;
  bool holds(const Place& place, const Peer& peer, Time now) const;
  std::optional<int> free_place(const Peer& peer, Time now) const;

  Mine mine_;
  std::vector<Place> places_;  ///< by rank; the first is the master's own
  /// What each machine ever had; others may have it now. With thousands of nodes nobody looks at all places.
  std::unordered_map<std::string, std::set<int>> had_;
  std::size_t unused_ = 1;  ///< the lowest rank that nobody had
  std::size_t lives_ = 0;
};

}  // namespace ddp::launcher
