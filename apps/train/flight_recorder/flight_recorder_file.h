#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

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
  struct Unmap {
    bool mapped = false;
    void operator()(rendezvous::FlightRecorderMemory* memory) const;
  };
  using Memory = std::unique_ptr<rendezvous::FlightRecorderMemory, Unmap>;
  static Memory find_memory(const LogLocation& location);

  std::string path_;  ///< empty: no file is written
  Memory memory_;
  rendezvous::FlightRecorderMemory::Group unseen_{};  ///< for groups that do not fit into memory_
  std::deque<rendezvous::FlightRecorder> groups_;     ///< a deque, so that references stay valid
  bool failed_ = false;
};

/// Returns the desync analysis of all files in a directory (analyze_desync()), as text for a person.
Result<std::string> read_flight_recorders(const std::string& directory);

}  // namespace ddp::train
