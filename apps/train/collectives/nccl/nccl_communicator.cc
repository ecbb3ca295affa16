#include "apps/train/collectives/nccl/nccl_communicator.h"

#include <algorithm>
#include <string>
#include <utility>

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
Result<> NcclCommunicator::staged(std::string_view operation, std::span<std::byte> host, BufferRange up,
                                  BufferRange down, const Enqueue& enqueue) {
  if (host.empty()) return {};
  const auto room = link_->staging(host.size());
  if (!room) return room.error();
  std::byte* const device = *room;
  void* const stream = link_->device().stream();
  if (up.size != 0) {
    auto sent = link_->device().to_device(device + up.offset, host.data() + up.offset, up.size);
    if (auto done = link_->checked(sent, operation); !done) return done;
  }
  auto called = link_->call(comm_, operation, [&](const NcclFunctions& nccl) {
    return enqueue(nccl, device, static_cast<cudaStream_t>(stream));
  });
  if (!called) return called;
  const auto is_idle = [&] { return link_->device().is_idle(stream); };
  if (auto waited = link_->wait(comm_, operation, is_idle); !waited) return waited;
  if (down.size == 0) return {};
  return link_->checked(link_->device().to_host(host.data() + down.offset, device + down.offset, down.size),
                        operation);
}

Result<> NcclCommunicator::reduce(std::span<std::byte> bytes, std::size_t count, int type) {
  const auto enqueue = [&](const NcclFunctions& nccl, std::byte* device, cudaStream_t stream) {
    return nccl.all_reduce(device, device, count, static_cast<ncclDataType_t>(type), ncclSum, comm_, stream);
  };
  return staged("all-reduce", bytes, {0, bytes.size()}, {0, bytes.size()}, enqueue);
}

Result<> NcclCommunicator::all_reduce_sum(std::span<float> values) {
  return reduce(std::as_writable_bytes(values), values.size(), ncclFloat32);
}

Result<> NcclCommunicator::all_reduce_sum(std::span<double> values) {
  return reduce(std::as_writable_bytes(values), values.size(), ncclFloat64);
}

Result<> NcclCommunicator::broadcast(std::span<std::byte> data, int root) {
  const BufferRange all{0, data.size()}, none;
  const auto enqueue = [&](const NcclFunctions& nccl, std::byte* device, cudaStream_t stream) {
    return nccl.broadcast(device, device, data.size(), ncclUint8, root, comm_, stream);
  };
  return staged("broadcast", data, rank_ == root ? all : none, rank_ == root ? none : all, enqueue);
}

Result<std::vector<std::uint64_t>> NcclCommunicator::all_gather(std::span<const std::uint64_t> mine) {
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(world_size_));
  std::ranges::copy(mine, all.begin() + static_cast<std::ptrdiff_t>(mine.size()) * rank_);
  auto done = all_gather_parts(std::as_writable_bytes(std::span(all)));
  if (!done) return done.error();
  return all;
}

Result<> NcclCommunicator::all_gather_parts(std::span<std::byte> parts) {
  const std::size_t size = parts.size() / static_cast<std::size_t>(world_size_);
  const BufferRange own{size * static_cast<std::size_t>(rank_), size};
  const auto enqueue = [&](const NcclFunctions& nccl, std::byte* device, cudaStream_t stream) {
    return nccl.all_gather(device + own.offset, device, size, ncclUint8, comm_, stream);
  };
  return staged("all-gather", parts, own, {0, parts.size()}, enqueue);
}

Result<> NcclCommunicator::barrier() {
  std::byte one[sizeof(float)] = {};
  const auto enqueue = [&](const NcclFunctions& nccl, std::byte* device, cudaStream_t stream) {
    return nccl.all_reduce(device, device, 1, ncclFloat32, ncclSum, comm_, stream);
  };
  return staged("barrier", one, {0, sizeof one}, {}, enqueue);
}

Result<> NcclCommunicator::enqueue_on_device(const DeviceOperation& operation, void* stream_of_caller) {
  void* const data = operation.data;
  const std::size_t count = operation.count, part = count / static_cast<std::size_t>(world_size_);
  auto* const own =
      static_cast<std::byte*>(data) + static_cast<std::size_t>(rank_) * part * size_of(operation.type);
  const ncclDataType_t type = nccl_type(operation.type);
  auto* const stream = static_cast<cudaStream_t>(stream_of_caller);
  return link_->call(comm_, kind_text(operation.kind), [&](const NcclFunctions& nccl) {
    switch (operation.kind) {
      case DeviceOperation::Kind::kAllReduce:
        return nccl.all_reduce(data, data, count, type, ncclSum, comm_, stream);
      case DeviceOperation::Kind::kBroadcast:
        return nccl.broadcast(data, data, count, type, operation.root, comm_, stream);
      case DeviceOperation::Kind::kReduceScatter:
        return nccl.reduce_scatter(data, own, part, type, ncclSum, comm_, stream);
      case DeviceOperation::Kind::kAllGather:
        return nccl.all_gather(own, data, part, type, comm_, stream);
    }
    return ncclInvalidArgument;
  });
}

Result<> NcclCommunicator::wait_for_device(const IsDeviceDone& done, std::string_view operation) {
  return link_->wait(comm_, operation, done);
}

void NcclCommunicator::on_end(GraphOwner owner) {
  link_->on_end(std::move(owner));
}

DeviceMemory NcclCommunicator::share_device_memory(std::size_t bytes) {
  return link_->share_memory(comm_, bytes);
}

NcclBetween::NcclBetween(int node, int nodes, std::shared_ptr<Communicator> lane,
                         std::shared_ptr<Communicator> inside)
    : node_(node), nodes_(nodes), lane_(std::move(lane)), inside_(std::move(inside)) {}

Result<> NcclBetween::hand_on(std::span<std::byte> data) {
  return inside_ ? inside_->broadcast(data, 0) : Result<>();
}

template <class T>
Result<> NcclBetween::reduce(std::span<T> values) {
  if (lane_) {
    if (auto summed = lane_->all_reduce_sum(values); !summed) return summed;
  }
  return hand_on(std::as_writable_bytes(values));
}

Result<> NcclBetween::all_reduce_sum(std::span<float> values) {
  return reduce(values);
}

Result<> NcclBetween::all_reduce_sum(std::span<double> values) {
  return reduce(values);
}

Result<> NcclBetween::broadcast(std::span<std::byte> data, int root) {
  if (lane_) {
    if (auto sent = lane_->broadcast(data, root); !sent) return sent;
  }
  return hand_on(data);
}

Result<std::vector<std::uint64_t>> NcclBetween::all_gather(std::span<const std::uint64_t> mine) {
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(nodes_));
  if (lane_) {
    auto gathered = lane_->all_gather(mine);
    if (!gathered) return gathered;
    all = std::move(*gathered);
  }
  if (auto handed = hand_on(std::as_writable_bytes(std::span(all))); !handed) return handed.error();
  return all;
}

Result<> NcclBetween::barrier() {
  // Inside first: a node has arrived when all its ranks have.
  if (inside_) {
    if (auto done = inside_->barrier(); !done) return done;
  }
  if (lane_) {
    if (auto done = lane_->barrier(); !done) return done;
  }
  return inside_ ? inside_->barrier() : Result<>();
}

}  // namespace ddp::train
