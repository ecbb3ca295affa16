// The part of the Agent that handles worker events: start, end and output.
#include <utility>

#include "launcher/agent/agent.h"
#include "launcher/report/exit_code.h"

namespace ddp::launcher {

void Agent::worker_started(std::uint32_t local, pid_t pid) {
  WorkerProcess process;
  process.pid = pid;
  process.start_attempt = attempt_;
  process.started_ns = clock_ns();
  processes_.started(local, process);
  link_.send(rendezvous::WorkerStarted{attempt_, first_rank_ + local, static_cast<std::uint32_t>(pid),
                                       process.started_ns, attempt_});
  if (worker_link_) worker_link_->started(local);
  evidence_.worker_started(pid);
  if (hang_monitor_) hang_monitor_->worker_started(first_rank_ + local, pid);
}

void Agent::worker_exited(std::uint32_t local, pid_t pid, const ExitStatus& status) {
  rendezvous::WorkerExited exited;
  exited.attempt = attempt_;
  exited.rank = first_rank_ + local;
  exited.pid = static_cast<std::uint32_t>(pid);
  exited.clock_ns = clock_ns();
  switch (status.kind) {
    case ExitStatus::Kind::kExited:
      exited.code = static_cast<std::uint8_t>(status.number);
      break;
    case ExitStatus::Kind::kSignaled:
      exited.signal = static_cast<std::uint8_t>(status.number);
      break;
    case ExitStatus::Kind::kUnknown:
      exited.code = 255;
      break;
  }
  exited.core = status.core_dumped;
  const std::string* killed = processes_.killed(local);
  exited.by_revoke = killed != nullptr;
  exited.after_stop = workers_->ended_after_stop(local);
  if (killed != nullptr) exited.text = *killed;
  link_.send(exited);
  if (!exited.by_revoke) evidence_.worker_ended(exited.rank, pid, status);
  if (hang_monitor_) hang_monitor_->worker_ended(exited.rank);
  worker_gone(local);
}

void Agent::worker_not_started(std::uint32_t local, const Error& error) {
  rendezvous::WorkerExited exited;
  exited.attempt = attempt_;
  exited.rank = first_rank_ + local;
  exited.code = static_cast<std::uint8_t>(exec_exit_code(error.sys));
  exited.sys = error.sys;
  exited.clock_ns = clock_ns();
  exited.text = error.text;
  link_.send(exited);
}

/// Sends reports about all workers of the node, which may have waited for the last start.
void Agent::all_started() {
  revoke_step_.cancel();
  if (waiting_) return;
  if (processes_.take_greeted_change()) link_.send(rendezvous::WorkersGreeted{attempt_});
  if (processes_.take_ready_change()) link_.send(rendezvous::WorkersReady{attempt_});
}

OutputSink::Move Agent::move_output(std::uint32_t local, std::uint8_t stream, int pipe, std::size_t size) {
  using Splice = rendezvous::Connection::Splice;
  switch (link_.splice_output({attempt_, first_rank_ + local, stream, clock_ns(), {}}, pipe, size)) {
    case Splice::kCopy:
      return Move::kRead;
    case Splice::kLater:
      return Move::kLater;
    case Splice::kMoved:
      break;
  }
  credit_.spend(stream, size);
  if (hang_monitor_) hang_monitor_->worker_wrote();
  return Move::kMoved;
}

void Agent::worker_output(std::uint32_t local, std::uint8_t stream, std::span<const char> bytes) {
  credit_.spend(stream, bytes.size());
  if (hang_monitor_) hang_monitor_->worker_wrote();
  link_.send_output(
      {attempt_, first_rank_ + local, stream, clock_ns(), std::string_view(bytes.data(), bytes.size())});
}

}  // namespace ddp::launcher
