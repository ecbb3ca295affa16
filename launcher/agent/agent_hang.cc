// The part of the Agent that handles hangs (docs/users/hang.md).
#include <unistd.h>

#include <utility>

#include "launcher/agent/agent.h"

namespace ddp::launcher {

void Agent::monitor_hangs(std::vector<WorkerSpec>& workers) {
  hang_monitor_.reset();  // the previous attempt's, which has ended
  if (hang_timeout_.count() == 0 || workers.empty()) return;
  HangMonitor::SendMessage send = [this](const rendezvous::Message& message) { link_.send(message); };
  HangMonitor::IsOutputPaused held = [this] { return credit_.room(1) == 0 || credit_.room(2) == 0; };
  hang_monitor_ = std::make_unique<HangMonitor>(loop_.get_executor(), core_.attempt().attempt, hang_timeout_,
                                                std::move(send), std::move(held));
  hang_monitor_->start(workers.front().env);
  for (WorkerSpec& worker : workers)
    worker.tracer = ::getpid();  // gdb and py-spy will be our children
}

/// PIDs that another component reaps.
std::vector<pid_t> Agent::children() const {
  std::vector<pid_t> pids = workers_->pids();
  if (!hang_monitor_) return pids;
  const std::vector<pid_t> tools = hang_monitor_->pids();
  pids.insert(pids.end(), tools.begin(), tools.end());
  return pids;
}

/// Its tools must not count as leftovers of the workers.
Awaitable<> Agent::stop_monitoring() {
  if (!hang_monitor_) co_return;
  hang_monitor_->stop();
  co_await hang_monitor_->idle();
}

void Agent::handle(const rendezvous::Inspect& message) {
  if (hang_monitor_ && core_.running()) hang_monitor_->inspect(message);
}

}  // namespace ddp::launcher
