#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

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
  void take(std::string_view line);

  std::vector<std::uint32_t> only_;
  std::string rest_;  ///< the begin of a line
  std::vector<rendezvous::GpuSample> round_, complete_;
};

/// Returns the numbers of a list such as "0,2" (CUDA_VISIBLE_DEVICES) if it has only numbers, else nothing.
std::vector<std::uint32_t> device_numbers(std::string_view list);

}  // namespace ddp::launcher
