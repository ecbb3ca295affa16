#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "launcher/job/job_spec.h"
#include "launcher/supervisor/master_address.h"
#include "launcher/supervisor/net_choice.h"
#include "launcher/supervisor/network_text.h"
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

}  // namespace ddp::launcher
