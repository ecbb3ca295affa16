// The part of the Agent before it accepts a job: --setup, and the answers to `ddplaunch check`.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "launcher/agent/agent.h"
#include "launcher/agent/node_check.h"
#include "launcher/keeper/process_tree.h"

extern char** environ;

namespace ddp::launcher {
namespace {

/// The longest time that a slow network disk may delay the checks of a job.
constexpr std::chrono::milliseconds kSlowDisk{60'000};
/// The time between two checks for processes that are ending.
constexpr std::chrono::milliseconds kEndPause{5};

}  // namespace

/// Gives the keeper a lease: the preparation of a job whose master is gone must end even if it hangs on a
/// disk or in --setup.
void Agent::begin_preparing(const rendezvous::JobStart& job) {
  const std::chrono::milliseconds patience(job.master_timeout_ms);
  feed(node::JobReceived{patience, std::chrono::milliseconds(job.link_grace_ms)});
  if (!job.local) keeper_.set_lease(std::max(patience, kSlowDisk));
  keeper_.set_job_mark(job.job_id);
  tree_.set_job(job.job_id);
}

/// The workers' initial environment for `job`. `quiet`: the output of --setup is only a detail.
Awaitable<Result<EnvVars>> Agent::make_environment(rendezvous::JobStart job, bool quiet) {
  EnvVars node_env = split_env(environ);
  EnvVars merged = merge_env(node_env, job.env, job.explicit_env);
  if (job.setup.empty()) co_return merged;
  std::function<Result<std::string>()> look = [chdir = job.chdir] { return NodeJob::directory(chdir); };
  auto cwd = co_await disk_.run(std::move(look), Clock::time_point::max());
  if (!cwd) co_return cwd.error();
  if (auto fits = check_exec_size(merged, {}); !fits) co_return fits.error();
  SetupOutput::LineHandler handle_line = [this, quiet](const std::string& line) {
    link_.send(rendezvous::Notice{"setup: " + line, quiet});
  };
  auto env = co_await setup_.run(std::move(job), std::move(node_env), std::move(merged), std::move(*cwd),
                                 std::move(handle_line));
  co_return env;
}

Awaitable<Result<NodeJob>> Agent::make_job(rendezvous::JobStart message) {
  auto env = co_await make_environment(message, false);
  if (!env) co_return env.error();
  spawn(loop_.get_executor(), setup_.listen());
  std::function<Result<NodeJob>()> look = [message, env = std::move(*env), agent = options_.directory] {
    return NodeJob::prepare(message, env, agent);
  };
  auto job = co_await disk_.run(std::move(look), Clock::time_point::max());
  co_return job;
}

/// Returns whether the agent that ran this job here before has left no process. Ends what it left: processes
/// with the job's mark that are not below a live keeper.
Awaitable<bool> Agent::predecessor_gone(std::string job_id, std::vector<std::uint32_t> pids) {
  if (pids.empty()) co_return false;
  asio::steady_timer pause(loop_);
  const auto give_up = Clock::now() + kKillBound;
  const auto ended = [](std::uint32_t pid) { return has_pid_ended(static_cast<pid_t>(pid)); };
  // Wait for these first: while agent or keeper is alive, they may start more processes.
  while (!std::all_of(pids.begin(), pids.end(), ended)) {
    if (core_.leaving() || Clock::now() >= give_up) co_return false;
    pause.expires_after(kEndPause);
    co_await pause.async_wait(kUseTuple);
  }
  TreeScope scope;
  scope.job_id = std::move(job_id);
  TreeKill kill(std::move(scope), kKillBound, std::vector<KnownProcess>{});  // none of our own children
  while (!kill.step()) {
    if (core_.leaving()) co_return false;
    pause.expires_after(kEndPause);
    co_await pause.async_wait(kUseTuple);
  }
  co_return kill.complete() && kill.left().empty();
}

Awaitable<> Agent::prepare(rendezvous::JobStart message) {
  const bool gone = co_await predecessor_gone(message.job_id, message.predecessor);
  if (!core_.leaving()) {
    auto job = co_await make_job(message);
    if (!core_.leaving()) accept(message, std::move(job), gone);
  }
}

void Agent::handle(const rendezvous::NodeCheck& message) {
  // A check runs commands of the master; this node may run only what its own user gave.
  if (options_.own)
    return feed(node::MustLeave{"its master asked for a check, which a node that joins by itself refuses"});
  begin_preparing(message.job);
  if (!preparing_.running()) preparing_.start(check(message));
}

Awaitable<> Agent::check(rendezvous::NodeCheck request) {
  auto env = co_await make_environment(request.job, true);
  if (!core_.leaving()) {
    EnvVars merged = merge_env(split_env(environ), request.job.env, request.job.explicit_env);
    const rendezvous::NodeChecked checked = co_await check_node(
        std::move(request), std::move(env), std::move(merged), options_.directory, &tools_);
    if (!core_.leaving()) link_.send(checked);
  }
}

}  // namespace ddp::launcher
