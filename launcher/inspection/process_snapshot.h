#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "launcher/keeper/process_table.h"

namespace ddp::launcher {

/// Who descends from whom, at one moment.
class ProcessForest {
 public:
  ProcessForest();  ///< reads /proc: 10 to 20 µs for each process of the machine

  /// `root` and all below it, parents first; empty when it has gone.
  std::vector<ProcessInfo> tree(pid_t root) const;

 private:
  std::map<pid_t, ProcessInfo> processes_;
  std::multimap<pid_t, pid_t> children_;
};

/// What can be known of a worker without touching it.
struct ProcessSnapshot {
  pid_t subject = 0;  ///< the process that does the work: the worker, or what a shell around it waits for
  std::string state;  ///< what its main thread does, in the words of wait_text
  std::string text;   ///< processes, threads, kernel stacks, sockets; many lines
};

/// Reads from /proc what each thread of the worker waits for. Only files that take none of the locks that a
/// thread stuck in the kernel may hold (never cmdline, environ, maps): a few ms for a process with a hundred
/// threads, and it cannot hang.
ProcessSnapshot take_snapshot(pid_t leader, const ProcessForest& forest);

inline constexpr std::size_t kMaxSnapshotText = 64u << 10;

}  // namespace ddp::launcher
