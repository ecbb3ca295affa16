#include "apps/ddplaunch/commands.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/ddplaunch/options/options.h"
#include "base/asio.h"
#include "base/child_process.h"
#include "base/program.h"
#include "base/text.h"
#include "launcher/control/control_socket.h"
#include "launcher/control/http_server.h"
#include "launcher/control/job_registry.h"
#include "launcher/job/job_spec.h"
#include "launcher/links/daemon.h"
#include "launcher/master/master.h"
#include "launcher/output/job_dir.h"
#include "launcher/output/output_file.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/report_json.h"
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

void reset_signals() {
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
  options.token = DDP_TRY(within("--launcher daemon", rendezvous::find_daemon_token(spec.token_file, given)));
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

Result<remote::FanOutOptions> choose_agent(const launcher::JobSpec& spec) {
  const remote::AgentHello hello{static_cast<int>(rendezvous::kProtocolVersion), std::string(version())};
  remote::FanOutOptions start;
  start.argv = {spec.agent_path, "--stdio"};
  start.ssh_localhost = spec.ssh_localhost;
  start.expected = hello;
  start.remote_is_here = spec.launcher == launcher::LauncherKind::kLocal;
  if (!spec.agent_path.empty()) return start;
  // The agent's path here. The path on the nodes is the same unless --agent gives another one.
  auto beside = DDP_TRY(own_directory());
  start.argv[0] = beside + "/ddplaunchd";
  if (spec.push) {
    const bool train = spec.command.kind == launcher::WorkerCommand::Kind::kTrain;
    start.bundle = std::make_shared<remote::AgentBundle>(
        remote::AgentBundle::BundleRequest{std::move(beside), hello, train});
  }
  return start;
}

namespace {

/// Reports the end of a job that failed before its Master existed. It writes nothing into the job's
/// directory, which may belong to another job.
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
  std::fputs(report.text.c_str(), stderr);  // before the files: the disk of the report may hang
  const std::string json = launcher::report_json(end, report, facts);
  std::atomic<std::size_t> done = 0;
  std::vector<launcher::ReportFile> files;
  if (spec.report_path == launcher::kReportToStdout) {
    std::fputs(json.c_str(), stdout);
    std::fflush(stdout);
  } else if (!spec.report_path.empty()) {
    files.push_back({spec.report_path});
  }
  const auto warnings = launcher::write_reports(json, json, files, done);
  for (const std::string& warning : warnings)
    std::fprintf(stderr, "ddplaunch: %s\n", warning.c_str());
  // Scripts read the last line, so it is repeated after the warnings.
  if (!warnings.empty())
    std::fprintf(stderr, "ddplaunch: exit %d: %s\n", report.exit_code, report.why.c_str());
  return report.exit_code;
}

/// Listens for readers of the job's metrics, and finds the collector that gets them, if one is named.
Result<> choose_metrics(const launcher::MetricsPlace& place, launcher::Master::Options& options) {
  if (!place.address.empty()) {
    options.metrics.emplace(
        DDP_TRY(within("--metrics-listen", launcher::MetricsServer::listen(place.address, place.port))));
    options.metrics_linger = place.linger;
  }
  // The variable is often set for the workers, so a value that ddplaunch cannot use is no error.
  auto otlp = launcher::OtlpTarget::read([](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  });
  if (!otlp)
    options.warnings.push_back("note: " + otlp.error().text + "; ddplaunch sends no metrics there");
  else if (!otlp->host.empty())
    options.otlp = std::move(*otlp);
  return {};
}

/// Gets what the job needs on this machine: descriptors, the agent to send, an id that no running job has,
/// and its directory, which goes into `spec`.
Result<launcher::JobDir> prepare_job(launcher::JobSpec& spec, const launcher::JobRegistration* registration,
                                     launcher::Master::Options& options) {
  DDP_TRY(make_room_for_nodes(spec));
  options.start = DDP_TRY(choose_agent(spec));
  if (registration != nullptr) {
    DDP_TRY(choose_metrics(registration->metrics, options));
    options.run = registration->name;
    // Before the directory is made: a second run of an id leaves nothing.
    if (registration->claims_id) DDP_TRY(claim_job_id(*registration, spec.job_id, claim_advice(spec)));
  }
  auto job_dir = DDP_TRY(launcher::JobDir::create(spec));
  spec.job_dir = job_dir.path();
  if (!job_dir.note().empty() && !spec.quiet) std::fprintf(stderr, "ddplaunch: %s\n", job_dir.note().c_str());
  if (!job_dir.warning().empty()) options.warnings.push_back(job_dir.warning());
  return job_dir;
}

/// Opens the job's control socket and registers the job. A job that cannot be found still runs. Error:
/// another start was faster, and its job has the id.
Result<> make_findable(const launcher::JobSpec& spec, const launcher::JobRegistration& registration,
                       launcher::Master::Options& options) {
  UniqueFd claim;
  if (registration.claims_id)
    claim = DDP_TRY(claim_job_id(registration, spec.job_id, claim_advice(spec), spec.job_dir));
  options.first_task = [registration] { launcher::prune_jobs(registration); };
  launcher::JobEntry entry;
  entry.name = registration.name;
  entry.job = spec.job_id;
  entry.directory = spec.job_dir;
  entry.host = host_name();
  entry.pid = ::getpid();
  entry.command = command_text(spec.command);
  entry.arguments = registration.arguments;
  entry.cwd = registration.cwd;
  entry.label = spec.output.label;
  for (const remote::Host& host : spec.hosts)
    entry.hosts.push_back(host.name);
  entry.started = launcher::utc_text(std::chrono::system_clock::now());
  // A short name: the path of a socket has at most 107 bytes.
  auto control = launcher::ControlSocket::bind(registration.name.substr(registration.name.rfind('.') + 1));
  if (control) {
    entry.socket = control->path();
    options.control.emplace(std::move(*control));
  }
  Result<> found = register_job(registration, entry);
  if (found && !control) found = control.error();
  if (!found && spec.verbose)
    std::fprintf(stderr, "ddplaunch: ddplaunch ps cannot show this job: %s\n", found.error().text.c_str());
  return {};
}

}  // namespace

int launch(const launcher::JobSpec& wanted, const GivenToken& token, JoinListener* join_listener,
           const launcher::JobRegistration* registration, std::function<void()> all_run) {
  reset_signals();
  launcher::JobSpec spec = wanted;
  launcher::Master::Options options;
  options.all_run = std::move(all_run);
  // Job: what it needs on this machine.
  auto job_dir = prepare_job(spec, registration, options);
  if (!job_dir) return fail(spec, job_dir.error());

  // The way to reach the nodes: they join, or a transport starts agents there. From here on other processes
  // find the job.
  asio::io_context loop(1);
  launcher::Master* running_master = nullptr;  // no notice comes before the loop runs
  const UserNotifier notify = [&running_master](const std::string& text) {
    if (running_master != nullptr) running_master->note(text);
  };
  const auto remote = join_listener != nullptr
                          ? make_join_transport(loop, spec, std::move(*join_listener), notify)
                          : make_transport(loop, spec, token, notify);
  if (!remote) return fail(spec, remote.error());
  if (registration != nullptr) {
    if (const auto found = make_findable(spec, *registration, options); !found)
      return fail(spec, found.error());
  }

  // Reach the nodes, agree, run, report: the master's passes.
  remote::LocalTransport local(loop.get_executor());
  launcher::Master master(loop, spec, std::move(options), **remote, local, std::move(*job_dir));
  running_master = &master;
  const int code = master.run();
  running_master = nullptr;
  return code;
}

}  // namespace ddp
