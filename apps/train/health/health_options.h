#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "apps/train/collectives/communicator.h"
#include "apps/train/options/equal_options.h"

namespace ddp::train {

enum class HealthDeviceKind : std::uint8_t { kAuto, kCpu, kGpu };
enum class HealthFault : std::uint8_t { kGemm, kMemory, kSum };

/// A drill: this rank's device gives a wrong result there.
struct InjectedFault {
  int rank = 0;
  HealthFault fault = HealthFault::kGemm;
};

struct HealthOptions {
  std::chrono::milliseconds time{10'000};  ///< of the matrix products
  std::size_t memory_mb = 0;               ///< 0: 256, on a GPU most of what is free
  HealthDeviceKind device = HealthDeviceKind::kAuto;
  int threads = 0;  ///< of a CPU's rank; 0: its part of the cores
  std::optional<InjectedFault> inject;
  CommKind comm = CommKind::kAuto;
  std::chrono::milliseconds comm_timeout{60'000};
  std::string json;  ///< a file that rank 0 writes; empty: none
};

struct ParsedHealthOptions {
  std::optional<HealthOptions> options;  ///< empty: help or mistakes were printed
  int exit_code = 0;                     ///< 0 after --help, 2 after mistakes
};

/// `argv[0]` is "health".
ParsedHealthOptions parse_health_options(int argc, const char* const* argv);

/// What all ranks must be given alike.
EqualOptions equal_options(const HealthOptions& options);

}  // namespace ddp::train
