#include "apps/train/nccl_device_operations.h"

#include "apps/train/nccl_link.h"

namespace ddp::train {

ncclResult_t shift_over_nccl(const NcclFunctions& nccl, void* halves, std::size_t half, int rank,
                             int world_size, ncclComm_t comm, cudaStream_t stream) {
  const int next = (rank + 1) % world_size, previous = (rank + world_size - 1) % world_size;
  void* const received = static_cast<std::byte*>(halves) + half;
  ncclResult_t last = ncclSuccess;
  // A failure inside a group shows when the group ends, or at once.
  for (const ncclResult_t result :
       {nccl.group_start(), nccl.send(halves, half, ncclUint8, next, comm, stream),
        nccl.receive(received, half, ncclUint8, previous, comm, stream), nccl.group_end()}) {
    if (result != ncclSuccess && result != ncclInProgress) return result;
    last = result;
  }
  return last;
}

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

Result<> NcclDeviceOperations::shift(std::span<float> halves) {
  return enqueue("send and receive", [&](const NcclFunctions& nccl, cudaStream_t stream) {
    return shift_over_nccl(nccl, halves.data(), halves.size_bytes() / 2, rank_, world_size_, comm_, stream);
  });
}

Result<> NcclDeviceOperations::wait(std::string_view operation) {
  NcclDevice& device = link_->device();
  return link_->wait(comm_, operation, [&] { return device.is_idle(device.stream()); });
}

}  // namespace ddp::train
