#include "apps/train/flight_recorder/recorded_communicator.h"

#include "base/clock.h"

namespace ddp::train {

namespace {

std::string_view type_text(DeviceType type) {
  switch (type) {
    case DeviceType::kFloat32:
      return "float";
    case DeviceType::kFloat64:
      return "double";
    case DeviceType::kBfloat16:
      return "bfloat16";
  }
  return "float";
}

}  // namespace

std::uint64_t RecordedOperations::begin(CollectiveKind kind, std::size_t bytes, std::string_view type) {
  return file_->has_failed() ? 0
                             : log_.start(kind_text(kind), bytes, type, read_clock(CLOCK_REALTIME).count());
}

void RecordedOperations::finish(std::uint64_t sequence) {
  log_.finish(sequence, read_clock(CLOCK_REALTIME).count());
}

template <class T>
Result<T> RecordedOperations::end(std::uint64_t sequence, Result<T> result) {
  if (result) {
    finish(sequence);
  } else {
    fail(result.error());
  }
  return result;
}

Result<> RecordedDeviceAllReducer::enqueue(void* numbers, std::size_t count, DeviceType type, void* stream) {
  auto done = under_.enqueue(numbers, count, type, stream);
  if (!done) operations_.fail(done.error());
  return done;
}

void RecordedDeviceAllReducer::launched(std::size_t bytes, DeviceType type) {
  launched_.push_back(operations_.begin(CollectiveKind::kAllReduce, bytes, type_text(type)));
  under_.launched(bytes, type);
}

Result<> RecordedDeviceAllReducer::wait(const IsDone& done, std::string_view operation) {
  std::uint64_t sequence = 0;
  if (!launched_.empty()) {
    sequence = launched_.front();
    launched_.pop_front();
  }
  return operations_.end(sequence, under_.wait(done, operation));
}

RecordedCommunicator::RecordedCommunicator(std::unique_ptr<Communicator> under,
                                           std::shared_ptr<FlightRecorderFile> file, const std::string& group,
                                           int first, int ranks)
    : under_(std::move(under)), operations_(std::move(file), group, first, ranks) {
  if (DeviceAllReducer* const reducer = under_->device_all_reducer(); reducer != nullptr)
    device_all_reducer_.emplace(*reducer, operations_);
}

template <class Operation>
auto RecordedCommunicator::logged(CollectiveKind kind, std::size_t bytes, std::string_view type,
                                  const Operation& operation) {
  const auto sequence = operations_.begin(kind, bytes, type);
  return operations_.end(sequence, operation());
}

Result<> RecordedCommunicator::all_reduce_sum(std::span<float> values) {
  return logged(CollectiveKind::kAllReduce, values.size_bytes(), "float",
                [&] { return under_->all_reduce_sum(values); });
}

Result<> RecordedCommunicator::all_reduce_sum(std::span<double> values) {
  return logged(CollectiveKind::kAllReduce, values.size_bytes(), "double",
                [&] { return under_->all_reduce_sum(values); });
}

Result<> RecordedCommunicator::broadcast(std::span<std::byte> data, int root) {
  return logged(CollectiveKind::kBroadcast, data.size(), "bytes",
                [&] { return under_->broadcast(data, root); });
}

Result<std::vector<std::uint64_t>> RecordedCommunicator::all_gather(std::span<const std::uint64_t> mine) {
  return logged(CollectiveKind::kAllGather, mine.size_bytes(), "u64",
                [&] { return under_->all_gather(mine); });
}

Result<> RecordedCommunicator::barrier() {
  return logged(CollectiveKind::kBarrier, 0, "bytes", [&] { return under_->barrier(); });
}

Result<> RecordedCommunicator::reduce_scatter_sum(std::span<float> values) {
  return logged(CollectiveKind::kReduceScatter, values.size_bytes(), "float",
                [&] { return under_->reduce_scatter_sum(values); });
}

Result<> RecordedCommunicator::reduce_scatter_sum(std::span<double> values) {
  return logged(CollectiveKind::kReduceScatter, values.size_bytes(), "double",
                [&] { return under_->reduce_scatter_sum(values); });
}

Result<> RecordedCommunicator::all_gather_parts(std::span<std::byte> parts) {
  return logged(CollectiveKind::kAllGather, parts.size(), "bytes",
                [&] { return under_->all_gather_parts(parts); });
}

Result<> RecordedCommunicator::gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) {
  return logged(CollectiveKind::kGather, mine.size(), "bytes",
                [&] { return under_->gather(mine, all, root); });
}

template <class T>
Result<Communicator::Handle> RecordedCommunicator::begun(std::span<T> values, std::string_view type) {
  const auto sequence = operations_.begin(CollectiveKind::kAllReduce, values.size_bytes(), type);
  auto handle = under_->start_all_reduce(values);
  if (!handle) return operations_.end(sequence, std::move(handle));
  started_.emplace_back(*handle, sequence);
  return handle;
}

Result<Communicator::Handle> RecordedCommunicator::start_all_reduce(std::span<float> values) {
  return begun(values, "float");
}

Result<Communicator::Handle> RecordedCommunicator::start_all_reduce(std::span<double> values) {
  return begun(values, "double");
}

Result<> RecordedCommunicator::wait(Handle handle) {
  std::uint64_t sequence = 0;
  if (!started_.empty() && started_.front().first == handle) {
    sequence = started_.front().second;
    started_.pop_front();
  }
  return operations_.end(sequence, under_->wait(handle));
}

Result<> RecordedCommunicator::progress() {
  auto moved = under_->progress();
  if (!moved) operations_.fail(moved.error());
  return moved;
}

}  // namespace ddp::train
