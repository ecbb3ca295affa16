#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/supervisor/net_choice.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The results of one host.
struct CheckedNode {
  std::optional<Error> error;        ///< it could not be reached, or did not complete the check
  bool up = false;                   ///< its agent sent a hello, so `hello` is set
  std::chrono::nanoseconds took{0};  ///< from the start to its hello
  rendezvous::Hello hello;
  std::string connected;  ///< the address that was used to reach it; empty: unknown
  std::optional<rendezvous::NodeChecked> facts;
  std::optional<std::chrono::nanoseconds> wall_ahead;  ///< its wall clock minus ours; set by the driver
  std::chrono::nanoseconds wall_error{0};              ///< ± of it
  enum class Reach : std::uint8_t { kNotTried, kReached, kFailed };
  Reach reach = Reach::kNotTried;  ///< of node 0's store; node 0 itself is kReached if it could open a store
  std::string reach_text;          ///< the address that answered, or why none did
  std::string local;               ///< its own address on that route; empty: unknown
};

/// A time after which a program ends something of a job.
struct TimeLimit {
  std::string owner;                ///< "ddplaunch", "PyTorch", "NCCL", "ssh", "Slurm"
  std::string name;                 ///< where it is set: "--node-timeout", "NCCL_IB_TIMEOUT"
  std::chrono::milliseconds after;  ///< 0: never
  std::string effect;               ///< for people
  bool is_assumed = false;  ///< the program's own default, which a script or an administrator may change
};

/// The results of all hosts.
struct CheckResult {
  std::vector<CheckedNode> nodes;  ///< in the order of the job's hosts
  int stop_signal = 0;             ///< the signal by which the user ended the check early
  std::string awaited;             ///< with stop_signal: what the check waited for
  /// `networked` holds the nodes that are up, in order; `network` is unset if there are none.
  std::vector<std::size_t> networked;
  std::optional<Result<NetChoice>> network;
  std::optional<Result<rendezvous::RankPlan>> plan;  ///< of all nodes; unset unless all are up
  std::string master_addr;                           ///< empty: no common address was found
  struct RejectedNetwork {
    std::string master_addr, network;  ///< of the NetRoute
    std::vector<std::size_t> nodes;    ///< nodes that do not reach it
  };
  std::vector<RejectedNetwork> rejected_networks;  ///< better than the network of `master_addr`
  std::uint16_t store_port = 0;                    ///< port on which node 0 listened; 0: none
  std::vector<std::string> tested;  ///< what --deep and --collectives tested on what: "train health: 8 × …"
  std::vector<TimeLimit> time_limits;  ///< of the job, in order; of `ddplaunch check` only
};

}  // namespace ddp::launcher
