#include <string>

#include "apps/ddplaunch/options/job_options.h"

namespace ddp {
namespace {

void check_hosts(const launcher::JobSpec& spec, Diagnostics& diagnostics) {
  std::string wrapped;
  bool of_ssh = false;
  for (const remote::Host& host : spec.hosts) {
    if (!host.wrapper.empty() && wrapped.empty()) wrapped = host.name;
    of_ssh = of_ssh || !host.user.empty() || !host.identity.empty() || !host.jump.empty();
  }
  if (!wrapped.empty()) {
    diagnostics.fail("a daemon starts no wrapper (host " + wrapped +
                     "): run ddplaunchd --listen inside the container, or use --launcher ssh");
  }
  if (of_ssh) diagnostics.note("user, identity and jump of the hosts have no effect with --launcher daemon");
}

}  // namespace

void check_daemon_options(JobOptions& options, Diagnostics& diagnostics) {
  launcher::JobSpec& spec = options.job.spec;
  if (spec.launcher != launcher::LauncherKind::kDaemon) {
    if (options.given_for_job("--daemon-port"))
      diagnostics.fail(
          "--daemon-port is for --launcher daemon, which reaches nodes where ddplaunchd --listen runs");
    return;
  }
  spec.push = false;  // only over SSH
  for (const char* name : {"--ssh-command", "--ssh-config", "--accept-new-host-keys"}) {
    if (options.given_for_job(name))
      diagnostics.fail(std::string("--launcher daemon reaches the nodes without SSH, so ") + name +
                       " has no effect");
  }
  if (options.given("--agent"))
    diagnostics.fail(
        "--agent cannot be used with --launcher daemon: each daemon starts the ddplaunchd beside it; install "
        "this version on the nodes");
  check_hosts(spec, diagnostics);
}

}  // namespace ddp
