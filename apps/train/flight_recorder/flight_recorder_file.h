#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "base/result.h"
#include "rendezvous/flight_recorder/flight_recorder.h"

namespace ddp::train {

/// The logs of one rank's communicators, where the agent of its node finds them, and the file that they are
/// written to when an operation of one fails: `directory`/rank-R.jsonl (of a later attempt A:
/// rank-R.attempt-A.jsonl). After that first failure nothing is an operation. One thread.
class FlightRecorderFile {
 public:
  struct LogLocation {
    std::string
        memory;  ///< DDPLAUNCH_COLLECTIVES: a file of a FlightRecorderMemory for each rank of the node
    int local_rank = 0;     ///< which of them is this rank's
    std::string directory;  ///< empty: no file is written
  };

  /// Memory that cannot be had is our own then: the launcher knows nothing of this rank's operations. A
  /// directory that cannot be made is said on stderr; in one that can, what an earlier job of this rank left
  /// is removed.
  FlightRecorderFile(const LogLocation& location, int rank, int world_size, std::uint32_t attempt);

  /// Of a communicator that the `ranks` ranks from `first` on call; lives as long as this. `name`:
  /// RecordedGroup::name.
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

  std::string path_;  ///< empty: none is written
  Memory memory_;
  rendezvous::FlightRecorderMemory::Group unseen_{};  ///< of groups for which there is no room
  std::deque<rendezvous::FlightRecorder> groups_;     ///< what lies in it does not move
  bool failed_ = false;
};

/// What the files in a directory say together (analyze_desync()), for a person.
Result<std::string> read_flight_recorders(const std::string& directory);

}  // namespace ddp::train
