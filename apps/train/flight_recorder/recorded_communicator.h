#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/schedule/collective_machine.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "base/result.h"
#include "rendezvous/flight_recorder/flight_recorder.h"

namespace ddp::train {

/// The logs of one rank's communicators, in memory that the agent of its node reads. When an operation of one
/// fails, all logs are written to `directory`/rank-R.jsonl (in a later attempt A: rank-R.attempt-A.jsonl).
/// After that first failure, operations are not logged. One thread.
class FlightRecorderFile {
 public:
  struct LogLocation {
    std::string memory;  ///< DDPLAUNCH_COLLECTIVES: file with one FlightRecorderMemory per rank of the node
    int local_rank = 0;  ///< index of this rank's FlightRecorderMemory
    std::string directory;  ///< empty: no file is written
  };

  /// If the agent's memory cannot be mapped, logs go to private memory, and the launcher sees none of this
  /// rank's operations. A directory that cannot be created is reported on stderr. In a usable one, files that
  /// an earlier job left for this rank are removed.
  FlightRecorderFile(const LogLocation& location, int rank, int world_size, std::uint32_t attempt);

  /// Returns the log of the communicator of `ranks` ranks from `first` on. The log lives as long as this
  /// object. `name`: RecordedGroup::name.
  rendezvous::FlightRecorder& open_group(const std::string& name, int first, int ranks);
  bool has_failed() const { return failed_; }
  void fail(const Error& error);

 private:
  rendezvous::FlightRecorderMemory& memory() const {
    return *reinterpret_cast<rendezvous::FlightRecorderMemory*>(memory_.get());
  }

  std::string path_;                                  ///< empty: no file is written
  MappedBytes memory_;                                ///< of one FlightRecorderMemory
  rendezvous::FlightRecorderMemory::Group unseen_{};  ///< for groups that do not fit into memory_
  std::deque<rendezvous::FlightRecorder> groups_;     ///< a deque, so that references stay valid
  bool failed_ = false;
};

/// Returns the desync analysis of all files in a directory (analyze_desync()), as text for a person.
Result<std::string> read_flight_recorders(const std::string& directory);

/// Records the operations of another communicator in a log (FlightRecorderFile). An operation on a GPU is in
/// the log from its launch, also in a replayed graph, until it has been waited for.
class RecordedCommunicator final : public Communicator {
 public:
  /// `first`, `ranks`: as in FlightRecorderFile::open_group.
  RecordedCommunicator(std::unique_ptr<Communicator> under, std::shared_ptr<FlightRecorderFile> file,
                       const std::string& group, int first, int ranks);

  int rank() const override { return under_->rank(); }
  int world_size() const override { return under_->world_size(); }
  int lost_rank() const override { return under_->lost_rank(); }
  Result<> all_reduce_sum(NumberSpan values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override;
  Result<> barrier() override;
  Result<> reduce_scatter_sum(NumberSpan values) override;
  Result<> all_gather_parts(std::span<std::byte> parts) override;
  Result<> gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) override;
  std::span<std::byte> share_memory(std::size_t bytes) override { return under_->share_memory(bytes); }
  Result<Handle> start_all_reduce(NumberSpan values) override;
  Result<> wait(Handle handle) override;
  Result<> progress() override;
  bool has_device_operations() const override { return under_->has_device_operations(); }
  Result<> enqueue_on_device(const DeviceOperation& operation, void* stream) override;
  void launched(const DeviceOperation& operation) override;
  Result<> wait_for_device(const IsDeviceDone& done, std::string_view operation) override;
  void on_end(GraphOwner owner) override { under_->on_end(std::move(owner)); }
  DeviceMemory share_device_memory(std::size_t bytes) override { return under_->share_device_memory(bytes); }

 private:
  /// Returns a sequence number; 0 after a failure.
  std::uint64_t begin(std::string_view kind, std::size_t bytes, std::string_view type);
  /// Records the end of an operation; an error writes the file.
  template <class T>
  Result<T> end(std::uint64_t sequence, Result<T> result);
  /// Runs operation() → Result<T> and records it.
  template <class Operation>
  auto logged(CollectiveKind kind, std::size_t bytes, std::string_view type, const Operation& operation);

  std::unique_ptr<Communicator> under_;
  std::shared_ptr<FlightRecorderFile> file_;
  rendezvous::FlightRecorder& log_;                       ///< owned by file_
  std::deque<std::pair<Handle, std::uint64_t>> started_;  ///< in start order
  std::deque<std::uint64_t> launched_;                    ///< in launch order
};

}  // namespace ddp::train
