#include "apps/train/bench/bench_operation.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/format_text.h"

namespace ddp::train {

namespace {

/// Sums of these values over any number of ranks are exact in float32.
float value_of(int rank, std::size_t index) {
  return static_cast<float>((rank % 64) + 1 + static_cast<int>(index % 7));
}

double sum_of(int world, std::size_t index) {
  double sum = 0;
  for (int rank = 0; rank < world; ++rank)
    sum += static_cast<double>(value_of(rank, index));
  return sum;
}

DeviceOperation::Kind device_kind(BenchOperation kind) {
  using Kind = DeviceOperation::Kind;
  return kind == BenchOperation::kAllGather       ? Kind::kAllGather
         : kind == BenchOperation::kReduceScatter ? Kind::kReduceScatter
         : kind == BenchOperation::kBroadcast     ? Kind::kBroadcast
                                                  : Kind::kAllReduce;
}

}  // namespace

Result<std::unique_ptr<BenchMemory>> BenchMemory::make(Communicator& communicator, std::size_t bytes) {
  std::unique_ptr<BenchMemory> memory(new BenchMemory(communicator));
  const std::size_t count = bytes / sizeof(float);
  if (communicator.has_device_operations()) {
    auto device = DeviceBuffer::make(communicator, bytes);
    if (!device) return device.error();
    memory->device_ = std::move(*device);
    memory->values_ = std::span(reinterpret_cast<float*>(memory->device_->memory().bytes.data()), count);
  } else if (const auto shared = communicator.share_memory(bytes); !shared.empty()) {
    memory->values_ = std::span(reinterpret_cast<float*>(shared.data()), count);
  } else {
    try {
      memory->own_ = AlignedBuffer<float>(count);
    } catch (const std::bad_alloc&) {  // a limit of the process, or other processes were faster
      return Error{ErrorCode::kSystem, "this process cannot allocate " + format_bytes(bytes) +
                                           " of memory for the messages; write a smaller -b or -e"};
    }
    memory->values_ = memory->own_.span();
  }
  return memory;
}

std::string BenchMemory::registration() const {
  if (device_ == nullptr) return "";
  switch (device_->memory().registration) {
    case DeviceMemory::RegistrationKind::kWindow:
      return "symmetric windows";
    case DeviceMemory::RegistrationKind::kRegistered:
      return "registered";
    case DeviceMemory::RegistrationKind::kNone:
      break;
  }
  return "not registered";
}

MeasuredOperation::MeasuredOperation(BenchOperation kind, BenchMemory& memory, std::size_t bytes)
    : kind_(kind),
      memory_(memory),
      rank_(memory.communicator().rank()),
      world_(memory.communicator().world_size()),
      count_(bytes / sizeof(float)) {
  const auto world = static_cast<std::size_t>(world_);
  if (kind == BenchOperation::kAllGather || kind == BenchOperation::kReduceScatter)
    count_ = count_ / world * world;
  buffer_ = memory.values().first(count_);
  if (memory.device() != nullptr)
    memory.device()->choose({device_kind(kind), buffer_.data(), count_, DeviceType::kFloat32, 0});
}

Result<> MeasuredOperation::fill() {
  DeviceBuffer* const device = memory_.device();
  std::vector<float> copy(device != nullptr ? buffer_.size() : 0);
  const std::span<float> values = device != nullptr ? std::span(copy) : buffer_;
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = value_of(rank_, i);
  return device != nullptr ? device->put(std::as_bytes(values)) : Result<>();
}

Result<> MeasuredOperation::run() {
  if (memory_.device() != nullptr) return memory_.device()->run();
  Communicator& communicator = memory_.communicator();
  const auto bytes = std::as_writable_bytes(buffer_);
  switch (kind_) {
    case BenchOperation::kAllReduce:
      return communicator.all_reduce_sum(buffer_);
    case BenchOperation::kAllGather:
      return communicator.all_gather_parts(bytes);
    case BenchOperation::kReduceScatter:
      return communicator.reduce_scatter_sum(buffer_);
    case BenchOperation::kBroadcast:
      return communicator.broadcast(bytes, 0);
    case BenchOperation::kPairs:
      break;
  }
  return {};
}

bool MeasuredOperation::is_result(std::size_t place) const {
  const std::size_t part = std::max<std::size_t>(count_ / static_cast<std::size_t>(world_), 1);
  return kind_ != BenchOperation::kReduceScatter || place / part == static_cast<std::size_t>(rank_);
}

double MeasuredOperation::expected(std::size_t place) const {
  const std::size_t part = std::max<std::size_t>(count_ / static_cast<std::size_t>(world_), 1);
  switch (kind_) {
    case BenchOperation::kAllReduce:
    case BenchOperation::kReduceScatter:
      return sum_of(world_, place);
    case BenchOperation::kAllGather:
      return static_cast<double>(value_of(static_cast<int>(place / part), place));
    case BenchOperation::kBroadcast:
      return static_cast<double>(value_of(0, place));
    case BenchOperation::kPairs:
      break;
  }
  return 0;
}

Result<std::uint64_t> MeasuredOperation::wrong() {
  DeviceBuffer* const device = memory_.device();
  std::vector<float> copy(device != nullptr ? buffer_.size() : 0);
  if (device != nullptr) {
    if (auto done = device->get(std::as_writable_bytes(std::span(copy))); !done) return done.error();
  }
  const std::span<const float> values = device != nullptr ? std::span<const float>(copy) : buffer_;
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    wrong += is_result(i) && static_cast<double>(values[i]) != expected(i);
  return wrong;
}

}  // namespace ddp::train
