// The part of the Agent before it accepts a job: --setup, and what `ddplaunch check` asks.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "launcher/agent.h"
#include "launcher/node_check.h"

extern char** environ;

namespace ddp::launcher {
namespace {

/// A slow network disk may hold up the checks of a job for so long.
constexpr std::chrono::milliseconds kSlowDisk{60'000};

}  // namespace

/// Whoever reads this node's disks and runs --setup for a master that is gone must end, too, even if it
/// hangs.
void Agent::begin_preparing(const rendezvous::JobStart& job) {
  patience_ = std::chrono::milliseconds(job.master_timeout_ms);
  if (!job.local) keeper_.set_lease(std::max(patience_, kSlowDisk));
  keeper_.set_job_mark(job.job_id);
  tree_.set_job(job.job_id);
}

/// The environment that the workers of `job` start from. `quiet`: what --setup prints is a detail.
Awaitable<Result<EnvVars>> Agent::make_environment(rendezvous::JobStart job, bool quiet) {
  EnvVars node_env = split_env(environ);
  EnvVars merged = merge_env(node_env, job.env, job.explicit_env);
  if (job.setup.empty()) co_return merged;
  auto cwd = NodeJob::directory(job.chdir);
  if (!cwd) co_return cwd.error();
  if (auto fits = check_exec_size(merged, {}); !fits) co_return fits.error();
  SetupOutput::Line tell = [this, quiet](const std::string& line) {
    link_.send(rendezvous::Notice{"setup: " + line, quiet});
  };
  auto env = co_await setup_.run(std::move(job), std::move(node_env), std::move(merged), std::move(*cwd),
                                 std::move(tell));
  co_return env;
}

Awaitable<> Agent::set_up(rendezvous::JobStart message) {
  preparing_ = true;
  auto env = co_await make_environment(message, false);
  preparing_ = false;
  attempt_over_.cancel();
  if (leaving_) co_return;
  if (!env) co_return refuse(env.error());
  start_task(setup_.listen());
  accept(message, NodeJob::prepare_in(message, std::move(*env), options_.directory));
}

void Agent::handle(const rendezvous::NodeCheck& message) {
  begin_preparing(message.job);
  if (!std::exchange(preparing_, true)) start_task(check(message));
}

Awaitable<> Agent::check(rendezvous::NodeCheck request) {
  auto env = co_await make_environment(request.job, true);
  if (!leaving_) {
    EnvVars merged = merge_env(split_env(environ), request.job.env, request.job.explicit_env);
    const rendezvous::NodeChecked checked = co_await check_node(
        std::move(request), std::move(env), std::move(merged), options_.directory, &tools_);
    if (!leaving_) link_.send(checked);
  }
  preparing_ = false;
  attempt_over_.cancel();
}

}  // namespace ddp::launcher
