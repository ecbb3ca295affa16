#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "apps/train/collectives/communicator.h"

struct ncclComm;

namespace ddp::train {

class NcclLink;

/// Ranks over NCCL. Host values go through a buffer and a stream of the device, at the cost of two copies.
/// Values in device memory stay there.
///
/// Sums are bit-equal on all ranks, since NCCL computes each element's sum once. A reduce-scatter is an
/// all-reduce, since NCCL's own may add in another order.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclLink> link, ncclComm* comm, int rank, int world_size)
      : link_(std::move(link)), comm_(comm), rank_(rank), world_size_(world_size) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  Result<> all_reduce_sum(std::span<float> values) override;
  Result<> all_reduce_sum(std::span<double> values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override;
  Result<> barrier() override;
  Result<> all_gather_parts(std::span<std::byte> parts) override;

  bool has_device_operations() const override { return true; }
  Result<> enqueue_on_device(const DeviceOperation& operation, void* stream) override;
  Result<> wait_for_device(const IsDeviceDone& done, std::string_view operation) override;
  void on_end(GraphOwner owner) override;
  DeviceMemory share_device_memory(std::size_t bytes) override;

 private:
  /// Bytes of the host's buffer that go to the device before, or come back after.
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
};

/// A communicator with nodes as ranks. The first rank of each node has a lane to the others and passes
/// results on inside the node. So the ranks of a node have the same bits, whatever NCCL chooses.
class NcclBetween final : public Communicator {
 public:
  /// `lane` is null on all but the first rank of a node; `inside` is null if a node has one rank.
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
