#include "launcher/agent/job_preparation.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/child_process.h"
#include "base/text.h"
#include "launcher/agent/node_check.h"
#include "launcher/keeper/attempt_tree.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// The time between two checks for processes that are ending.
constexpr std::chrono::milliseconds kEndPause{5};
/// Processes that an answer names.
constexpr std::size_t kMostLeft = 500;

/// What JobStart says of a lost agent of this job on this machine.
LostNode lost_node(const rendezvous::JobStart& order) {
  LostNode lost{order.job_id, {}, order.predecessor_clock_ns};
  for (const std::uint32_t keeper : order.keepers)
    lost.live_keepers.insert(static_cast<pid_t>(keeper));
  for (const std::uint32_t pid : order.predecessor)
    lost.own.insert(static_cast<pid_t>(pid));
  return lost;
}

/// Names the processes that still live.
std::vector<std::string> living(const std::vector<std::uint32_t>& pids) {
  std::vector<std::string> names;
  for (const std::uint32_t pid : pids) {
    if (!has_pid_ended(static_cast<pid_t>(pid))) names.push_back("process " + std::to_string(pid));
  }
  return names;
}

}  // namespace

void JobPreparation::stop() {
  disk_.stop();
  setup_.stop();
  tools_.stop();
}

/// The workers' initial environment. `quiet`: the output of --setup is only a detail.
Awaitable<Result<EnvVars>> JobPreparation::make_environment(rendezvous::JobStart order, bool quiet) {
  EnvVars node_env = split_env(own_environment());
  EnvVars merged = merge_env(node_env, order.env, order.explicit_env);
  if (order.setup.empty()) co_return merged;
  std::function<Result<std::string>()> look = [chdir = order.chdir] { return NodeJob::directory(chdir); };
  auto cwd = co_await disk_.run(std::move(look), Clock::time_point::max());
  if (!cwd) co_return cwd.error();
  if (auto fits = check_exec_size(merged, {}); !fits) co_return fits.error();
  SetupOutput::LineHandler handle_line = [this, quiet](const std::string& line) {
    send_notice_({"setup: " + line, quiet});
  };
  auto env = co_await setup_.run(std::move(order), std::move(node_env), std::move(merged), std::move(*cwd),
                                 std::move(handle_line));
  co_return env;
}

Awaitable<Result<NodeJob>> JobPreparation::make_job(rendezvous::JobStart order) {
  auto env = co_await make_environment(order, false);
  if (!env) co_return env.error();
  spawn(executor_, setup_.listen());
  std::function<Result<NodeJob>()> look = [order, env = std::move(*env), agent = directory_] {
    return NodeJob::prepare(order, env, agent);
  };
  auto job = co_await disk_.run(std::move(look), Clock::time_point::max());
  co_return job;
}

/// Returns whether it is proven that the agent that ran this job here before has left no process. Ends what
/// it left.
Awaitable<bool> JobPreparation::predecessor_gone(rendezvous::JobStart order) {
  if (order.predecessor.empty()) co_return false;
  const auto give_up = Clock::now() + kKillBound;
  // Wait for these first: while agent or keeper is alive, they may start more processes.
  while (!living(order.predecessor).empty()) {
    if (tools_.stopped || Clock::now() >= give_up) co_return false;
    co_await pause_for(executor_, kEndPause);
  }
  const SweptJob swept = co_await sweep_lost_node(executor_, lost_node(order), &tools_.stopped);
  co_return swept.left.empty();
}

void JobPreparation::prepare(rendezvous::JobStart order, Prepared done) {
  tasks_.start(run(std::move(order), std::move(done)));
}

Awaitable<> JobPreparation::run(rendezvous::JobStart order, Prepared done) {
  const bool gone = co_await predecessor_gone(order);
  if (tools_.stopped) co_return;
  auto job = co_await make_job(std::move(order));
  if (tools_.stopped) co_return;
  if (job && !job->warning().empty()) send_notice_({"warning: " + job->warning()});
  done(std::move(job), gone);
}

void JobPreparation::check(rendezvous::NodeCheck request, Checked done) {
  if (tasks_.running()) return;
  tasks_.start(request.clean ? run_clean(std::move(request.job), std::move(done))
                             : run_check(std::move(request), std::move(done)));
}

/// With a predecessor, the job runs, and only this lost node is swept. Else its master has ended.
Awaitable<> JobPreparation::run_clean(rendezvous::JobStart job, Checked done) {
  const bool of_node = !job.predecessor.empty();
  const std::size_t stopped = of_node ? 0 : co_await stop_keepers(executor_, job.job_id, &tools_.stopped);
  SweptJob swept;
  if (of_node) {
    swept = co_await sweep_lost_node(executor_, lost_node(job), &tools_.stopped);
  } else {
    swept = co_await sweep_job(executor_, job.job_id, &tools_.stopped);
  }
  rendezvous::NodeChecked checked;
  checked.found = static_cast<std::uint32_t>(stopped + swept.found);
  checked.left = std::move(swept.left);
  for (std::string& process : living(job.predecessor))
    checked.left.push_back(std::move(process));
  if (checked.left.size() > kMostLeft) {  // the answer is one frame
    const std::size_t more = checked.left.size() - kMostLeft;
    checked.left.resize(kMostLeft);
    checked.left.push_back(counted(more, "more process", "more processes"));
  }
  if (!tools_.stopped) done(checked);
}

Awaitable<> JobPreparation::run_check(rendezvous::NodeCheck request, Checked done) {
  auto env = co_await make_environment(request.job, true);
  if (tools_.stopped) co_return;
  EnvVars merged = merge_env(split_env(own_environment()), request.job.env, request.job.explicit_env);
  const rendezvous::NodeChecked checked =
      co_await check_node(std::move(request), std::move(env), std::move(merged), directory_, &tools_);
  if (!tools_.stopped) done(checked);
}

}  // namespace ddp::launcher
