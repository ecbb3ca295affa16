#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/option_table.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/options/options.h"

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

/// `argv[0]` is "health".
ParsedCommand<HealthOptions> parse_health_options(int argc, const char* const* argv);
/// Returns the options of --help, for the documents.
std::vector<OptionGroup> health_option_groups();

/// Returns the options that must be equal on all ranks.
EqualOptions equal_options(HealthOptions options);

/// Runs `train health …`; returns the exit code (docs/users/acceptance.md).
int run_health(int argc, const char* const* argv);

}  // namespace ddp::train
