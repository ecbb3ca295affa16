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

RecordedCommunicator::RecordedCommunicator(std::unique_ptr<Communicator> under,
                                           std::shared_ptr<FlightRecorderFile> file, const std::string& group,
                                           int first, int ranks)
    : under_(std::move(under)), file_(std::move(file)), log_(file_->open_group(group, first, ranks)) {}

std::uint64_t RecordedCommunicator::begin(std::string_view kind, std::size_t bytes, std::string_view type) {
  return file_->has_failed() ? 0 : log_.start(kind, bytes, type, read_clock(CLOCK_REALTIME).count());
}

template <class T>
Result<T> RecordedCommunicator::end(std::uint64_t sequence, Result<T> result) {
  if (result) {
    log_.finish(sequence, read_clock(CLOCK_REALTIME).count());
  } else {
    file_->fail(result.error());
  }
  return result;
}

template <class Operation>
auto RecordedCommunicator::logged(CollectiveKind kind, std::size_t bytes, std::string_view type,
                                  const Operation& operation) {
  const auto sequence = begin(kind_text(kind), bytes, type);
  return end(sequence, operation());
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
  const auto sequence = begin(kind_text(CollectiveKind::kAllReduce), values.size_bytes(), type);
  auto handle = under_->start_all_reduce(values);
  if (!handle) return end(sequence, std::move(handle));
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
  return end(sequence, under_->wait(handle));
}

Result<> RecordedCommunicator::progress() {
  auto moved = under_->progress();
  if (!moved) file_->fail(moved.error());
  return moved;
}

Result<> RecordedCommunicator::enqueue_on_device(const DeviceOperation& operation, void* stream) {
  auto done = under_->enqueue_on_device(operation, stream);
  if (!done) file_->fail(done.error());
  return done;
}

void RecordedCommunicator::launched(const DeviceOperation& operation) {
  launched_.push_back(
      begin(kind_text(operation.kind), operation.count * size_of(operation.type), type_text(operation.type)));
  under_->launched(operation);
}

Result<> RecordedCommunicator::wait_for_device(const IsDeviceDone& done, std::string_view operation) {
  std::uint64_t sequence = 0;
  if (!launched_.empty()) {
    sequence = launched_.front();
    launched_.pop_front();
  }
  return end(sequence, under_->wait_for_device(done, operation));
}

}  // namespace ddp::train
