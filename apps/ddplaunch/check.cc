#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/ddplaunch/commands.h"
#include "base/child_process.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/program.h"
#include "base/result.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/check/check_diagnosis.h"
#include "launcher/control/history_files.h"
#include "launcher/master/host_check.h"
#include "remote/transports/command_transport.h"

namespace ddp {
namespace {

/// An agent gives its workers 5 s, and processes that hang need more.
constexpr std::chrono::milliseconds kCleanTime{60'000};
constexpr int kExitLeft = 1;

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
                                        launcher::CheckScope scope) {
  reset_signals();
  DDP_TRY(make_room_for_nodes(job.spec));
  auto start = DDP_TRY(choose_agent(job.spec));
  asio::io_context loop(1);
  const auto remote = DDP_TRY(make_transport(
      loop, job.spec, token, [](const std::string& text) { say("ddplaunch: " + text + "\n"); }));
  remote::LocalTransport local(loop.get_executor());
  return check_hosts(loop, job.spec, scope, *remote, local, std::move(start), say);
}

using launcher::DeepRun;
using launcher::DeepTest;

/// Redirects a standard descriptor into memory until end().
class Captured {
 public:
  static Result<Captured> begin(int target) {
    Captured captured;
    captured.target_ = target;
    captured.memory_ = DDP_TRY(memory_file("ddplaunch-check"));
    captured.before_ = UniqueFd(::fcntl(target, F_DUPFD_CLOEXEC, 3));
    if (!captured.before_) return system_error(errno, "dup of a standard descriptor");
    if (::dup2(captured.memory_.get(), target) < 0) return system_error(errno, "dup2");
    return captured;
  }

  /// Restores the descriptor and returns the captured text.
  std::string end() {
    (void)::dup2(before_.get(), target_);
    return read_whole(memory_.get());
  }

 private:
  Captured() = default;
  int target_ = -1;
  UniqueFd memory_, before_;
};

/// A temporary directory, removed by the destructor.
class PassingDirectory {
 public:
  PassingDirectory() {
    std::error_code failed;
    std::string path = (std::filesystem::temp_directory_path(failed) / "ddplaunch-check-XXXXXX").string();
    if (::mkdtemp(path.data()) != nullptr) path_ = path;
  }
  ~PassingDirectory() {
    std::error_code failed;
    if (!path_.empty()) std::filesystem::remove_all(path_, failed);
  }
  PassingDirectory(const PassingDirectory&) = delete;
  PassingDirectory& operator=(const PassingDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Result<DeepRun> run_test(const RunJob& job, const GivenToken& token, DeepTest test,
                         const launcher::CheckResult& result) {
  const PassingDirectory directory;
  if (directory.path().empty()) return system_error(errno, "make a directory for the files of the test");
  const auto spec = launcher::deep_job(job.spec, result, test, directory.path() + "/job", job.min_busbw);
  auto output = DDP_TRY(Captured::begin(STDOUT_FILENO));
  auto errors = Captured::begin(STDERR_FILENO);
  if (!errors) {
    (void)output.end();
    return errors.error();
  }
  DeepRun run;
  run.test = test;
  run.exit_code = launch(spec, token);
  std::fflush(stdout);
  run.errors = errors->end();
  run.output = output.end();
  return run;
}

bool any_error(const std::vector<launcher::CheckDiagnostic>& diagnostics) {
  return std::any_of(diagnostics.begin(), diagnostics.end(), [](const launcher::CheckDiagnostic& diagnostic) {
    return diagnostic.level == launcher::CheckDiagnostic::Severity::kError;
  });
}

void add_test(const RunJob& job, const GivenToken& token, DeepTest test, launcher::CheckResult& result,
              std::vector<launcher::CheckDiagnostic>& diagnostics) {
  const bool health = test == DeepTest::kHealth;
  if (!job.spec.quiet) {
    std::fprintf(stderr, "ddplaunch: %s runs on %s\n", health ? "train health" : "train bench",
                 counted(result.nodes.size(), "host").c_str());
  }
  const auto run = run_test(job, token, test, result);
  if (!run) {
    launcher::CheckDiagnostic diagnostic;
    diagnostic.item = health ? "health" : "collectives";
    diagnostic.text = run.error().text;
    return add_diagnostics(diagnostics, {diagnostic});
  }
  if (job.spec.verbose) std::fwrite(run->errors.data(), 1, run->errors.size(), stderr);
  constexpr int kSignals[] = {1, 2, 15};
  for (const int signal : kSignals) {
    if (run->exit_code != 128 + signal || deep_has_result(*run)) continue;
    result.stop_signal = signal;
    return;
  }
  // The figures of an all-reduce are of use when all is well, too.
  if (!health && !job.json && deep_has_result(*run)) {
    std::fputs(deep_table(*run).c_str(), stdout);
    std::fflush(stdout);  // before the check's own result, which is written without a buffer
  }
  if (std::string tested = deep_tested(*run); !tested.empty()) result.tested.push_back(std::move(tested));
  add_diagnostics(diagnostics, deep_diagnostics(result, *run));
}

/// `ddplaunch check --deep` and `--collectives`: runs the bundled trainer on the hosts and adds its
/// diagnostics. If the hosts could not run a job, it runs no test and says so on stderr. `result` records a
/// signal of the user.
void check_deep(const RunJob& job, const GivenToken& token, launcher::CheckResult& result,
                std::vector<launcher::CheckDiagnostic>& diagnostics) {
  if (result.stop_signal != 0) return;
  if (any_error(diagnostics)) {
    std::fprintf(stderr, "ddplaunch: skipped --deep and --collectives: a job would fail on these hosts\n");
    return;
  }
  if (job.deep) add_test(job, token, DeepTest::kHealth, result, diagnostics);
  if (job.collectives && result.stop_signal == 0)
    add_test(job, token, DeepTest::kCollectives, result, diagnostics);
}

}  // namespace

int check(const RunJob& job, const GivenToken& token) {
  auto asked = ask_hosts(job, token, {job.verb == Verb::kCheck, job.worker_given});
  if (!asked) return report_exit(asked.error());
  launcher::CheckResult& result = *asked;
  std::vector<launcher::CheckDiagnostic> diagnostics = diagnose_nodes(job.spec, result);
  add_diagnostics(diagnostics, history_diagnostics(job.spec, result, job.bad_record));
  if (job.verb == Verb::kCheck) {
    const auto scheduler = launcher::scheduler_limits(launcher::split_env(own_environment()), unix_now());
    result.time_limits = launcher::time_limits(job.spec, scheduler);
    add_diagnostics(diagnostics, time_limit_diagnostics(job.spec, scheduler));
  }
  if (job.deep || job.collectives) check_deep(job, token, result, diagnostics);
  const std::string text = text_of(job, result, diagnostics);
  const Result<> printed = print_result(text);
  const int code = check_exit_code(result, diagnostics);
  if (!printed && code != 0) std::fprintf(stderr, "ddplaunch: %s\n", printed.error().text.c_str());
  if (const std::string last = check_last_line(code, result, job.spec, diagnostics); !last.empty())
    std::fprintf(stderr, "ddplaunch: %s\n", last.c_str());
  return printed || code != 0 ? code : report_exit(printed.error());
}

int show_host_history(const RunJob& job) {
  const std::string& directory = job.spec.host_history;
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  auto history = launcher::read_host_history(directory, now);
  if (!history) return report_exit(history.error());
  std::string lines;
  for (const std::string& host : job.forget) {
    const auto records = history->records();
    if (std::ranges::count(records, host, &launcher::HostRecord::host) == 0)
      return report_exit({ErrorCode::kUsage, "no failures of " + host + " in " + directory +
                                                 "; ddplaunch hosts --history lists them"});
    lines += launcher::forget_line(host, now);
  }
  if (const auto written = lines.empty() ? Result<>() : launcher::append_host_history(directory, lines);
      !written)
    return report_exit(written.error());
  if (!lines.empty()) history = launcher::read_host_history(directory, now);
  if (!history) return report_exit(history.error());
  const auto records = history->records();
  std::string text;
  for (const std::string& host : job.forget) {
    const auto left = std::ranges::find(records, host, &launcher::HostRecord::host);
    if (left == records.end()) continue;
    text += "ddplaunch: " + host + ": " + counted(left->kept, "failure") +
            " of other users' jobs stay; the owner of " + directory + " and root can forget them\n";
  }
  say(text);
  if (!job.history) return text.empty() ? 0 : kExitLeft;
  const Result<> printed = print_result(job.json ? launcher::history_json(records, directory)
                                                 : launcher::history_text(records, directory));
  return printed ? 0 : report_exit(printed.error());
}

int clean(const RunJob& wanted, const GivenToken& token) {
  RunJob job = wanted;
  if (job.spec.per_node) {
    return report_exit(
        {ErrorCode::kUsage,
         "its nodes were started by themselves, so ddplaunch cannot reach them; there, agents end "
         "their workers without a master"});
  }
  job.spec.start_timeout = std::max(job.spec.start_timeout, kCleanTime);
  auto asked = ask_hosts(job, token, {.clean = true});
  if (!asked) return report_exit(asked.error());
  const Result<> printed =
      print_result(job.json ? clean_json(job.spec, *asked) : clean_text(job.spec, *asked));
  if (!printed) return report_exit(printed.error());
  const auto has_left = [](const launcher::CheckedNode& node) {
    return node.facts && !node.facts->left.empty();
  };
  const int code = check_exit_code(*asked, {});
  return code == 0 && std::any_of(asked->nodes.begin(), asked->nodes.end(), has_left) ? kExitLeft : code;
}

}  // namespace ddp
