#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace ddp::launcher {

/// A process that was executed with the mark of the job (TreeScope).
struct MarkedProcess {
  pid_t pid = 0;
  int local_rank = -1;  ///< LOCAL_RANK; -1: not a number
  UniqueFd fd;          ///< open_process; of the process whose environment was read
};

/// Reads the environments of processes for the mark of a job. A child process reads them: the kernel blocks a
/// reader of /proc/PID/environ while the process's memory is locked (an exec or a page fault on a dead disk).
/// A child that makes no progress is killed, and a new one continues behind the process that blocked it. A
/// call waits only for the death of a killed child, half a second at most. One thread. waitid finds the child
/// only with __WCLONE. The child holds none of our descriptors.
class MarkSearch {
 public:
  /// If no child can be made, nothing is found.
  MarkSearch(std::string_view job_id, std::vector<pid_t> pids);
  ~MarkSearch();
  MarkSearch(const MarkSearch&) = delete;
  MarkSearch& operator=(const MarkSearch&) = delete;

  /// The processes found since the last call.
  std::vector<MarkedProcess> take_found();
  bool is_over() const { return next_ == pids_.size(); }
  /// True if some environments were not read: a process blocked its reader or was always within an exec, or
  /// no reader could be made.
  bool skipped() const { return skipped_; }
  /// The processes that may have replaced the mark, once the search is over: their environment does not name
  /// another job, or could not be read.
  std::vector<pid_t> take_unproven() { return std::move(unproven_); }
  /// Waits until take_found is worth calling again, at most `limit`.
  void wait(std::chrono::milliseconds limit) const;
  pid_t reader() const { return reader_; }

 private:
  using Clock = std::chrono::steady_clock;

  void start_reader();
  void stop_reader();
  void skip_to(std::size_t next);

  std::string mark_;
  std::vector<pid_t> pids_;
  std::size_t next_ = 0;  ///< index of the process that is being read
  bool skipped_ = false;
  std::vector<pid_t> unproven_;
  pid_t reader_ = -1;
  UniqueFd answers_;              ///< one packet for each process in turn
  Clock::time_point stalled_at_;  ///< when the reader counts as blocked, unless it answers
};

/// Returns whether a child of this process reads for a MarkSearch. A reader that the kernel holds outlives
/// its search. It is known by its exit signal, which is not SIGCHLD. Never blocks.
bool is_search_reader(pid_t child);

}  // namespace ddp::launcher
