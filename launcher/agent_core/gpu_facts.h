#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The driver's data about a node's GPUs (sans-IO: parses the output of the tool that asked the driver).
struct GpuFacts {
  struct GpuProcess {
    std::size_t gpu = 0;  ///< index in `gpus`
    std::uint32_t pid = 0;
    std::uint64_t memory = 0;  ///< bytes; 0: unknown
  };
  std::vector<rendezvous::NodeGpu> gpus;  ///< in the driver's order; `processes` and `holders` are not set
  std::vector<GpuProcess> processes;      ///< processes of all users on the GPUs
  rendezvous::Pairs versions;
  std::string trouble;
};

/// Parses the output of ddplaunch-nvml (docs/users/check.md): words between tabs, the first of which is the
/// line's kind. Unknown lines are skipped, since a newer program may print more.
GpuFacts read_nvml_lines(std::string_view text);

/// Parses the output of nvidia-smi, both with --format=csv,noheader,nounits. `gpus`:
/// --query-gpu=index,uuid,name,memory.total,memory.free,driver_version. `processes`:
/// --query-compute-apps=gpu_uuid,pid,used_memory.
GpuFacts read_smi(std::string_view gpus, std::string_view processes);

}  // namespace ddp::launcher
