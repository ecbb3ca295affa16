#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// What the driver tells of a node's GPUs (sans-IO: the text of who asked it, taken apart).
struct GpuFacts {
  struct GpuProcess {
    std::size_t gpu = 0;  ///< index in `gpus`
    std::uint32_t pid = 0;
    std::uint64_t memory = 0;  ///< bytes; 0: not told
  };
  std::vector<rendezvous::NodeGpu> gpus;  ///< in the driver's order; `processes` and `holders` are not set
  std::vector<GpuProcess> processes;      ///< on them, whoever started it
  rendezvous::Pairs versions;
  std::string trouble;
};

/// The lines of ddplaunch-nvml (docs/check.md): words between tabs, the first says what the line is. Lines
/// that are not known are skipped, as a newer one may print more.
GpuFacts read_nvml_lines(std::string_view text);

/// nvidia-smi's --query-gpu=index,uuid,name,memory.total,memory.free,driver_version and its
/// --query-compute-apps=gpu_uuid,pid,used_memory, both --format=csv,noheader,nounits.
GpuFacts read_smi(std::string_view gpus, std::string_view processes);

}  // namespace ddp::launcher
