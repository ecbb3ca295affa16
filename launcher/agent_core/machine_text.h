#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

// ---- the kernel's texts about the death of a process (sans-IO)

/// One record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg): "6,1234,5445602881,-;text\n KEY=value\n".
struct KernelLine {
  std::uint64_t time_us = 0;  ///< since boot, on the kernel's clock: close to CLOCK_MONOTONIC_RAW
  std::string text;           ///< without the KEY=value lines
};
std::optional<KernelLine> parse_kernel_line(std::string_view record);

/// The process that the OOM killer ended, from "Out of memory: Killed process 4242 (python3) …", "Memory
/// cgroup out of memory: Killed process …" and "oom-kill:constraint=…,pid=4242,uid=0".
struct OomVictim {
  std::int64_t pid = 0;  ///< the kernel's number, outside of all PID namespaces
  bool cgroup = false;   ///< a limit of its cgroup was exceeded, not the machine's memory
};
std::optional<OomVictim> parse_oom_victim(std::string_view text);

/// Recognizes "NVRM: Xid (PCI:0000:65:00): 79, …", an error that the NVIDIA driver reports.
bool is_xid_line(std::string_view text);

/// Returns whether an Xid line names the process: "…, pid=4242, name=python3, …", also with quotes.
bool xid_names(std::string_view text, std::int64_t pid);

/// The counter in memory.events (cgroup v2) or memory.oom_control (v1) of the group's processes that the OOM
/// killer ended; unset if the text has none (kernels before 4.13).
std::optional<std::uint64_t> parse_oom_kills(std::string_view text);

}  // namespace ddp::launcher
