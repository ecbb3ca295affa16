#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/nccl/nccl_device_operations.h"

namespace ddp::train {

/// Ranks over NCCL. Values of the host go through a buffer on the device and a stream of its own: right, and
/// as slow as two copies. What lies on the device is summed where it is, by its DeviceAllReducer.
///
/// Sums are bit-equal on all ranks: NCCL makes each element's sum once. A reduce-scatter is an all-reduce,
/// for NCCL's own may add in another order.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclLink> link, ncclComm* comm, int rank, int world_size);

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  Result<> all_reduce_sum(std::span<float> values) override;
  Result<> all_reduce_sum(std::span<double> values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override;
  Result<> barrier() override;
  Result<> all_gather_parts(std::span<std::byte> parts) override;

  DeviceAllReducer* device_all_reducer() override { return &device_all_reducer_; }
  DeviceOperations* device_operations() override { return &operations_; }

 private:
  /// Which bytes of the host's buffer go to the device before, and come back after.
  struct BufferRange {
    std::size_t offset = 0;
    std::size_t size = 0;
  };
  template <class Enqueue>
  Result<> staged(std::string_view operation, std::span<std::byte> host, BufferRange up, BufferRange down,
                  const Enqueue& enqueue);
  Result<> reduce(std::span<std::byte> bytes, std::size_t count, int type);

  std::shared_ptr<NcclLink> link_;
  ncclComm* comm_;
  int rank_;
  int world_size_;
  NcclDeviceAllReducer device_all_reducer_;
  NcclDeviceOperations operations_;
};

/// The nodes as ranks: the first rank of each has a lane to the others and hands what comes on inside the
/// node, so that the ranks of a node have the same bits whatever NCCL chooses.
class NcclBetween final : public Communicator {
 public:
  /// `lane` is null on all but the first rank of a node, `node` where a node has one rank.
  NcclBetween(int node, int nodes, std::shared_ptr<Communicator> lane, std::shared_ptr<Communicator> inside);

  int rank() const override { return node_; }
  int world_size() const override { return nodes_; }
  Result<> all_reduce_sum(std::span<float> values) override;
  Result<> all_reduce_sum(std::span<double> values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override;
  Result<> barrier() override;

 private:
  template <class T>
  Result<> reduce(std::span<T> values);
  Result<> hand_on(std::span<std::byte> data);

  int node_;
  int nodes_;
  std::shared_ptr<Communicator> lane_;
  std::shared_ptr<Communicator> inside_;
};

}  // namespace ddp::train
