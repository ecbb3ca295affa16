#include "apps/ddplaunch/launch.h"

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "apps/ddplaunch/start_up.h"
#include "base/asio.h"
#include "base/child_process.h"
#include "base/version.h"
#include "launcher/exit_report.h"
#include "launcher/job_dir.h"
#include "launcher/master.h"
#include "launcher/report_file.h"
#include "remote/local_shell.h"

namespace ddp {
namespace {

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

int launch(const launcher::JobSpec& spec, JoinDoor* door) {
  take_signals();
  // Not for a child to see; who needs it took it, or takes it with its shell.
  if (spec.launcher != launcher::LauncherKind::kDaemon) (void)rendezvous::take_token_from_environment();
  raise_nofile();  // three descriptors for each node, one for each file of the job directory
  auto agent = choose_agent(spec);
  if (!agent) return fail(spec, agent.error());
  launcher::Master::Options options;
  options.agent_path = agent->path;
  options.expected = agent->expected;
  if (agent->stock) options.stock = &*agent->stock;
  auto job_dir = launcher::JobDir::create(spec);
  if (!job_dir) return fail(spec, job_dir.error());

  asio::io_context loop(1);
  launcher::Master* told = nullptr;  // nothing is said before the loop runs
  const TellUser tell = [&told](const std::string& text) {
    if (told != nullptr) told->note(text);
  };
  const auto remote = door != nullptr ? make_join_shell(loop, spec, std::move(*door), tell)
                                      : make_remote_shell(loop, spec, tell);
  if (!remote) return fail(spec, remote.error());
  remote::LocalShell local(loop.get_executor());
  launcher::Master master(loop, spec, std::move(options), **remote, local, std::move(*job_dir));
  told = &master;
  const int code = master.run();
  told = nullptr;
  return code;
}

}  // namespace ddp
