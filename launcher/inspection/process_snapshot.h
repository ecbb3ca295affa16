#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "launcher/keeper/process_table.h"

namespace ddp::launcher {

/// Parents and children of all processes, at one moment.
class ProcessForest {
 public:
  ProcessForest();  ///< reads /proc: 10 to 20 µs for each process of the machine

  /// `root` and all its descendants, parents first; empty if `root` has ended.
  std::vector<ProcessInfo> tree(pid_t root) const;

 private:
  std::map<pid_t, ProcessInfo> processes_;
  std::multimap<pid_t, pid_t> children_;
};

/// State of a worker, read from /proc without disturbing the worker.
struct ProcessSnapshot {
  pid_t subject = 0;  ///< the process that works: the worker, or the child of a shell that waits
  std::string state;  ///< what its main thread does, as in wait_text
  std::string text;   ///< processes, threads, kernel stacks, sockets; many lines
};

/// Reads from /proc what each thread of the worker waits for. Reads only files without locks that a thread
/// stuck in the kernel may hold (never cmdline, environ, maps), so it cannot hang. Takes a few ms for a
/// process with a hundred threads.
ProcessSnapshot take_snapshot(pid_t leader, const ProcessForest& forest);

inline constexpr std::size_t kMaxSnapshotText = 64u << 10;

}  // namespace ddp::launcher
