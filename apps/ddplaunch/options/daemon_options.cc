#include "apps/ddplaunch/options/job_options.h"

#include <cstdint>
#include <string>
#include <utility>

#include "apps/ddplaunch/options/option_readers.h"
#include "remote/hosts/host_range.h"

namespace ddp {
namespace {

using launcher::JobSpec;
using launcher::LauncherKind;

constexpr unsigned long long kMostPort = 65535;

void refuse_ssh_options(const OptionValues& values, Diagnostics& diagnostics) {
  for (const auto& [name, is_given] : {std::pair("--ssh-command", !values.ssh_command.empty()),
                                       std::pair("--ssh-config", !values.ssh_config.empty()),
                                       std::pair("--accept-new-host-keys", values.accept_new_host_keys)}) {
    if (is_given)
      diagnostics.fail(std::string("--launcher daemon reaches the nodes without SSH, so ") + name +
                       " has no effect");
  }
  if (!values.agent.empty())
    diagnostics.fail(
        "--agent cannot be used with --launcher daemon: each daemon starts the ddplaunchd beside it; install "
        "this version on the nodes");
}

void check_hosts(const JobSpec& spec, Diagnostics& diagnostics) {
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

void read_daemon_options(const OptionValues& values, const ProcessContext& context, JobSpec& spec,
                         Diagnostics& diagnostics) {
  if (!values.token_file.empty()) spec.token_file = absolute_path(values.token_file, context.cwd);
  if (!values.daemon_port.empty()) {
    const auto port = remote::whole_number(values.daemon_port, kMostPort);
    if (!port || *port == 0) {
      diagnostics.fail("--daemon-port " + values.daemon_port + ": give a port from 1 to 65535");
    } else {
      spec.daemon_port = static_cast<std::uint16_t>(*port);
    }
  }
  if (spec.launcher != LauncherKind::kDaemon) {
    if (!values.daemon_port.empty())
      diagnostics.fail(
          "--daemon-port is for --launcher daemon, which reaches nodes where ddplaunchd --listen runs");
    return;
  }
  spec.push = false;  // only over SSH
  refuse_ssh_options(values, diagnostics);
  check_hosts(spec, diagnostics);
}

}  // namespace ddp
