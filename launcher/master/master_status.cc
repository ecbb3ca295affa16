// The part of the Master that answers the control socket.
#include <csignal>
#include <utility>

#include "base/clock.h"
#include "base/program.h"
#include "base/text.h"
#include "launcher/keeper/process_table.h"
#include "launcher/master/master.h"
#include "launcher/master/user_signals.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/job_status.h"

namespace ddp::launcher {
namespace {

const char* name_of(Supervisor::State state) {
  switch (state) {
    case Supervisor::State::kConnecting:
      return "connecting";
    case Supervisor::State::kBackingOff:
      return "waiting to restart";
    case Supervisor::State::kStarting:
      return "starting";
    case Supervisor::State::kRunning:
      return "running";
    case Supervisor::State::kStopping:
      return "stopping";
    case Supervisor::State::kEnding:
    case Supervisor::State::kLeaving:
    case Supervisor::State::kFinished:
      return "ending";
  }
  return "";
}

const char* name_of(const NodeTable::Node& node) {
  if (node.lost) return "lost";
  switch (node.state) {
    case NodeTable::State::kConnecting:
      return node.start_step;
    case NodeTable::State::kUp:
      return "preparing";
    case NodeTable::State::kAccepted:
      return "ready";
    case NodeTable::State::kSpawned:
      return "running";
    case NodeTable::State::kWaiting:
      return "waiting";
    case NodeTable::State::kEnded:
      return "ended";
    case NodeTable::State::kLeaving:
      return "leaving";
    case NodeTable::State::kGone:
      return "gone";
  }
  return "";
}

/// Returns which process has asked, over the control socket, to stop the job.
std::string requester_text(bool now, pid_t pid, uid_t uid) {
  const auto process = read_process(pid);
  std::string text = "a request (";
  if (process && process->comm == "ddplaunch")
    text = now ? "`ddplaunch stop --now` (" : "`ddplaunch stop` (";
  else if (process)
    text += one_line(process->comm) + ", ";
  return text + process_text(pid, uid) + " on " + host_name() + ")";
}

}  // namespace

JobStatus Master::status() const {
  const NodeTable& nodes = supervisor_.nodes();
  JobStatus status;
  status.job = spec_.job_id;
  status.state = name_of(supervisor_.state());
  if (supervisor_.end().stop_signal != 0) status.why = why_stopped(supervisor_.end());
  status.age = steady_now() - began_;
  status.world_size = nodes.world().world_size;
  status.attempt = nodes.attempt();
  status.restarts = supervisor_.end().restarts;
  status.max_restarts = spec_.max_restarts;
  status.output_bytes = output_bytes_;
  status.directory = spec_.job_dir;
  status.progress = progress_.figures(steady_now());
  if (status.progress.stalled > status.progress.stalled.zero()) status.state = "stalled";
  status.warnings.assign(warnings_.begin(), warnings_.end());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    JobStatus::NodeStatus& node = status.nodes.emplace_back();
    node.name = nodes[i].name;
    node.state = name_of(nodes[i]);
    if (nodes_[i]->live()) node.silence = NodeLink::Clock::now() - nodes_[i]->connection().last_heard();
    if (const rendezvous::RankAssignment* ranks = nodes.assignment(i)) {
      node.first_rank = ranks->first_rank;
      node.ranks = ranks->local_world_size;
      const auto first = static_cast<std::uint32_t>(node.first_rank);
      const auto count = static_cast<std::uint32_t>(node.ranks);
      node.ended = static_cast<int>(supervisor_.ranks().ended(first, count));
      if (!nodes[i].lost) node.running = static_cast<int>(supervisor_.ranks().running(first, count));
      for (int rank = node.first_rank; rank < node.first_rank + node.ranks; ++rank)
        node.reports.push_back(progress_.report_of(static_cast<std::uint32_t>(rank)));
    }
  }
  return status;
}

ControlHandlers Master::control_handlers() {
  ControlHandlers handlers;
  handlers.status = [this] { return status_json(status()); };
  handlers.metrics = [this] { return metrics_text(status()); };
  handlers.stop = [this](bool now, pid_t pid, uid_t uid) { stop(now, requester_text(now, pid, uid)); };
  handlers.ask_workers = [this](const WorkerRequest& request, ControlHandlers::WorkersAnswered done) {
    return queries_.start(request, supervisor_.state() == Supervisor::State::kRunning, std::move(done));
  };
  handlers.cancel = [this](std::uint32_t number) { queries_.cancel(number); };
  return handlers;
}

/// The same as the user's SIGTERM. A second request without `now` changes nothing.
void Master::stop(bool now, const std::string& by) {
  note_start_steps();
  const bool stops = supervisor_.end().stop_signal != 0;
  if (!stops) step(job::UserSignal{SIGTERM, false, by});
  if (now) step(job::UserSignal{SIGTERM, true, by});
}

}  // namespace ddp::launcher
