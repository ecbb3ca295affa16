#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/check/check_diagnosis.h"
#include "launcher/check/check_run.h"
#include "launcher/job/job_spec.h"

namespace ddp::launcher {

/// A test that a check runs on the hosts as a job of the bundled trainer.
enum class DeepTest : std::uint8_t {
  kHealth,       ///< --deep: train health
  kCollectives,  ///< --collectives: train bench allreduce
};

/// The end of the job of a test.
struct DeepRun {
  DeepTest test = DeepTest::kHealth;
  int exit_code = 0;
  std::string output;  ///< of rank 0; one of its lines is the trainer's record
  std::string errors;  ///< the job's stderr
};

/// The job of one test on the hosts of a check (sans-IO): the same hosts, connections and variables, with the
/// trainer as the worker. It uses no file of the user, no restart and no spare. A worker that is train health
/// or train bench keeps its options. `job_dir`: directory for the job's files. `min_busbw`: as the user wrote
/// it; empty: none.
JobSpec deep_job(const JobSpec& spec, DeepTest test, const std::string& job_dir,
                 const std::string& min_busbw);

/// The trainer's results as diagnostics of the check. Ranks are named by their hosts.
std::vector<CheckDiagnostic> deep_diagnostics(const CheckResult& result, const DeepRun& run);

/// Returns the table that the trainer printed, without its record.
std::string deep_table(const DeepRun& run);

/// Returns whether the trainer ran to its end, with any result.
bool deep_has_result(const DeepRun& run);

/// Appends `more`, and keeps errors before warnings.
void add_diagnostics(std::vector<CheckDiagnostic>& all, std::vector<CheckDiagnostic> more);

}  // namespace ddp::launcher
