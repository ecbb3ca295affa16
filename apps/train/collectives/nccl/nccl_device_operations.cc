#include "apps/train/collectives/nccl/nccl_device_operations.h"

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

template <class Enqueue>
Result<> NcclDeviceOperations::enqueue(std::string_view operation, const Enqueue& enqueue) {
  return link_->call(comm_, operation, [&](const NcclFunctions& nccl) {
    return enqueue(nccl, static_cast<cudaStream_t>(link_->device().stream()));
  });
}

Result<std::span<float>> NcclDeviceOperations::make_buffer(std::size_t count) {
  const auto memory = link_->memory(comm_, count * sizeof(float));
  if (!memory) return memory.error();
  return std::span(reinterpret_cast<float*>(memory->data()), count);
}

Result<> NcclDeviceOperations::put(std::span<float> to, std::span<const float> from) {
  const auto data = std::as_bytes(from);
  const auto sent = link_->device().to_device(std::as_writable_bytes(to).data(), data.data(), data.size());
  return link_->checked(sent, "copy to the GPU");
}

Result<> NcclDeviceOperations::get(std::span<float> to, std::span<const float> from) {
  if (auto done = wait("copy from the GPU"); !done) return done;
  const auto data = std::as_writable_bytes(to);
  const auto got = link_->device().to_host(data.data(), std::as_bytes(from).data(), data.size());
  return link_->checked(got, "copy from the GPU");
}

Result<> NcclDeviceOperations::all_reduce_sum(std::span<float> values) {
  return enqueue("all-reduce", [&](const NcclFunctions& nccl, cudaStream_t stream) {
    return nccl.all_reduce(values.data(), values.data(), values.size(), ncclFloat32, ncclSum, comm_, stream);
  });
}

Result<> NcclDeviceOperations::broadcast(std::span<float> values, int root) {
  return enqueue("broadcast", [&](const NcclFunctions& nccl, cudaStream_t stream) {
    return nccl.broadcast(values.data(), values.data(), values.size(), ncclFloat32, root, comm_, stream);
  });
}

Result<> NcclDeviceOperations::reduce_scatter_sum(std::span<float> parts) {
  const std::size_t size = parts.size() / static_cast<std::size_t>(world_size_);
  float* const own = parts.data() + size * static_cast<std::size_t>(rank_);
  return enqueue("reduce-scatter", [&](const NcclFunctions& nccl, cudaStream_t stream) {
    return nccl.reduce_scatter(parts.data(), own, size, ncclFloat32, ncclSum, comm_, stream);
  });
}

Result<> NcclDeviceOperations::all_gather_parts(std::span<float> parts) {
  const std::size_t size = parts.size() / static_cast<std::size_t>(world_size_);
  const float* const own = parts.data() + size * static_cast<std::size_t>(rank_);
  return enqueue("all-gather", [&](const NcclFunctions& nccl, cudaStream_t stream) {
    return nccl.all_gather(own, parts.data(), size, ncclFloat32, comm_, stream);
  });
}

Result<> NcclDeviceOperations::wait(std::string_view operation) {
  NcclDevice& device = link_->device();
  return link_->wait(comm_, operation, [&] { return device.is_idle(device.stream()); });
}

Result<> NcclDeviceAllReducer::enqueue(void* numbers, std::size_t count, DeviceType type, void* stream) {
  return link_->call(comm_, "all-reduce", [&](const NcclFunctions& nccl) {
    return nccl.all_reduce(numbers, numbers, count, nccl_type(type), ncclSum, comm_,
                           static_cast<cudaStream_t>(stream));
  });
}

Result<> NcclDeviceAllReducer::wait(const IsDone& done, std::string_view operation) {
  return link_->wait(comm_, operation, done);
}

void NcclDeviceAllReducer::on_end(GraphOwner owner) {
  link_->on_end(std::move(owner));
}

std::span<std::byte> NcclDeviceAllReducer::share_memory(std::size_t bytes) {
  return link_->share_memory(comm_, bytes);
}

}  // namespace ddp::train
