// The part of the Agent that handles events of workers: start, end, messages and output.
#include <utility>

#include "launcher/agent/agent.h"
#include "launcher/report/exit_code.h"

namespace ddp::launcher {

void Agent::worker_started(std::uint32_t local, pid_t pid) {
  feed(node::WorkerStarted{local, static_cast<std::uint32_t>(pid), clock_ns()});
  if (worker_link_) worker_link_->started(local);
  evidence_.worker_started(pid);
  if (hang_monitor_) hang_monitor_->worker_started(rank_of(local), pid);
}

void Agent::worker_exited(std::uint32_t local, pid_t pid, const ExitStatus& status) {
  rendezvous::WorkerExited exited;
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
  exited.after_stop = workers_->ended_after_stop(local);
  if (core_.processes().killed(local) == nullptr) evidence_.worker_ended(rank_of(local), pid, status);
  if (hang_monitor_) hang_monitor_->worker_ended(rank_of(local));
  if (worker_link_) worker_link_->forget(local);
  if (const auto read = workers_->stdin_read(local))
    link_.send(rendezvous::StdinTaken{0, true, stdin_.start + *read});
  feed(node::WorkerExited{local, std::move(exited)});
}

void Agent::worker_not_started(std::uint32_t local, const Error& error) {
  rendezvous::WorkerExited exited;
  exited.code = static_cast<std::uint8_t>(exec_exit_code(error.sys));
  exited.sys = error.sys;
  exited.clock_ns = clock_ns();
  exited.text = error.text;
  feed(node::WorkerExited{local, std::move(exited)});
}

void Agent::all_started() {
  feed(node::WorkersStarted{});
}

// ---- messages from workers

void Agent::worker_greeted(std::uint32_t local, const rendezvous::WorkerHello& hello) {
  feed(node::WorkerGreeted{local, hello.rejoin && !hello.sharded});
}

void Agent::worker_ready(std::uint32_t local) {
  feed(node::WorkerReady{local});
}

void Agent::worker_unlinked(std::uint32_t local) {
  if (hang_monitor_) hang_monitor_->worker_steps_no_more(rank_of(local));
  feed(node::WorkerUnlinked{local});
}

void Agent::worker_stepped(std::uint32_t local, const rendezvous::WorkerStep& step) {
  if (hang_monitor_) hang_monitor_->worker_stepped(rank_of(local), step.step, step.phase);
}

void Agent::worker_in_trouble(std::uint32_t local, const rendezvous::WorkerTrouble& trouble) {
  feed(node::WorkerTroubled{local, trouble});
}

void Agent::worker_revoked(std::uint32_t local, const rendezvous::WorkerRevoked& answer) {
  feed(node::WorkerLeft{local, answer});
}

void Agent::worker_misbehaved(std::uint32_t local, std::string words) {
  link_.send(rendezvous::Notice{"rank " + std::to_string(rank_of(local)) + ": " + std::move(words)});
}

// ---- output

void Agent::worker_output(std::uint32_t local, std::uint8_t stream, std::span<const char> bytes) {
  credit_.spend(stream, bytes.size());
  if (hang_monitor_) hang_monitor_->worker_wrote();
  link_.send_output({core_.attempt().attempt, rank_of(local), stream, clock_ns(),
                     std::string_view(bytes.data(), bytes.size())});
}

}  // namespace ddp::launcher
