#include "apps/train/collectives/nccl/nccl_device_sums.h"

#include "apps/train/collectives/nccl/nccl_link.h"

namespace ddp::train {

namespace {

ncclDataType_t nccl_type(DeviceType type) {
  switch (type) {
    case DeviceType::kFloat32:
      return ncclFloat32;
    case DeviceType::kFloat64:
      return ncclFloat64;
    case DeviceType::kBfloat16:
      return ncclBfloat16;
  }
  return ncclFloat32;
}

}  // namespace

Result<> NcclDeviceSums::enqueue(void* numbers, std::size_t count, DeviceType type, void* stream) {
  return link_->call(comm_, "all-reduce", [&](const NcclFunctions& nccl) {
    return nccl.all_reduce(numbers, numbers, count, nccl_type(type), ncclSum, comm_,
                           static_cast<cudaStream_t>(stream));
  });
}

Result<> NcclDeviceSums::wait(const Done& done, std::string_view operation) {
  return link_->wait(comm_, operation, done);
}

void NcclDeviceSums::on_end(std::function<void()> callback) {
  link_->on_end(std::move(callback));
}

std::span<std::byte> NcclDeviceSums::share_memory(std::size_t bytes) {
  return link_->share_memory(comm_, bytes);
}

}  // namespace ddp::train
