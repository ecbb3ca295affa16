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
///   2. act on the answer: a refusal is said to the node; when `displaces`, the node's older link is ended;
///   3. tell `opened` when the node's link carries heartbeats, `ended` when that very link has ended.
class JoinTable {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// Heartbeats come each second. Who sent none for so long has no claim to its place against one who is
  /// there.
  static constexpr std::chrono::seconds kFresh{3};

  struct JoinTerms {
    int nodes = 0;  ///< all, node 0 included
    int protocol = 0;
    std::string version;
    std::string job_id;
  };
  /// Who wants to join, in what has been proven and seen.
  struct JoiningPeer {
    std::string name;     ///< of its machine, proven with the token
    std::string address;  ///< that it came from
  };
  struct Decision {
    JoinAnswer answer;
    bool displaces = false;       ///< an older link of this node is to be ended
    std::size_t incarnation = 0;  ///< of the new link, for `ended`
  };

  explicit JoinTable(JoinTerms terms)
      : terms_(std::move(terms)), slots_(static_cast<std::size_t>(terms_.nodes)) {}

  /// The ranks that the answer may hang on.
  std::vector<int> about(const JoinRequest& request, const JoiningPeer& peer) const;
  /// The rank that was asked for; without one that which this machine had before, else the lowest that nobody
  /// had, else the lowest that nobody has.
  Decision join(const JoinRequest& request, const JoiningPeer& peer, Time now);
  void opened(int rank, Time now);
  void heard(int rank, Time when);
  void ended(int rank, std::size_t incarnation);

 private:
  struct JoinSlot {
    JoiningPeer holder;  ///< the last one
    std::size_t incarnation = 0;
    bool live = false;
    bool waiting = false;  ///< joined, and nobody has asked for it yet: no heartbeats
    Time heard;
  };

  std::optional<JoinAnswer> unfit(const JoinRequest& request) const;
  bool holds(const JoinSlot& slot, const JoiningPeer& peer, Time now) const;
  std::optional<int> free_slot(const JoiningPeer& peer, Time now) const;

  JoinTerms terms_;
  std::vector<JoinSlot> slots_;  ///< by rank; the first is the master's own
  /// What each machine ever had; others may have it now. With thousands of nodes nobody looks at all places.
  std::unordered_map<std::string, std::set<int>> had_;
  std::size_t unused_ = 1;  ///< the lowest rank that nobody had
  std::size_t incarnations_ = 0;
};

}  // namespace ddp::launcher
