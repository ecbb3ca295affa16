#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/check/check_result.h"
#include "launcher/job/job_spec.h"
#include "launcher/report/host_history.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// One problem, on one host or equal on several.
struct CheckDiagnostic {
  enum class Severity : std::uint8_t { kWarning, kError };
  Severity level = Severity::kError;
  std::string item;                ///< one of kItems in check_diagnosis.cc, for programs
  std::vector<std::size_t> nodes;  ///< indices, ascending; empty: concerns the job as a whole
  std::string text;                ///< the problem
  std::string advice;              ///< what to do
  bool operator==(const CheckDiagnostic&) const = default;
};

/// Judges the results (sans-IO). An error would break the job or keep it from starting; a warning may. Errors
/// come first, in the order of the items and then of the nodes. Equal problems of several hosts are one
/// diagnostic.
std::vector<CheckDiagnostic> diagnose_nodes(const JobSpec& spec, const CheckResult& result);

/// Returns what the host history says about the hosts of the job that were asked (sans-IO): warnings.
/// `records` have the names and the order of the hosts; those of other hosts are missing.
std::vector<CheckDiagnostic> history_diagnostics(const JobSpec& spec, const CheckResult& result,
                                                 const std::vector<HostRecord>& records);

/// The exit code (docs/users/check.md): 0; 128+n if the user's signal n ended the check; the code with which
/// a job would end if a host could not even be asked; else 115.
int check_exit_code(const CheckResult& result, const std::vector<CheckDiagnostic>& diagnostics);

/// Returns whether NCCL_SOCKET_IFNAME=`value` lets NCCL find an interface on a node that has `interfaces`.
/// The value is a list of prefixes, or of whole names after a leading "=". A leading "^" (or "^=") excludes
/// them instead. https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
bool nccl_finds(const std::vector<rendezvous::Interface>& interfaces, std::string_view value);

/// The names in GLOO_SOCKET_IFNAME=`value`, a list of whole names, that the node lacks: "eth1, ib0".
std::string gloo_lacks(const std::vector<rendezvous::Interface>& interfaces, std::string_view value);

/// Returns whether only one of several hosts could be asked; the network between them is then unknown.
bool one_of_several(const CheckResult& result);

/// Returns why the job would use its network, as text; empty: no network was found. `result.network` must
/// hold one.
std::string network_reason(const CheckResult& result);

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
/// or train bench keeps its options. Between GPUs messages are as large as in real jobs. `job_dir`: directory
/// for the job's files. `min_busbw`: as the user wrote it; empty: none.
JobSpec deep_job(const JobSpec& spec, const CheckResult& result, DeepTest test, const std::string& job_dir,
                 const std::string& min_busbw);

/// The trainer's results as diagnostics of the check. Ranks are named by their hosts.
std::vector<CheckDiagnostic> deep_diagnostics(const CheckResult& result, const DeepRun& run);

/// Returns the table that the trainer printed, without its record.
std::string deep_table(const DeepRun& run);

/// Returns whether the trainer ran to its end, with any result.
bool deep_has_result(const DeepRun& run);
/// Returns what was tested on what, as the trainer says it: "train health: 8 × NVIDIA H100, …". Empty:
/// nothing was.
std::string deep_tested(const DeepRun& run);

/// Appends `more`, and keeps errors before warnings.
void add_diagnostics(std::vector<CheckDiagnostic>& all, std::vector<CheckDiagnostic> more);

}  // namespace ddp::launcher
