#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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

// What a node and its job use (sans-IO): the kernel's texts as counters, two moments of counters as rates,
// and the lines of ddplaunch-nvml.

/// Bytes that came and went, or were read and written, since a moment that does not matter.
struct ByteCounters {
  std::uint64_t in = 0;
  std::uint64_t out = 0;
};

/// The state of a node at one moment. A counter that cannot be read is 0 at all moments.
struct UsageCounters {
  /// The CPU time of a process of the job, without that of its children. The key is never reused: pid and
  /// start time in clock ticks since boot.
  using ProcessKey = std::pair<pid_t, std::uint64_t>;

  std::chrono::nanoseconds at{0};  ///< of one monotonic clock
  std::uint32_t cpus = 0;
  std::chrono::nanoseconds cpu{0};  ///< busy time of all CPUs of the machine
  std::uint64_t memory = 0;         ///< bytes
  std::uint64_t memory_used = 0;
  std::chrono::nanoseconds group_cpu{0};  ///< of the attempt's control group; 0: it counts none
  std::map<ProcessKey, std::chrono::nanoseconds> process_cpu;
  std::uint64_t job_memory = 0;
  ByteCounters network, infiniband, disk;
  std::chrono::nanoseconds steal{0};         ///< CPU time that the host of a virtual machine took away
  std::chrono::nanoseconds memory_stall{0};  ///< time in which some process waited for memory
  std::uint64_t network_errors = 0;          ///< packets with errors
};

/// Takes the first line of /proc/stat, with waiting for disks as idle time (proc(5)), and the number of CPUs.
/// `tick` is one clock tick.
void read_proc_stat(std::string_view text, std::chrono::nanoseconds tick, UsageCounters& counters);
/// Returns the "some" time of /proc/pressure/memory (Documentation/accounting/psi.rst); 0: there is none.
std::chrono::nanoseconds read_pressure(std::string_view text);
/// Returns the packets with errors of all interfaces in /proc/net/dev.
std::uint64_t read_net_errors(std::string_view text);
/// Takes size and used memory from /proc/meminfo. What the kernel could free counts as not used.
void read_meminfo(std::string_view text, UsageCounters& counters);
/// Returns the counters of each interface in /proc/net/dev, without loopback.
std::map<std::string, ByteCounters> read_net_dev(std::string_view text);
/// Returns the counters of each block device in /proc/diskstats, whose sectors always have 512 bytes.
std::map<std::string, ByteCounters> read_diskstats(std::string_view text);
/// Returns usage_usec of a control group's cpu.stat; 0: the text has none.
std::chrono::nanoseconds read_group_cpu(std::string_view text);
/// Returns the memory in /proc/PID/status that is the process's alone: RssAnon, in bytes. Pages of files and
/// of shared memory would count once for each process that has them.
std::uint64_t read_private_memory(std::string_view text);

/// Returns the rates between two moments and the sizes at the later one, without GPUs. A counter that has
/// become smaller (a device was removed) has the rate 0. Of a job without a counting group, a process that is
/// new counts with the time that it could have used since `before`: it may have been found late.
rendezvous::NodeSample usage_between(const UsageCounters& before, const UsageCounters& now);

/// The lines of `ddplaunch-nvml --samples`, as they come.
class GpuSampleLines {
 public:
  /// `only`: indices of the GPUs that count; empty: all.
  explicit GpuSampleLines(std::vector<std::uint32_t> only = {}) : only_(std::move(only)) {}
  void add(std::string_view bytes);
  /// The GPUs of the last complete round; empty before the first one.
  const std::vector<rendezvous::GpuSample>& gpus() const { return complete_; }

 private:
  void add_line(std::string_view line);

  std::vector<std::uint32_t> only_;
  std::string rest_;  ///< the begin of a line
  std::vector<rendezvous::GpuSample> round_, complete_;
};

/// Returns the numbers of a list such as "0,2" (CUDA_VISIBLE_DEVICES) if it has only numbers, else nothing.
std::vector<std::uint32_t> device_numbers(std::string_view list);

}  // namespace ddp::launcher
