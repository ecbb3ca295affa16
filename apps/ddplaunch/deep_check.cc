#include "apps/ddplaunch/commands.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/format_text.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/check/check_deep.h"

namespace ddp {
namespace {

using launcher::DeepRun;
using launcher::DeepTest;

/// Redirects a standard descriptor into memory until end().
class Captured {
 public:
  static Result<Captured> begin(int target) {
    Captured captured;
    captured.target_ = target;
    captured.memory_ = UniqueFd(::memfd_create("ddplaunch-check", MFD_CLOEXEC));
    if (!captured.memory_) return system_error(errno, "memfd_create");
    captured.before_ = UniqueFd(::fcntl(target, F_DUPFD_CLOEXEC, 3));
    if (!captured.before_) return system_error(errno, "dup of a standard descriptor");
    if (::dup2(captured.memory_.get(), target) < 0) return system_error(errno, "dup2");
    return captured;
  }

  /// Restores the descriptor and returns the captured text.
  std::string end() {
    (void)::dup2(before_.get(), target_);
    std::string text;
    char part[65'536];
    for (off_t at = 0;;) {
      const ssize_t count = ::pread(memory_.get(), part, sizeof part, at);
      if (count <= 0) return text;
      text.append(part, static_cast<std::size_t>(count));
      at += count;
    }
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

Result<DeepRun> run_test(const RunJob& job, const GivenToken& token, DeepTest test) {
  const PassingDirectory directory;
  if (directory.path().empty()) return system_error(errno, "make a directory for the files of the test");
  const auto spec = launcher::deep_job(job.spec, test, directory.path() + "/job", job.min_busbw);
  auto output = Captured::begin(STDOUT_FILENO);
  if (!output) return output.error();
  auto errors = Captured::begin(STDERR_FILENO);
  if (!errors) {
    (void)output->end();
    return errors.error();
  }
  DeepRun run;
  run.test = test;
  run.exit_code = launch(spec, token);
  std::fflush(stdout);
  run.errors = errors->end();
  run.output = output->end();
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
  const auto run = run_test(job, token, test);
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
  if (!health && !job.json && deep_has_result(*run)) std::fputs(deep_table(*run).c_str(), stdout);
  add_diagnostics(diagnostics, deep_diagnostics(result, *run));
}

}  // namespace

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

}  // namespace ddp
