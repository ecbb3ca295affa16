#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "apps/train/collectives/device_all_reducer.h"
#include "apps/train/collectives/device_operations.h"
#include "apps/train/collectives/nccl/nccl_library.h"

struct ncclComm;

namespace ddp::train {

class NcclLink;

/// NCCL's operations in the memory of the link's device and in its stream.
class NcclDeviceOperations final : public DeviceOperations {
 public:
  NcclDeviceOperations(std::shared_ptr<NcclLink> link, ncclComm_t comm, int rank, int world_size)
      : link_(std::move(link)), comm_(comm), rank_(rank), world_size_(world_size) {}

  Result<std::span<float>> make_buffer(std::size_t count) override;
  Result<> put(std::span<float> to, std::span<const float> from) override;
  Result<> get(std::span<float> to, std::span<const float> from) override;
  Result<> all_reduce_sum(std::span<float> values) override;
  Result<> broadcast(std::span<float> values, int root) override;
  Result<> reduce_scatter_sum(std::span<float> parts) override;
  Result<> all_gather_parts(std::span<float> parts) override;
  Result<> wait(std::string_view operation) override;

 private:
  template <class Enqueue>
  Result<> enqueue(std::string_view operation, const Enqueue& enqueue);

  std::shared_ptr<NcclLink> link_;
  ncclComm_t comm_;
  int rank_;
  int world_size_;
};

class NcclLink;

/// The DeviceAllReducer of one communicator of a link.
class NcclDeviceAllReducer final : public DeviceAllReducer {
 public:
  NcclDeviceAllReducer(std::shared_ptr<NcclLink> link, ncclComm* comm)
      : link_(std::move(link)), comm_(comm) {}

  Result<> enqueue(void* numbers, std::size_t count, DeviceType type, void* stream) override;
  Result<> wait(const IsDone& done, std::string_view operation) override;
  void on_end(GraphOwner owner) override;
  std::span<std::byte> share_memory(std::size_t bytes) override;

 private:
  std::shared_ptr<NcclLink> link_;
  ncclComm* comm_;
};

}  // namespace ddp::train
