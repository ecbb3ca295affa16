#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::launcher {

/// Memory of this node's agent in which each of its workers writes what its communicators do, as `train` does
/// (rendezvous::FlightRecorderMemory). It is read when they have ended or let go of an attempt, whatever
/// became of them. Loop thread.
class FlightRecorderBoard {
 public:
  /// Room for so many workers; what lies there stays. Errors: kSystem.
  Result<> make_room(std::uint32_t workers);
  /// DDPLAUNCH_COLLECTIVES of the workers: a file for processes of our user as long as we live, one
  /// FlightRecorderMemory for each local rank, kStride bytes apart. Empty: there is no room.
  std::string path() const;

  /// The operations in which the worker stands, as dump_text(). Empty: it has written nothing in that attempt
  /// as that rank.
  std::string text(std::uint32_t local_rank, std::uint32_t rank, std::uint32_t attempt) const;

 private:
  UniqueFd memory_;
  std::uint32_t room_ = 0;
};

}  // namespace ddp::launcher
