#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::launcher {

/// Memory of the agent in which each of its workers records its collectives, as `train` does
/// (rendezvous::FlightRecorderMemory). It is read when workers have ended or left an attempt, however they
/// ended. Loop thread.
class FlightRecorderBoard {
 public:
  /// Makes room for `workers` workers and keeps existing contents. Error: kSystem.
  Result<> make_room(std::uint32_t workers);
  /// DDPLAUNCH_COLLECTIVES of the workers: a file that processes of our user can open while the agent is
  /// alive. It holds one FlightRecorderMemory for each local rank, kStride bytes apart. Empty: there is no
  /// room.
  std::string path() const;

  /// The worker's open operations and the last finished one, as dump_text(). Empty if the worker has written
  /// nothing in that attempt as that rank.
  std::string text(std::uint32_t local_rank, std::uint32_t rank, std::uint32_t attempt) const;

 private:
  UniqueFd memory_;
  std::uint32_t room_ = 0;
};

}  // namespace ddp::launcher
