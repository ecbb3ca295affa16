#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/hang/hang_detection.h"
#include "launcher/job/job_spec.h"
#include "launcher/supervisor/job_events.h"
#include "launcher/supervisor/net_choice.h"
#include "launcher/supervisor/node_records.h"
#include "remote/hosts/host.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Returns the order to open the store on nodes[0], which answers all `nodes` and --store-allow. The caller
/// sets the attempt and the mode.
rendezvous::OpenStore store_order(const JobSpec& spec, const std::vector<NodeNetwork>& nodes,
                                  const NetChoice& network);

/// The start of an attempt, up to the order to spawn (sans-IO): chooses the network, orders the store of
/// participant 0, and lets the others probe its addresses. Nodes are participants of the attempt.
///
/// The driver's duties: call `begin`, and then pass all answers; carry out each Step. A Step without content
/// is the answer to a message that is late, repeated or foreign. After a failure only `begin` follows.
class AttemptStart {
 public:
  struct ProbeOrder {
    std::size_t participant = 0;
    rendezvous::Probe message;
  };
  /// The consequence of an answer.
  struct Step {
    std::string detail;                 ///< for --verbose; empty: nothing
    std::vector<ProbeOrder> probes;     ///< to be sent
    std::optional<Error> failure = {};  ///< of the participant that answered: the start has failed
    bool ready = false;                 ///< every participant reaches the store: spawn
  };

  /// Starts over. Fails if the nodes, participant 0 first, have no network as `wanted` by --network.
  Result<> begin(std::uint32_t attempt, std::vector<NodeNetwork> nodes, std::string_view wanted);
  /// Returns the order for participant 0.
  rendezvous::OpenStore store_order(const JobSpec& spec) const;
  Step opened(std::size_t participant, const rendezvous::StoreOpened& message);
  Step probed(std::size_t participant, const rendezvous::ProbeResult& message);

  /// Returns the step at which a participant is; empty: the start does not wait for it.
  std::string awaited_step(std::size_t participant) const;
  const NetChoice& network() const { return network_; }
  /// Fills in the attempt's number and the participant's network. Requires `ready`, as does network_lines.
  void complete(rendezvous::Spawn& spawn, std::size_t participant) const;
  /// Returns the network of the ranks and its problems, as lines for the user. `infiniband`: of each
  /// participant.
  std::vector<std::string> network_lines(const std::vector<NodeInfiniband>& infiniband) const;

 private:
  enum class Phase : std::uint8_t { kOpeningStore, kProbing, kReady };

  std::vector<ProbeOrder> orders(const std::vector<MasterAddress::AddressProbe>& probes) const;
  Error no_route_error(std::size_t asked, const std::string& text) const;
  std::string interface_for(std::size_t participant) const;

  Phase phase_ = Phase::kOpeningStore;
  std::uint32_t attempt_ = 0;
  std::vector<NodeNetwork> nodes_;
  std::vector<std::string> local_;  ///< own address of each node on the way to node 0
  NetChoice network_;
  MasterAddress master_;
  std::uint16_t store_port_ = 0;
  std::string store_token_;
};

/// Returns the time as protocol messages carry it.
std::uint32_t to_ms(std::chrono::milliseconds value);

/// Returns the nodes that hold up a start, each with its step: "2 of 64 nodes: gpu07 (connecting), gpu09
/// (running --setup)". Empty: none. `awaited` holds the names by step.
std::string awaited_text(const std::map<std::string, std::vector<std::string>>& awaited, std::size_t nodes);

HangLimits hang_limits(const JobSpec& spec);

/// Returns the job for `host`, one of `nodes` that run it. A local host gets the environment for this
/// machine, others the one for other machines.
rendezvous::JobStart job_start(const JobSpec& spec, const remote::Host& host, std::size_t nodes);

/// Returns the time from TERM to KILL on a node that has lost the master.
std::chrono::milliseconds link_grace(const JobSpec& spec);

/// Returns the ranks of one participant of the world. The sender fills in attempt and network.
rendezvous::Spawn spawn_message(const rendezvous::World& world, std::size_t participant);

/// Decides when to say what a long start waits for (sans-IO): every second for a terminal, at growing
/// intervals for a log.
class StartNotice {
 public:
  using Time = job::Time;
  /// Time until a start that takes long is reported.
  static constexpr std::chrono::seconds kLongStart{3};

  void begin(Time now);
  /// When to call `show`; unset: the start is over.
  std::optional<Time> deadline() const { return check_at_; }
  bool is_due(Time now) const { return check_at_ && now >= *check_at_; }
  /// Shows that the start waits for `awaited`; empty: nothing is shown this time. Call it when due.
  std::optional<job::Waiting> show(const std::string& awaited, Time now);
  /// The start is over. Removes what is shown, if something is. Further calls do nothing.
  std::optional<job::Waiting> end();

 private:
  Time started_at_{0};
  std::optional<Time> check_at_;
  Time log_after_{0};  ///< time from the start to the next line in a log
  bool shown_ = false;
};

/// Returns the step that holds up the start at a node; empty: none. `start`: of the attempt; null: none is
/// being started.
std::string missing_step(const JobSpec& spec, const NodeRecords& nodes, const AttemptStart* start,
                         std::size_t node);

/// Returns the nodes that hold up the first start, each with its step: "2 of 64 nodes: gpu07 (connecting),
/// gpu09 (running --setup)". Empty: none.
std::string awaited_text(const JobSpec& spec, const NodeRecords& nodes, const AttemptStart* start);

/// Returns why `step` is an error after --start-timeout.
Error late_error(const JobSpec& spec, const std::string& step);

/// Returns the nodes for lack of which the job ends, in the order of their failures. Each has its reason, or
/// the step at which it is if `late`: then it had the time to come. `at_start`: no attempt has begun; else a
/// node of the last attempt was lost and not replaced.
std::vector<std::pair<std::string, Error>> missing_nodes(const JobSpec& spec, const NodeRecords& nodes,
                                                         bool at_start, bool late);

/// "2 nodes × 8 workers", or "2 nodes, 12 workers" if the nodes differ.
std::string size_text(const rendezvous::World& world);

}  // namespace ddp::launcher
