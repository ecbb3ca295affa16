// ddplaunch: reads the options, then runs the job or checks its nodes, and returns the exit code.
#include <malloc.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "apps/ddplaunch/commands.h"
#include "apps/ddplaunch/operate/operate_options.h"
#include "apps/ddplaunch/options/options.h"
#include "base/program.h"
#include "launcher/master/user_input.h"
#include "rendezvous/link/link_token.h"

namespace {

constexpr int kExitUsage = 2;

int print(const ddp::PrintText& print) {
  const ddp::Result<> printed = ddp::print_result(print.text);
  if (printed) return 0;
  return ddp::report_exit(printed.error());
}

int refuse(const ddp::BadUsage& usage) {
  for (const std::string& problem : usage.errors)
    std::fprintf(stderr, "%s\n", problem.c_str());
  return kExitUsage;
}

void show_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes)
    std::fprintf(stderr, "%s\n", note.c_str());
}

int run(const ddp::RunJob& job, ddp::GivenToken token) {
  if (!job.spec.quiet) show_notes(job.notes);
  if (job.history || !job.forget.empty()) return ddp::show_host_history(job);
  // The job: of one ddplaunch per node, only tested or printed, or run here or detached.
  if (job.verb == ddp::Verb::kRun && !job.detach)
    ddp::launcher::split_for_job_control([&token] { token = ddp::rendezvous::LinkToken{}; });
  if (job.spec.per_node) return ddp::run_per_node(job, std::move(token));
  if (job.verb != ddp::Verb::kRun) return ddp::check(job, token);
  // Reach the nodes, agree, run, report.
  const auto launch = [&](std::function<void()> all_run) {
    return ddp::launch(job.spec, token, nullptr, &job.registration, std::move(all_run));
  };
  return job.detach ? ddp::run_detached(job, launch) : launch({});
}

int run(int argc, char** argv) {
  ddp::fill_standard_descriptors();
  // Take the token before the environment is copied or a child is started.
  ddp::GivenToken token = ddp::rendezvous::take_token_from_environment();
  // Options: a verb about jobs that exist has its own; else a job, a text to print, or all errors.
  const std::vector<std::string> args(argv + 1, argv + argc);
  const ddp::ProcessContext context = ddp::read_process_context();
  if (const ddp::VerbRow* verb = ddp::find_verb(args); verb != nullptr && !verb->is_about_new_job()) {
    const ddp::CleanHosts clean = [&token](const ddp::RunJob& job) { return ddp::clean(job, token); };
    return ddp::operate(verb->verb, args, context, clean);
  }
  if (const std::string mistake = ddp::mistyped_verb(args); !mistake.empty())
    return refuse({{"ddplaunch: " + mistake}});
  const ddp::ParsedOptions parsed = ddp::parse_options(args, context);
  if (const auto* text = std::get_if<ddp::PrintText>(&parsed)) {
    show_notes(text->notes);
    return print(*text);
  }
  if (const auto* usage = std::get_if<ddp::BadUsage>(&parsed)) return refuse(*usage);
  return run(std::get<ddp::RunJob>(parsed), std::move(token));
}

/// The kernel drops a signal to process 1 (of a container) that has no handler, so `docker stop` would wait
/// for nothing. This handler does what the default would, until the master sets its own.
__attribute__((constructor)) void end_at_signals_as_process_1() {
  if (::getpid() != 1) return;
  struct sigaction action {};
  action.sa_handler = [](int number) { ::_exit(128 + number); };
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction inherited {};
    if (::sigaction(number, nullptr, &inherited) == 0 && inherited.sa_handler == SIG_DFL)
      ::sigaction(number, &action, nullptr);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // Buffers of output go back to the system at once. Otherwise malloc learns to keep them, and a job whose
  // output nobody reads takes a quarter more memory.
  mallopt(M_MMAP_THRESHOLD, 64 << 10);
  return ddp::report_refusals([=] { return run(argc, argv); });
}
