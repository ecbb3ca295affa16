#include "apps/ddplaunch/commands.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/child_process.h"
#include "base/program.h"
#include "base/text.h"
#include "launcher/job/job_spec.h"
#include "launcher/links/daemon.h"
#include "launcher/report/exit_report.h"
#include "remote/ssh/ssh_transport.h"
#include "remote/transports/command_transport.h"
#include "rendezvous/protocol/message.h"

namespace ddp {

int report_exit(const Error& error) {
  const int code = launcher::exit_code_of(error);
  std::fprintf(stderr, "ddplaunch: exit %d: %s\n", code, error.text.c_str());
  return code;
}

namespace {

std::atomic<bool> memory_refused = false;
std::terminate_handler end_abnormally = std::abort;

/// Reports memory that was refused where no caller catches it: in a thread, in a task, or in a function of
/// the standard library that must not fail. The report needs no memory.
[[noreturn]] void end_program() {
  if (memory_refused) {
    constexpr std::string_view kText =
        "ddplaunch: exit 116: the system refused a thread or memory: Cannot allocate memory; check ulimit -u "
        "and ulimit -v\n";
    const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
    (void)written;
    ::_exit(116);
  }
  end_abnormally();
  std::abort();
}

}  // namespace

int report_refusals(const std::function<int()>& body) {
  end_abnormally = std::set_terminate(end_program);
  std::set_new_handler([] {
    memory_refused = true;
    throw std::bad_alloc();
  });
  const auto refused = [](const char* why) {
    return report_exit({ErrorCode::kSystem, std::string("the system refused a thread or memory: ") + why +
                                                "; check ulimit -u and ulimit -v"});
  };
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return refused("Cannot allocate memory");
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::operation_not_permitted)
      return report_exit(limit_error(EPERM, "make a thread"));
    return refused(error.what());
  }
}

void take_signals() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

Result<> make_room_for_nodes(const launcher::JobSpec& spec) {
  const std::size_t needed = launcher::descriptors_needed(spec);
  const rlim_t allowed = raise_nofile();
  if (allowed >= needed) return {};
  const std::size_t hosts = launcher::hosts_used(spec);
  return Error{ErrorCode::kSystem,
               counted(hosts, "host needs ", "hosts need ") + std::to_string(needed) +
                   " open files on this machine, but the hard limit is " + std::to_string(allowed) +
                   "; raise it (ulimit -n " + std::to_string(needed) +
                   ", nofile in /etc/security/limits.conf, or LimitNOFILE= of the service)"};
}

namespace {

using OwnTransport = std::unique_ptr<remote::Transport>;

Result<OwnTransport> make_daemon_transport(asio::io_context& loop, const launcher::JobSpec& spec,
                                           const GivenToken& given) {
  launcher::DaemonTransport::Options options;
  auto token = rendezvous::find_daemon_token(spec.token_file, given);
  if (!token) return within("--launcher daemon", token.error());
  options.token = std::move(*token);
  options.job = spec.job_id;
  options.hello = {static_cast<int>(rendezvous::kProtocolVersion), std::string(version())};
  if (spec.daemon_port != 0) options.port = spec.daemon_port;
  DDP_TRY(rendezvous::secure_context());
  return OwnTransport(std::make_unique<launcher::DaemonTransport>(loop.get_executor(), std::move(options)));
}

}  // namespace

Result<OwnTransport> make_transport(asio::io_context& loop, const launcher::JobSpec& spec,
                                    const GivenToken& given, UserNotifier notify) {
  if (spec.launcher == launcher::LauncherKind::kDaemon) return make_daemon_transport(loop, spec, given);
  if (!spec.ssh_command.empty()) {
    return OwnTransport(std::make_unique<remote::CommandTransport>(
        loop.get_executor(),
        remote::CommandTransportOptions{spec.ssh_command, spec.ssh_config, spec.accept_new_host_keys}));
  }
  if (spec.launcher == launcher::LauncherKind::kLocal) {
    return OwnTransport(std::make_unique<remote::LocalTransport>(loop.get_executor()));
  }
  if (spec.launcher == launcher::LauncherKind::kSlurm) {
    return OwnTransport(std::make_unique<remote::SrunTransport>(loop.get_executor()));
  }
  remote::SshTransportOptions options;
  options.config = spec.ssh_config;
  options.accept_new_host_keys = spec.accept_new_host_keys;
  if (spec.verbose) options.detail = notify;
  if (!spec.quiet) options.notice = std::move(notify);
  return OwnTransport(std::make_unique<remote::SshTransport>(loop.get_executor(), std::move(options)));
}

Result<AgentChoice> choose_agent(const launcher::JobSpec& spec) {
  AgentChoice choice;
  choice.expected = {static_cast<int>(rendezvous::kProtocolVersion), std::string(version())};
  choice.path = spec.agent_path;
  if (!choice.path.empty()) return choice;
  // The agent's path here. The path on the nodes is the same unless --agent gives another one.
  auto beside = DDP_TRY(own_directory());
  choice.path = beside + "/ddplaunchd";
  if (spec.push) {
    const bool train = spec.command.kind == launcher::WorkerCommand::Kind::kTrain;
    choice.bundle = std::make_shared<remote::AgentBundle>(
        remote::AgentBundle::BundleRequest{std::move(beside), choice.expected, train});
  }
  return choice;
}

}  // namespace ddp
