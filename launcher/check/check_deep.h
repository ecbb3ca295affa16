#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/check/check_diagnosis.h"
#include "launcher/check/check_run.h"
#include "launcher/job/job_spec.h"

namespace ddp::launcher {

/// What a check runs on the hosts beyond asking them: the bundled trainer, as a job.
enum class DeepTest : std::uint8_t {
  kHealth,       ///< --deep: train health
  kCollectives,  ///< --collectives: train bench allreduce
};

/// How such a job ended.
struct DeepRun {
  DeepTest test = DeepTest::kHealth;
  int exit_code = 0;
  std::string output;  ///< of rank 0, with the trainer's record in one of its lines
  std::string errors;  ///< what the job said on standard error
};

/// The job of one test over the hosts of a check (sans-IO): the same hosts, ways and variables, the trainer
/// instead of the worker; no file of the user's, no restart, no spare. A worker that is train health
/// or train bench keeps its options. `job_dir`: where its files may lie. `min_busbw`: as written, empty:
/// none.
JobSpec deep_job(const JobSpec& spec, DeepTest test, const std::string& job_dir,
                 const std::string& min_busbw);

/// What the trainer found, as diagnostics of the check: ranks are named by the hosts that they ran on.
std::vector<CheckDiagnostic> deep_diagnostics(const CheckResult& result, const DeepRun& run);

/// Whether the trainer came to its end, however that was.
bool deep_has_result(const DeepRun& run);

/// Adds them: errors stand before warnings as before.
void add_diagnostics(std::vector<CheckDiagnostic>& all, std::vector<CheckDiagnostic> more);

}  // namespace ddp::launcher
