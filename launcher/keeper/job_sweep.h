#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/asio.h"

namespace ddp::launcher {

/// The result of a sweep.
struct SweptJob {
  std::size_t found = 0;
  std::vector<std::string> left;  ///< processes that did not end, and why others may live; empty: none lives
};

/// Ends the processes of a job that no live keeper guards, wherever they are: those with its mark
/// (TreeScope::job_id) and their descendants. Never touches children of this process. `stop` ends it early.
Awaitable<SweptJob> sweep_job(asio::any_io_executor executor, std::string job_id, const bool* stop);

/// Makes the keepers of a job end with all that they guard, although nobody may stop the job any more:
/// SIGTERM first, SIGKILL after 8 s. The job's master must have ended. Returns the number of processes that
/// were found, with those keepers and their agents.
Awaitable<std::size_t> stop_keepers(asio::any_io_executor executor, std::string job_id, const bool* stop);

}  // namespace ddp::launcher
