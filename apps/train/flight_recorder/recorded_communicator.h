#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/device_all_reducer.h"
#include "apps/train/collectives/schedule/collective_machine.h"
#include "apps/train/flight_recorder/flight_recorder_file.h"

namespace ddp::train {

/// The operations of one group, in one order. Its communicator and that communicator's all-reduces on GPUs
/// begin and end them.
class RecordedOperations {
 public:
  /// `first`, `ranks`: as in FlightRecorderFile::open_group.
  RecordedOperations(std::shared_ptr<FlightRecorderFile> file, const std::string& group, int first, int ranks)
      : file_(std::move(file)), log_(file_->open_group(group, first, ranks)) {}

  /// Returns a sequence number; 0 after a failure.
  std::uint64_t begin(CollectiveKind kind, std::size_t bytes, std::string_view type);
  template <class T>
  Result<T> end(std::uint64_t sequence, Result<T> result);
  /// Writes the file.
  void fail(const Error& error) { file_->fail(error); }

 private:
  void finish(std::uint64_t sequence);

  std::shared_ptr<FlightRecorderFile> file_;
  rendezvous::FlightRecorder& log_;  ///< owned by file_
};

/// Records another communicator's all-reduces on GPUs. Each is in the log from its launch, also in a replayed
/// graph, until it has been waited for.
class RecordedDeviceAllReducer final : public DeviceAllReducer {
 public:
  RecordedDeviceAllReducer(DeviceAllReducer& under, RecordedOperations& operations)
      : under_(under), operations_(operations) {}

  Result<> enqueue(void* numbers, std::size_t count, DeviceType type, void* stream) override;
  void launched(std::size_t bytes, DeviceType type) override;
  Result<> wait(const IsDone& done, std::string_view operation) override;
  void on_end(GraphOwner owner) override { under_.on_end(std::move(owner)); }
  std::span<std::byte> share_memory(std::size_t bytes) override { return under_.share_memory(bytes); }

 private:
  DeviceAllReducer& under_;
  RecordedOperations& operations_;
  std::deque<std::uint64_t> launched_;
};

/// Records the operations of another communicator in a log (FlightRecorderFile).
class RecordedCommunicator final : public Communicator {
 public:
  RecordedCommunicator(std::unique_ptr<Communicator> under, std::shared_ptr<FlightRecorderFile> file,
                       const std::string& group, int first, int ranks);

  int rank() const override { return under_->rank(); }
  int world_size() const override { return under_->world_size(); }
  int lost_rank() const override { return under_->lost_rank(); }
  Result<> all_reduce_sum(std::span<float> values) override;
  Result<> all_reduce_sum(std::span<double> values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override;
  Result<> barrier() override;
  Result<> reduce_scatter_sum(std::span<float> values) override;
  Result<> reduce_scatter_sum(std::span<double> values) override;
  Result<> all_gather_parts(std::span<std::byte> parts) override;
  Result<> gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) override;
  std::span<std::byte> share_memory(std::size_t bytes) override { return under_->share_memory(bytes); }
  DeviceAllReducer* device_all_reducer() override {
    return device_all_reducer_ ? &*device_all_reducer_ : nullptr;
  }
  Result<Handle> start_all_reduce(std::span<float> values) override;
  Result<Handle> start_all_reduce(std::span<double> values) override;
  Result<> wait(Handle handle) override;
  Result<> progress() override;

 private:
  /// Runs operation() → Result<T> and records it.
  template <class Operation>
  auto logged(CollectiveKind kind, std::size_t bytes, std::string_view type, const Operation& operation);
  template <class T>
  Result<Handle> begun(std::span<T> values, std::string_view type);

  std::unique_ptr<Communicator> under_;
  RecordedOperations operations_;
  std::optional<RecordedDeviceAllReducer> device_all_reducer_;  ///< set if `under` has one
  std::deque<std::pair<Handle, std::uint64_t>> started_;        ///< in start order
};

}  // namespace ddp::train
