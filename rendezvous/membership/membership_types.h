#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/membership/slot_table.h"

/// What goes into Membership and what comes out of it. Plain data.
namespace ddp::rendezvous {

/// Whose lease an attempt waits for although ranks survive, when a node is lost that may only be cut off: a
/// rank there completes no step without the others, but may still write the checkpoint of its last one.
enum class Fence : std::uint8_t {
  kRank0,  ///< the node of rank 0, which writes the checkpoints by convention
  kAll,    ///< every node
  kOff,
};

/// What the user asked for; docs/states.md tells what each does.
struct MembershipRules {
  using Duration = std::chrono::nanoseconds;
  std::string job;                 ///< id
  std::vector<std::string> hosts;  ///< expected at the start, in order; their number is the index here
  bool open = false;               ///< others may join, too: they are numbered on from there
  int min_nodes = 1;
  int max_nodes = 1;  ///< equal to min_nodes: the world keeps its shape
  int spares = 0;
  Duration join_limit = std::chrono::seconds(120);       ///< for the nodes of any attempt to be there
  Duration admission_window = std::chrono::seconds(10);  ///< for more than MIN to come to the first one
  Duration debounce = std::chrono::seconds(1);  ///< for others to tell the same before it has consequences
  Duration suspect_after = std::chrono::seconds(3);
  Duration node_timeout = std::chrono::seconds(15);
  /// From the last word of a node until none of its workers can live any more, come what may
  /// (docs/states.md).
  Duration lease = std::chrono::seconds(25);
  Fence fence = Fence::kRank0;
  Duration stop_time = std::chrono::seconds(25);  ///< from Stop to the Ended of every node
  int max_restarts = 0;
  Duration restart_window{0};  ///< max_restarts are those within it; 0: of the whole job
  Duration backoff = std::chrono::seconds(1);
  Duration max_backoff = std::chrono::seconds(60);
  int no_progress_limit = 0;                           ///< attempts in a row without progress; 0: no limit
  Duration fruitful_after = std::chrono::seconds(60);  ///< an attempt that ran for so long made progress
  int host_faults = 3;  ///< within fault_window: the host is excluded; 0: never
  Duration fault_window = std::chrono::hours(1);
  Duration cool_down = std::chrono::minutes(10);
  bool recall = false;           ///< lost hosts can be started again, once the first attempt has begun
  bool recall_at_start = false;  ///< before that, too: who is lost comes back by itself (per-node mode)
  Duration recall_every = std::chrono::seconds(5);  ///< at first; doubles up to max_recall_wait
  Duration max_recall_wait = std::chrono::seconds(60);
  bool scale_up_now = false;
};

/// Who says something. `incarnation` counts the links to a host, from 1; the driver gives each new one
/// the next number, so that host and incarnation name one link.
struct Sender {
  std::string_view job;
  std::uint32_t attempt = 0;  ///< ignored where it says so
  HostNumber host = 0;
  std::uint32_t incarnation = 0;
};

// ---- events of a node
struct Joined {  ///< its agent said hello and can run so many workers; any attempt
  int slots = 1;
  std::string name =
      {};  ///< needed of hosts that were not expected; else given where hosts choose their number
  std::uint32_t gone_incarnation =
      0;  ///< it is certain now that no worker of this earlier incarnation lives; 0: of none
};
struct Heartbeat {};  ///< any byte of it; any attempt
struct LinkLost {     ///< any attempt
  std::string why;
  bool workers_dead = false;  ///< it is certain (a goodbye, the keeper's word) that none of its workers lives
};
struct WorkersGone {};  ///< after LinkLost: it is certain now that none of its workers lives; any attempt
struct Absent {         ///< it could not be reached, or no agent answers there; any attempt and incarnation
  std::string why;
};
struct WorkerFailed {
  std::string what;            ///< "rank 3 exited 1"
  bool non_retryable = false;  ///< it will be so each time
};
struct NodeEnded {         ///< all its workers of the attempt are reaped
  std::uint32_t left = 0;  ///< processes that could not be ended
};
struct NodeWaits {};  ///< its living workers have let go of the attempt and wait for the next; no other lives
struct NodeRefused {  ///< it cannot start its part, or its start failed; none of its workers runs
  std::string why;
  bool non_retryable = true;
};
struct AttemptProgress {};  ///< the attempt came further than those before
// ---- events of the master itself: no host, no incarnation
struct AttemptFailed {  ///< for a reason that is no node's: a hang, no network
  std::string why;
  bool non_retryable = false;
};
struct UserStop {
  std::string words;
};
struct Tick {};

using MemberEvent = std::variant<Joined, Heartbeat, LinkLost, WorkersGone, Absent, WorkerFailed, NodeEnded,
                                 NodeWaits, NodeRefused, AttemptProgress, AttemptFailed, UserStop, Tick>;

// ---- actions
enum class StopCause : std::uint8_t { kFailure, kScaleUp, kUser };
enum class Outcome : std::uint8_t {
  kDone,
  kFailed,  ///< a worker, or the attempt as a whole
  kNodeLost,
  kTooFew,  ///< not enough nodes within the join limit
  kNoProgress,
  kLeftovers,  ///< processes of an attempt that could not be ended: no other may run beside them
  kUser,
};
struct Begin {  ///< open the store, probe, spawn; every place's host is there
  std::uint32_t attempt = 0;
  World world;
};
struct StopAttempt {  ///< to every node of the attempt
  std::uint32_t attempt = 0;
  StopCause cause = StopCause::kFailure;
  std::string reason;
  bool another = false;  ///< as it stands another attempt will follow: workers that can may live on
};
struct Drop {  ///< end its link: nothing that it says counts any more
  HostNumber host = 0;
  std::uint32_t incarnation = 0;
  std::string reason;
};
struct RecallHost {  ///< try to reach it again; Joined or Absent is the answer
  HostNumber host = 0;
};
struct NotifyUser {  ///< the user, one line
  std::string text;
};
struct BackOff {  ///< the attempt is over and failed; another one follows
  std::string reason;
  int restart = 0;  ///< so many of the budget are spent with it
  std::chrono::nanoseconds wait{0};
};
struct EndJob {  ///< the last action
  Outcome outcome = Outcome::kDone;
  std::string reason;
  std::string no_restart = {};  ///< what speaks against one, although the budget has some; empty: nothing
};
using MemberAction = std::variant<Begin, StopAttempt, Drop, RecallHost, NotifyUser, BackOff, EndJob>;

}  // namespace ddp::rendezvous
