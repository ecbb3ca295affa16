#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/membership/slot_table.h"

/// Input and output of Membership. Plain data.
namespace ddp::rendezvous {

/// Nodes whose lease a new attempt waits for even if ranks survive. A lost node may only be cut off: its
/// ranks complete no step without the others, but may still write the checkpoint of their last step.
enum class Fence : std::uint8_t {
  kRank0,  ///< the node of rank 0, which writes the checkpoints by convention
  kAll,    ///< every node
  kOff,
};

/// The user's settings; docs/developers/states.md explains each rule.
struct MembershipRules {
  using Duration = std::chrono::nanoseconds;
  std::string job;                 ///< id
  std::vector<std::string> hosts;  ///< expected at the start, in order; the index is the host number
  int min_nodes = 1;
  int max_nodes = 1;  ///< if equal to min_nodes, the shape of the world is fixed
  int spares = 0;
  Duration join_limit = std::chrono::seconds(120);       ///< for the nodes of each attempt to join
  Duration admission_window = std::chrono::seconds(10);  ///< for further nodes to join the first attempt
  Duration debounce = std::chrono::seconds(1);           ///< wait for related events before acting
  Duration suspect_after = std::chrono::seconds(3);
  Duration node_timeout = std::chrono::seconds(15);
  /// From the last byte heard from a node until none of its workers can still run, in every case
  /// (docs/developers/states.md).
  Duration lease = std::chrono::seconds(25);
  Fence fence = Fence::kRank0;
  Duration stop_time = std::chrono::seconds(25);  ///< from StopAttempt to NodeEnded of every node
  int max_restarts = 0;
  Duration backoff = std::chrono::seconds(1);
  Duration max_backoff = std::chrono::seconds(60);
  Duration fruitful_after = std::chrono::seconds(60);  ///< an attempt that ran this long made progress
  int host_faults = 3;  ///< this many within fault_window exclude the host; 0: never
  Duration fault_window = std::chrono::hours(1);
  Duration cool_down = std::chrono::minutes(10);
  bool recall = false;           ///< lost hosts can be started again, once the first attempt has begun
  bool recall_at_start = false;  ///< before that, too: a lost host returns by itself (per-node mode)
  Duration recall_every = std::chrono::seconds(5);  ///< initially; doubles up to max_recall_wait
  Duration max_recall_wait = std::chrono::seconds(60);
  bool scale_up_now = false;
};

/// Origin of an event. `incarnation` counts the links to a host, from 1. The driver gives each new link the
/// next number, so host and incarnation name one link.
struct Sender {
  std::string_view job;
  std::uint32_t attempt = 0;  ///< ignored for events marked "any attempt"
  HostNumber host = 0;
  std::uint32_t incarnation = 0;
};

// ---- events of a node
struct Joined {  ///< its agent said hello and can run `slots` workers; any attempt
  int slots = 1;
  std::string name = {};  ///< set where hosts choose their number: it tells two hosts of one number apart
  std::uint32_t gone_incarnation =
      0;  ///< no worker of this earlier incarnation runs, for certain; 0: none is reported
};
struct Heartbeat {};  ///< any byte from the node; any attempt
struct LinkLost {     ///< any attempt
  std::string why;
  bool workers_dead = false;  ///< for certain (a goodbye, the keeper's report), none of its workers runs
};
struct WorkersGone {};  ///< after LinkLost: for certain, none of its workers runs; any attempt
struct Absent {         ///< not reachable, or no agent answers; any attempt and incarnation
  std::string why;
};
struct WorkerFailed {
  std::string what;            ///< "rank 3 exited 1"
  bool non_retryable = false;  ///< every attempt would fail the same way
};
struct NodeEnded {         ///< all its workers of the attempt are reaped
  std::uint32_t left = 0;  ///< processes that could not be killed
};
struct NodeWaits {};  ///< its surviving workers have left the attempt and wait for the next; no others run
struct NodeRefused {  ///< it cannot start its part, or the start failed; none of its workers runs
  std::string why;
  bool non_retryable = true;
};
struct AttemptProgress {};  ///< the attempt got further than earlier ones
// ---- events of the master itself: no host, no incarnation
struct AttemptFailed {  ///< for a reason outside any node: a hang, no network
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
  kFailed,  ///< a worker failed, or the attempt as a whole
  kNodeLost,
  kTooFew,     ///< too few nodes within the join limit
  kLeftovers,  ///< processes of an attempt could not be killed; no attempt may run beside them
  kUser,
};
struct Begin {  ///< open the store, probe, spawn; every assigned host is present
  std::uint32_t attempt = 0;
  World world;
};
struct StopAttempt {  ///< to every node of the attempt
  std::uint32_t attempt = 0;
  StopCause cause = StopCause::kFailure;
  std::string reason;
  bool another = false;  ///< another attempt is expected: workers that can may survive
};
struct Drop {  ///< end the link of the node; its further events are ignored
  HostNumber host = 0;
  std::uint32_t incarnation = 0;
  std::string reason;
};
struct RecallHost {  ///< try to reach the host again; the answer is Joined or Absent
  HostNumber host = 0;
};
struct NotifyUser {  ///< show the user one line
  std::string text;
};
struct BackOff {  ///< the attempt has failed; another one follows
  std::string reason;
  int restart = 0;  ///< restarts charged to the budget, including this one
  std::chrono::nanoseconds wait{0};
};
struct EndJob {  ///< the last action
  Outcome outcome = Outcome::kDone;
  std::string reason;
  std::string no_restart = {};  ///< why no restart follows although the budget has some; empty: no reason
};
using MemberAction = std::variant<Begin, StopAttempt, Drop, RecallHost, NotifyUser, BackOff, EndJob>;

}  // namespace ddp::rendezvous
