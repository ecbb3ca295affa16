// The time limits of a job, ours and those of other programs; and which of them undercut others.
#include "launcher/check/check_diagnosis.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

/// What a node's silence costs beyond --node-timeout before it counts as lost (docs/users/elastic.md).
constexpr seconds kLostAfter{2};
// Defaults of PyTorch 2.2 and later: torch/distributed/constants.py (_DEFAULT_PG_NCCL_TIMEOUT,
// default_pg_timeout) and ProcessGroupNCCL.cpp.
constexpr minutes kTorchNccl{10};
constexpr minutes kTorchGloo{30};
constexpr minutes kTorchHeartbeat{8};
// Of NCCL 2.23 and later (docs.nvidia.com/deeplearning/nccl, "Environment Variables"). A transfer is repeated
// NCCL_IB_RETRY_CNT times after 4.096 µs × 2^NCCL_IB_TIMEOUT each.
constexpr int kIbTimeout = 20;
constexpr int kIbRetries = 7;
constexpr int kMostIbTimeout = 31;  ///< a field of 5 bits
// Slurm's KillWait (slurm.conf) and Kubernetes' terminationGracePeriodSeconds.
constexpr seconds kSchedulerKills{30};

/// Returns a variable of the workers; null: unset. The node's own environment and its hostfile entry may set
/// it as well.
const std::string* variable(const JobSpec& spec, std::string_view name) {
  const std::string* given = find_env(spec.explicit_env, name);
  return given != nullptr ? given : find_env(spec.env, name);
}

/// Returns a variable as a number; unset: it is no number, or above `most`.
std::optional<int> number(const JobSpec& spec, std::string_view name, unsigned long long most) {
  const std::string* text = variable(spec, name);
  const auto value = text == nullptr ? std::nullopt : whole_number(*text, most);
  if (!value) return {};
  return static_cast<int>(*value);
}

/// Returns when a transfer of InfiniBand fails, and whether a variable says so.
std::pair<milliseconds, bool> infiniband_limit(const JobSpec& spec) {
  const auto timeout = number(spec, "NCCL_IB_TIMEOUT", kMostIbTimeout);
  const auto retries = number(spec, "NCCL_IB_RETRY_CNT", kIbRetries);
  // 2^31 × 4096 ns × 7 fits in 64 bits.
  const std::chrono::nanoseconds once((std::int64_t{1} << timeout.value_or(kIbTimeout)) * 4096);
  return {duration_cast<milliseconds>(once * retries.value_or(kIbRetries)),
          timeout.has_value() || retries.has_value()};
}

milliseconds torch_heartbeat(const JobSpec& spec) {
  const auto given = number(spec, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 1'000'000);
  return given ? milliseconds(seconds(*given)) : milliseconds(kTorchHeartbeat);
}

/// Returns ConnectTimeout of --ssh-command: "-o ConnectTimeout=5" or "-oConnectTimeout=5".
std::optional<milliseconds> connect_timeout(const JobSpec& spec) {
  constexpr std::string_view kName = "connecttimeout=";
  for (const std::string& word : spec.ssh_command) {
    std::string option = lower_case(word);
    if (option.starts_with("-o")) option.erase(0, 2);
    if (!option.starts_with(kName)) continue;
    const auto value = whole_number(std::string_view(option).substr(kName.size()), 1'000'000);
    if (value) return seconds(*value);
  }
  return {};
}

/// A collective's time-out matters to workers of PyTorch only; `train` sets its own.
bool may_be_torch(const JobSpec& spec) {
  return spec.command.kind != WorkerCommand::Kind::kTrain;
}

}  // namespace

SchedulerLimits scheduler_limits(const EnvVars& env, milliseconds now) {
  SchedulerLimits limits;
  if (find_env(env, "SLURM_JOB_ID") != nullptr) {
    limits.name = "Slurm";
    limits.kill_after = kSchedulerKills;
    const std::string* end = find_env(env, "SLURM_JOB_END_TIME");  // seconds since 1970
    const auto at = end == nullptr ? std::nullopt : whole_number(*end, 100'000'000'000);
    if (at && seconds(*at) > now) limits.left = seconds(*at) - now;
  } else if (find_env(env, "KUBERNETES_SERVICE_HOST") != nullptr) {
    limits.name = "Kubernetes";
    limits.kill_after = kSchedulerKills;
  }
  return limits;
}

std::vector<TimeLimit> time_limits(const JobSpec& spec, const SchedulerLimits& scheduler) {
  std::vector<TimeLimit> limits;
  const auto own = [&limits](std::string name, milliseconds after, std::string effect) {
    limits.push_back({"ddplaunch", std::move(name), after, std::move(effect)});
  };
  own("--stop-grace, after a failure", spec.failure_grace, "SIGKILL for workers that have not ended");
  own("--stop-grace, after your signal", spec.stop_grace, "SIGKILL for workers that have not ended");
  own("--start-timeout", spec.start_timeout, "a start that is not complete ends the job");
  own("--hang-timeout", spec.hang_timeout, "a job without any activity ends as hung");
  own("--report-stalls", spec.report_stalls, "a job without any activity is reported, and goes on");
  const bool one_machine = spec.launcher == LauncherKind::kLocal;
  if (!one_machine) {
    own("--node-timeout, and 2 s", spec.node_timeout + kLostAfter, "a silent node counts as lost");
    own("--master-timeout", node_lease(spec), "nodes without the master stop their workers");
  }
  const auto [infiniband, is_given] = infiniband_limit(spec);
  if (may_be_torch(spec)) {
    limits.push_back({"PyTorch", "init_process_group(timeout=), NCCL", kTorchNccl,
                      "a collective that is not complete ends its process", true});
    limits.push_back({"PyTorch", "init_process_group(timeout=), Gloo", kTorchGloo,
                      "a collective that is not complete raises an exception", true});
    limits.push_back({"PyTorch", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", torch_heartbeat(spec),
                      "a watchdog that hangs ends its process",
                      variable(spec, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC") == nullptr});
  }
  if (!one_machine)
    limits.push_back({"NCCL", "NCCL_IB_TIMEOUT × NCCL_IB_RETRY_CNT", infiniband,
                      "an InfiniBand transfer without an answer fails", !is_given});
  if (const auto connect = connect_timeout(spec))
    limits.push_back({"ssh", "ConnectTimeout", *connect, "a host that does not answer is an error"});
  if (scheduler.kill_after)
    limits.push_back({scheduler.name,
                      scheduler.name == "Slurm" ? "KillWait" : "terminationGracePeriodSeconds",
                      *scheduler.kill_after, "SIGKILL after its SIGTERM", true});
  if (scheduler.left)
    limits.push_back(
        {scheduler.name, "time limit of the job", *scheduler.left, "SIGTERM for all of the job"});
  std::ranges::stable_sort(limits, {}, [](const TimeLimit& limit) {
    return std::pair(limit.after == milliseconds(0), limit.after);
  });
  return limits;
}

std::vector<CheckDiagnostic> time_limit_diagnostics(const JobSpec& spec, const SchedulerLimits& scheduler) {
  std::vector<CheckDiagnostic> found;
  const auto warn = [&found](std::string text, std::string advice) {
    found.push_back(
        {CheckDiagnostic::Severity::kWarning, "timeouts", {}, std::move(text), std::move(advice)});
  };
  const bool one_machine = spec.launcher == LauncherKind::kLocal;
  // The least lease that lets nodes outlive what the master forgives: node_lease() without --master-timeout.
  JobSpec usual = spec;
  usual.master_timeout = milliseconds(0);
  if (!one_machine && node_lease(spec) < node_lease(usual))
    warn("nodes stop their workers after " + format_duration(node_lease(spec)) +
             " without the master (--master-timeout), so an outage shorter than --node-timeout (" +
             format_duration(spec.node_timeout) + ") may end the job",
         "omit --master-timeout, or give at least " + format_duration(node_lease(usual)));
  const auto [infiniband, is_given] = infiniband_limit(spec);
  if (!one_machine && is_given && infiniband < spec.node_timeout)
    warn("an InfiniBand transfer fails after " + format_duration(infiniband) +
             " (NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT), before the end of an outage that --node-timeout (" +
             format_duration(spec.node_timeout) + ") allows",
         "raise them, or shorten --node-timeout");
  if (!one_machine && may_be_torch(spec) && torch_heartbeat(spec) < node_lease(spec))
    warn("PyTorch ends a process whose watchdog waits for " + format_duration(torch_heartbeat(spec)) +
             " (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC), before a node's outage is over (--master-timeout " +
             format_duration(node_lease(spec)) + ")",
         "give at least " + std::to_string(duration_cast<seconds>(node_lease(spec)).count()) + " seconds");
  if (may_be_torch(spec) && spec.hang_timeout > milliseconds(kTorchNccl))
    warn("PyTorch ends a collective of NCCL after " + format_duration(kTorchNccl) +
             " unless the script sets another time, before --hang-timeout (" +
             format_duration(spec.hang_timeout) + ") finds the hang and collects its stacks",
         "shorten --hang-timeout, or set init_process_group(timeout=…) to more");
  if (scheduler.kill_after && spec.stop_grace >= *scheduler.kill_after)
    warn(scheduler.name + " kills all of a job " + format_duration(*scheduler.kill_after) +
             " after its SIGTERM unless it is configured otherwise, before --stop-grace (" +
             format_duration(spec.stop_grace) + ") is over; the report is lost then",
         "shorten --stop-grace, or raise " +
             std::string(scheduler.name == "Slurm" ? "KillWait" : "terminationGracePeriodSeconds"));
  if (scheduler.left && *scheduler.left < spec.start_timeout)
    warn(scheduler.name + " ends this job in " + format_duration(duration_cast<seconds>(*scheduler.left)) +
             ", before --start-timeout (" + format_duration(spec.start_timeout) + ") is over",
         "start it in a job with more time");
  if (const auto connect = connect_timeout(spec); connect && *connect >= spec.start_timeout)
    warn("ssh gives up a host after " + format_duration(*connect) +
             " (ConnectTimeout), and --start-timeout (" + format_duration(spec.start_timeout) +
             ") ends the start before, without the reason",
         "shorten ConnectTimeout");
  return found;
}

}  // namespace ddp::launcher
