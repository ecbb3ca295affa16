#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace ddp::launcher {

/// A process that was executed with the mark of the job (TreeScope).
struct MarkedProcess {
  pid_t pid = 0;
  int local_rank = -1;  ///< LOCAL_RANK; -1: that is no number
  UniqueFd pidfd;       ///< of the process whose environment was read
};

/// Reads the environments of processes for the mark of a job. The kernel holds a reader of /proc/PID/environ
/// for as long as the process's memory is locked (an exec or a page fault on a dead disk), so a child of ours
/// reads. A child that makes no progress is killed, and another one goes on behind the process at which it
/// stood. No call blocks. One thread. The child is none of those that waitid finds without __WCLONE. It holds
/// no descriptor of ours.
class MarkSearch {
 public:
  /// Where no child can be made, nothing is found.
  MarkSearch(std::string_view job_id, std::vector<pid_t> pids);
  ~MarkSearch();
  MarkSearch(const MarkSearch&) = delete;
  MarkSearch& operator=(const MarkSearch&) = delete;

  /// Those found since the last call.
  std::vector<MarkedProcess> take_found();
  bool is_over() const { return next_ == pids_.size(); }
  /// Not every environment was read: a process held its reader, or no reader could be made.
  bool skipped() const { return skipped_; }
  /// Until it is worth to call take_found again, at most `limit`.
  void wait(std::chrono::milliseconds limit) const;
  pid_t reader() const { return reader_; }

 private:
  using Clock = std::chrono::steady_clock;

  void start_reader();
  void stop_reader();
  void skip_to(std::size_t next);

  std::string mark_;
  std::vector<pid_t> pids_;
  std::size_t next_ = 0;  ///< the one that is being read
  bool skipped_ = false;
  pid_t reader_ = -1;
  UniqueFd answers_;              ///< a packet for each process in turn
  Clock::time_point stalled_at_;  ///< without another answer
};

}  // namespace ddp::launcher
