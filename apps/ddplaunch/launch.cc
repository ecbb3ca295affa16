#include "apps/ddplaunch/launch.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/asio.h"
#include "base/child_process.h"
#include "base/version.h"
#include "launcher/exit_report.h"
#include "launcher/job_dir.h"
#include "launcher/master.h"
#include "launcher/report_file.h"
#include "remote/command_shell.h"
#include "remote/local_shell.h"
#include "remote/ssh_shell.h"
#include "rendezvous/message.h"

namespace ddp {
namespace {

/// Whatever the parent left us: children are waited for, signals arrive, and a full disk or pipe is an error
/// and no death.
void take_signals() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// ddplaunchd lies beside this program, here and, unless --agent says otherwise, at the same path on the
/// nodes.
Result<std::string> agent_beside_us() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  if (size < 0) return system_error(errno, "/proc/self/exe");
  const std::string_view text(path, static_cast<std::size_t>(size));
  return std::string(text.substr(0, text.rfind('/'))) + "/ddplaunchd";
}

std::unique_ptr<remote::RemoteShell> make_remote_shell(asio::io_context& loop,
                                                       const launcher::JobSpec& spec) {
  if (!spec.ssh_command.empty()) {
    return std::make_unique<remote::CommandShell>(
        loop.get_executor(),
        remote::CommandShellOptions{spec.ssh_command, spec.ssh_config, spec.accept_new_host_keys});
  }
  if (spec.launcher == launcher::LauncherKind::kLocal) {
    return std::make_unique<remote::LocalShell>(loop.get_executor());
  }
  remote::SshShellOptions options;
  options.config = spec.ssh_config;
  options.accept_new_host_keys = spec.accept_new_host_keys;
  if (!spec.quiet) {
    options.notice = [](const std::string& text) { std::fprintf(stderr, "ddplaunch: %s\n", text.c_str()); };
  }
  return std::make_unique<remote::SshShell>(loop.get_executor(), std::move(options));
}

/// The end of a job that did not get as far as its Master. Nothing goes into the job's directory: it may not
/// be ours.
int fail(const launcher::JobSpec& spec, const Error& error) {
  launcher::JobEnd end;
  end.master = error;
  const launcher::ExitReport report = launcher::make_exit_report(end);
  launcher::JobFacts facts;
  facts.version = version();
  facts.job_id = spec.job_id;
  for (const remote::Host& host : spec.hosts)
    facts.nodes.push_back(host.name);
  facts.ended_at = std::chrono::system_clock::now();
  for (const std::string& warning : launcher::write_reports(end, report, facts, spec.report_path))
    std::fprintf(stderr, "ddplaunch: %s\n", warning.c_str());
  std::fputs(report.text.c_str(), stderr);
  return report.exit_code;
}

}  // namespace

int launch(const launcher::JobSpec& spec) {
  take_signals();
  raise_nofile();  // three descriptors for each node, one for each file of the job directory
  launcher::Master::Options options;
  options.expected = {static_cast<int>(rendezvous::kProtocolVersion), std::string(version())};
  options.agent_path = spec.agent_path;
  if (options.agent_path.empty()) {
    auto beside = agent_beside_us();
    if (!beside) return fail(spec, beside.error());
    options.agent_path = std::move(*beside);
  }
  auto job_dir = launcher::JobDir::create(spec);
  if (!job_dir) return fail(spec, job_dir.error());

  asio::io_context loop(1);
  const auto remote = make_remote_shell(loop, spec);
  remote::LocalShell local(loop.get_executor());
  launcher::Master master(loop, spec, std::move(options), *remote, local, std::move(*job_dir));
  return master.run();
}

}  // namespace ddp
