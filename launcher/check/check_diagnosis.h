#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/job/job_spec.h"
#include "launcher/job/worker_env.h"
#include "launcher/report/host_history.h"
#include "launcher/supervisor/net_choice.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

// The results of `ddplaunch check` and `ddplaunch hosts`, their diagnostics, and their text. The sources are
// check_diagnosis.cc, time_limits.cc and check_text.cc.

namespace ddp::launcher {

/// The results of one host.
struct CheckedNode {
  std::optional<Error> error;        ///< it could not be reached, or did not complete the check
  bool up = false;                   ///< its agent sent a hello, so `hello` is set
  std::chrono::nanoseconds took{0};  ///< from the start to its hello
  rendezvous::Hello hello;
  std::string connected;  ///< the address that was used to reach it; empty: unknown
  std::optional<rendezvous::NodeChecked> facts;
  std::optional<std::chrono::nanoseconds> wall_ahead;  ///< its wall clock minus ours; set by the driver
  std::chrono::nanoseconds wall_error{0};              ///< ± of it
  enum class Reach : std::uint8_t { kNotTried, kReached, kFailed };
  Reach reach = Reach::kNotTried;  ///< of node 0's store; node 0 itself is kReached if it could open a store
  std::string reach_text;          ///< the address that answered, or why none did
  std::string local;               ///< its own address on that route; empty: unknown
};

/// A time after which a program ends something of a job.
struct TimeLimit {
  std::string owner;                ///< "ddplaunch", "PyTorch", "NCCL", "ssh", "Slurm"
  std::string name;                 ///< where it is set: "--node-timeout", "NCCL_IB_TIMEOUT"
  std::chrono::milliseconds after;  ///< 0: never
  std::string effect;               ///< for people
  bool is_assumed = false;  ///< the program's own default, which a script or an administrator may change
};

struct CheckResult {
  std::vector<CheckedNode> nodes;  ///< in the order of the job's hosts
  int stop_signal = 0;             ///< the signal by which the user ended the check early
  std::string awaited;             ///< with stop_signal: what the check waited for
  /// `networked` holds the nodes that are up, in order; `network` is unset if there are none.
  std::vector<std::size_t> networked;
  std::optional<Result<NetChoice>> network;
  std::optional<Result<rendezvous::RankPlan>> plan;  ///< of all nodes; unset unless all are up
  /// Returns the plan, or null if there is none.
  const rendezvous::RankPlan* planned() const { return plan && *plan ? &**plan : nullptr; }
  std::string master_addr;  ///< empty: no common address was found
  struct RejectedNetwork {
    std::string master_addr, network;  ///< of the NetRoute
    std::vector<std::size_t> nodes;    ///< nodes that do not reach it
  };
  std::vector<RejectedNetwork> rejected_networks;  ///< better than the network of `master_addr`
  std::uint16_t store_port = 0;                    ///< port on which node 0 listened; 0: none
  std::vector<std::string> tested;  ///< what --deep and --collectives tested on what: "train health: 8 × …"
  std::vector<TimeLimit> time_limits;  ///< of the job, in order; of `ddplaunch check` only
};

// ---- diagnostics

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

/// Appends `more`, and keeps errors before warnings.
void add_diagnostics(std::vector<CheckDiagnostic>& all, std::vector<CheckDiagnostic> more);

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

// ---- --deep and --collectives

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

// ---- time limits

/// What the scheduler of the master's job does at its end. All values of no scheduler are unset.
struct SchedulerLimits {
  std::string name;                                     ///< "Slurm"; empty: none is known
  std::optional<std::chrono::milliseconds> left;        ///< until it ends the job
  std::optional<std::chrono::milliseconds> kill_after;  ///< from its SIGTERM to its SIGKILL, by default
};

/// Returns what the variables of the scheduler say. `now` is the time since 1970.
SchedulerLimits scheduler_limits(const EnvVars& env, std::chrono::milliseconds now);

/// Returns the job's time limits, the shortest first and those without an end last (docs/users/timeouts.md).
std::vector<TimeLimit> time_limits(const JobSpec& spec, const SchedulerLimits& scheduler);

/// Returns a warning for each limit that undercuts another one, so that the latter never acts, or acts too
/// late.
std::vector<CheckDiagnostic> time_limit_diagnostics(const JobSpec& spec, const SchedulerLimits& scheduler);

// ---- text

/// The output of `ddplaunch check` for people: a line for each host, then a line for each diagnostic.
/// `colours`: for a terminal.
std::string check_text(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics, bool colours);
/// The same for programs: one JSON document, described in docs/users/check.md.
std::string check_json(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics);

/// The output of `ddplaunch hosts`: what a job would consist of. Only variables that ddplaunch sets have
/// values.
std::string hosts_text(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics);
std::string hosts_json(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics);

/// The output of `ddplaunch clean`: for each host how many processes were found, and what is left.
std::string clean_text(const JobSpec& spec, const CheckResult& result);
std::string clean_json(const JobSpec& spec, const CheckResult& result);

/// The last line on stderr: "exit 115: a job would fail, 2 errors found". Empty for exit code 0.
std::string check_last_line(int exit_code, const CheckResult& result, const JobSpec& spec,
                            const std::vector<CheckDiagnostic>& diagnostics);

/// The variables that differ between hosts: NAME, or NAME=VALUE if ddplaunch chooses the value.
std::vector<std::string> node_variables(const JobSpec& spec, const CheckResult& result, std::size_t node);
/// The interface that is chosen for a node, or "".
std::string chosen_interface(const CheckResult& result, std::size_t node);
/// The node's address on that interface, else the one at which it was reached.
std::string chosen_address(const CheckResult& result, std::size_t node);

}  // namespace ddp::launcher
