#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddp::launcher {

// Parses the kernel's texts about the death of a process (sans-IO).

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
