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

/// Fault injection: this rank's device gives a wrong result in the named test.
struct InjectedFault {
  int rank = 0;
  HealthFault fault = HealthFault::kGemm;
};

struct HealthOptions {
  std::chrono::milliseconds time{10'000};  ///< duration of the matrix products
  std::size_t memory_mb = 0;               ///< 0: 256, on a GPU most of the free memory
  HealthDeviceKind device = HealthDeviceKind::kAuto;
  int threads = 0;  ///< per rank on a CPU; 0: its part of the cores
  std::optional<InjectedFault> inject;
  CommKind comm = CommKind::kAuto;
  std::chrono::milliseconds comm_timeout{60'000};
  std::string json;  ///< file that rank 0 writes; empty: none
};

struct ParsedHealthOptions {
  std::optional<HealthOptions> options;  ///< empty: help or errors were printed
  int exit_code = 0;                     ///< 0 after --help, 2 after errors
};

/// `argv[0]` is "health".
ParsedHealthOptions parse_health_options(int argc, const char* const* argv);

/// Returns the options that must be equal on all ranks.
EqualOptions equal_options(const HealthOptions& options);

}  // namespace ddp::train
