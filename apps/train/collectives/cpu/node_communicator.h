#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/cpu/shm_group.h"
#include "apps/train/collectives/cpu/tcp_communicator.h"

namespace ddp::train {

/// Gives a rank its NodeDescriptors. Local rank 0 makes the segment and listens on an abstract unix socket,
/// whose random name it publishes in the directory. The other ranks connect and receive all descriptors by
/// SCM_RIGHTS. Both sides check that the other end is the same user, and check rank, job and attempt by a
/// hello.
Result<NodeDescriptors> meet_node(const GroupConfig& config, PeerDirectory& directory);

/// The ranks of the world by node, then by local rank. Nodes may have different numbers of ranks.
struct NodeMap {
  std::vector<std::vector<int>> ranks;
  int node = 0;  ///< of this rank
  int local_rank = 0;

  int world_size() const;
  int rank() const { return ranks[static_cast<std::size_t>(node)][static_cast<std::size_t>(local_rank)]; }
  /// Returns how many ranks of each node exchange with other nodes: as many as the smallest node has.
  int lanes() const;
  /// Returns the node of a rank and its local rank there.
  std::pair<int, int> place_of(int rank) const;
  /// Returns how many ranks the largest node has.
  std::size_t widest() const;
  /// Returns the ranks of this rank's lane, by node; empty if it has none.
  std::vector<int> lane() const;
};

/// The two transports of a rank: shared memory inside its node, and TCP along its lane to the other nodes. A
/// failed lane ends its node, and a failed node ends its lanes.
class NodeTransport : public Communicator {
 public:
  NodeTransport(NodeMap map, std::shared_ptr<ShmGroup> group, std::shared_ptr<TcpCommunicator> lane);
  int lost_rank() const override;

 protected:
  bool many_nodes() const { return map_.ranks.size() > 1; }
  /// Return the outcome of an operation on the lane or inside the node, after they have ended the other.
  Result<> after_lane(Result<> done);
  Result<> after_node(Result<> done);
  /// Sums the parts over the nodes, then gives all parts to all ranks of the node.
  Result<> sum_between(NumberSpan values, int lanes);
  /// Returns how many lanes a sum of this size uses.
  int lanes_for(std::size_t bytes) const;
  /// Gathers one row of numbers from each node's first rank to all ranks of all nodes.
  Result<std::vector<std::uint64_t>> gather_between(std::span<const std::uint64_t> row);
  Result<> barrier_of_nodes();

  NodeMap map_;
  std::shared_ptr<ShmGroup> group_;
  std::shared_ptr<TcpCommunicator> lane_;
};

/// Shared memory inside a node and TCP between nodes. A sum takes three steps. Inside the node, each of the
/// first lanes() ranks gets the sum of one part. These ranks sum their part over the nodes, each over its own
/// connections. Inside the node, all ranks get all parts. With one node, only the shared memory is used.
///
/// Sums are bit-equal on all ranks. A lost rank ends the work of all ranks on all nodes.
class NodeCommunicator final : public NodeTransport {
 public:
  /// `lane` is null on one node and on ranks without a lane. If `map` is one node of several, the lane only
  /// learns which rank was lost, so that the other nodes name the same rank. `group` and `lane` may be shared
  /// with other communicators of the same thread.
  NodeCommunicator(NodeMap map, std::shared_ptr<ShmGroup> group, std::shared_ptr<TcpCommunicator> lane);

  int rank() const override { return map_.rank(); }
  int world_size() const override { return map_.world_size(); }
  Result<> all_reduce_sum(NumberSpan values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override;
  Result<> barrier() override;
  Result<> reduce_scatter_sum(NumberSpan values) override;
  Result<> all_gather_parts(std::span<std::byte> parts) override;
  Result<> gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) override;
  std::span<std::byte> share_memory(std::size_t bytes) override;
};

/// A communicator with nodes as ranks. Each node contributes once: its ranks call with equal values and get
/// equal results.
class BetweenNodes final : public NodeTransport {
 public:
  using NodeTransport::NodeTransport;

  int rank() const override { return map_.node; }
  int world_size() const override { return static_cast<int>(map_.ranks.size()); }
  Result<> all_reduce_sum(NumberSpan values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override;
  Result<> barrier() override;
};

}  // namespace ddp::train
