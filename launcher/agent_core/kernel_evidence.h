#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddp::launcher {

// What the kernel writes about the death of a process, read from text (sans-IO).

/// One record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg): "6,1234,5445602881,-;text\n KEY=value\n".
struct KernelLine {
  std::uint64_t time_us = 0;  ///< since boot, by the kernel's own clock: near CLOCK_MONOTONIC_RAW
  std::string text;           ///< without the KEY=value lines
};
std::optional<KernelLine> parse_kernel_line(std::string_view record);

/// The process that the memory killer ended, from "Out of memory: Killed process 4242 (python3) …", "Memory
/// cgroup out of memory: Killed process …" and "oom-kill:constraint=…,pid=4242,uid=0".
struct OomVictim {
  std::int64_t pid = 0;  ///< as the kernel counts, outside of all PID namespaces
  bool cgroup = false;   ///< a limit of its cgroup, and not the machine, ran out
};
std::optional<OomVictim> parse_oom_victim(std::string_view text);

/// "NVRM: Xid (PCI:0000:65:00): 79, …": an error that the NVIDIA driver reports.
bool is_xid_line(std::string_view text);

/// Whether an Xid line names the process: "…, pid=4242, name=python3, …", also with quotes.
bool xid_names(std::string_view text, std::int64_t pid);

/// The counter of memory.events (cgroup v2) or memory.oom_control (v1) that says how many processes of the
/// group the memory killer ended; unset: the text has none (kernels before 4.13).
std::optional<std::uint64_t> parse_oom_kills(std::string_view text);

}  // namespace ddp::launcher
