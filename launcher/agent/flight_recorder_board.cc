#include "launcher/agent/flight_recorder_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "rendezvous/flight_recorder/flight_recorder.h"

namespace ddp::launcher {
namespace {

using rendezvous::FlightRecorderMemory;

/// One finished operation, so that the rank's position is known if no operation is open.
constexpr std::size_t kFinishedReported = 1;
/// More than `train` has in progress at once.
constexpr std::size_t kReported = 64;

}  // namespace

Result<> FlightRecorderBoard::make_room(std::uint32_t workers) {
  if (workers <= room_) return {};
  if (!memory_) memory_.reset(::memfd_create("ddplaunch-collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Pages are allocated on the first write. A worker that shrank the file would end the others by SIGBUS.
  if (!memory_ ||
      ::ftruncate(memory_.get(), static_cast<off_t>(FlightRecorderMemory::kStride) * workers) != 0 ||
      ::fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
    return system_error(errno, "make memory for the log of collectives");
  room_ = workers;
  return {};
}

std::string FlightRecorderBoard::path() const {
  if (room_ == 0) return {};
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(memory_.get());
}

std::string FlightRecorderBoard::text(std::uint32_t local_rank, std::uint32_t rank,
                                      std::uint32_t attempt) const {
  if (local_rank >= room_) return {};
  const off_t offset = static_cast<off_t>(FlightRecorderMemory::kStride) * local_rank;
  std::uint64_t magic = 0;
  if (::pread(memory_.get(), &magic, sizeof magic, offset) != sizeof magic ||
      magic != FlightRecorderMemory::kMagic)
    return {};
  const auto memory = std::make_unique<FlightRecorderMemory>();
  const ssize_t size = ::pread(memory_.get(), memory.get(), sizeof *memory, offset);
  if (size != static_cast<ssize_t>(sizeof *memory)) return {};
  const auto dump = rendezvous::read_collectives(*memory, kFinishedReported, kReported);
  if (!dump || dump->attempt != attempt || static_cast<std::uint32_t>(dump->rank) != rank) return {};
  return rendezvous::dump_text(*dump);
}

}  // namespace ddp::launcher
