// The part of the Agent that runs --setup before it accepts the job.
#include <unistd.h>

#include <utility>

#include "launcher/agent.h"

extern char** environ;

namespace ddp::launcher {

Awaitable<> Agent::set_up(rendezvous::JobStart message) {
  EnvVars node_env = split_env(environ);
  EnvVars merged = merge_env(node_env, message.env, message.explicit_env);
  auto cwd = NodeJob::directory(message.chdir);
  if (!cwd) co_return refuse(cwd.error());
  if (auto fits = check_exec_size(merged, {}); !fits) co_return refuse(fits.error());
  setup_running_ = true;
  SetupOutput::Line tell = [this](const std::string& line) {
    link_.send(rendezvous::Notice{"setup: " + line});
  };
  auto env =
      co_await setup_.run(message, std::move(node_env), std::move(merged), std::move(*cwd), std::move(tell));
  setup_running_ = false;
  attempt_over_.cancel();
  if (leaving_) co_return;
  if (!env) co_return refuse(env.error());
  accept(message, NodeJob::prepare_in(message, std::move(*env), options_.directory));
}

}  // namespace ddp::launcher
