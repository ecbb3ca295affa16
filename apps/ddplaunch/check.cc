#include "apps/ddplaunch/commands.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/ddplaunch/start_up.h"
#include "base/standard_descriptors.h"
#include "launcher/check/check_diagnosis.h"
#include "launcher/check/check_text.h"
#include "launcher/master/check_master.h"
#include "launcher/report/exit_code.h"
#include "remote/shells/local_shell.h"

namespace ddp {
namespace {

/// An agent gives its workers 5 s, and processes that hang need more.
constexpr std::chrono::milliseconds kCleanTime{60'000};
constexpr int kExitLeft = 1;

int fail(const Error& error) {
  const int code = launcher::exit_code_of(error);
  std::fprintf(stderr, "ddplaunch: exit %d: %s\n", code, error.text.c_str());
  return code;
}

void say(std::string_view lines) {
  std::fwrite(lines.data(), 1, lines.size(), stderr);
}

/// https://no-color.org
bool wants_colours() {
  const char* no_color = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0');
}

std::string text_of(const RunJob& job, const launcher::CheckResult& result,
                    const std::vector<launcher::CheckDiagnostic>& diagnostics) {
  if (job.verb == Verb::kHosts) {
    return job.json ? hosts_json(job.spec, result, diagnostics) : hosts_text(job.spec, result, diagnostics);
  }
  return job.json ? check_json(job.spec, result, diagnostics)
                  : check_text(job.spec, result, diagnostics, wants_colours());
}

/// Queries all hosts. It leaves no trace for a job that runs afterwards.
Result<launcher::CheckResult> ask_hosts(const RunJob& job, const GivenToken& token,
                                        launcher::CheckRun::CheckScope scope) {
  take_signals();
  if (const auto room = make_room_for_nodes(job.spec); !room) return room.error();
  auto agent = choose_agent(job.spec);
  if (!agent) return agent.error();
  asio::io_context loop(1);
  const auto remote = make_remote_shell(loop, job.spec, token,
                                        [](const std::string& text) { say("ddplaunch: " + text + "\n"); });
  if (!remote) return remote.error();
  remote::LocalShell local(loop.get_executor());
  remote::FanOutOptions options;
  options.argv = {agent->path, "--stdio"};
  options.ssh_localhost = job.spec.ssh_localhost;
  options.expected = agent->expected;
  options.bundle = agent->bundle;
  options.remote_is_here = job.spec.launcher == launcher::LauncherKind::kLocal;
  launcher::CheckMaster master(loop, job.spec, scope, **remote, local, std::move(options), say);
  return master.run();
}

}  // namespace

int check(const RunJob& job, const GivenToken& token) {
  auto asked = ask_hosts(job, token, {job.verb == Verb::kCheck, job.worker_given});
  if (!asked) return fail(asked.error());
  launcher::CheckResult& result = *asked;
  std::vector<launcher::CheckDiagnostic> diagnostics = diagnose_nodes(job.spec, result);
  if (job.deep || job.collectives) check_deep(job, token, result, diagnostics);
  const std::string text = text_of(job, result, diagnostics);
  const Result<> printed = print_result(text);
  const int code = check_exit_code(result, diagnostics);
  if (!printed && code != 0) std::fprintf(stderr, "ddplaunch: %s\n", printed.error().text.c_str());
  if (const std::string last = check_last_line(code, result, job.spec, diagnostics); !last.empty())
    std::fprintf(stderr, "ddplaunch: %s\n", last.c_str());
  return printed || code != 0 ? code : fail(printed.error());
}

int clean(const RunJob& wanted, const GivenToken& token) {
  RunJob job = wanted;
  if (job.spec.per_node) {
    return fail({ErrorCode::kUsage,
                 "its nodes were started by themselves, so ddplaunch cannot reach them; there, agents end "
                 "their workers without a master"});
  }
  job.spec.start_timeout = std::max(job.spec.start_timeout, kCleanTime);
  auto asked = ask_hosts(job, token, {.clean = true});
  if (!asked) return fail(asked.error());
  const Result<> printed =
      print_result(job.json ? clean_json(job.spec, *asked) : clean_text(job.spec, *asked));
  if (!printed) return fail(printed.error());
  const auto has_left = [](const launcher::CheckedNode& node) {
    return node.facts && !node.facts->left.empty();
  };
  const int code = check_exit_code(*asked, {});
  return code == 0 && std::any_of(asked->nodes.begin(), asked->nodes.end(), has_left) ? kExitLeft : code;
}

}  // namespace ddp
