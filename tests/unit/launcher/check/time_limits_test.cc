#include "launcher/check/check_diagnosis.h"

#include <chrono>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

JobSpec two_hosts() {
  JobSpec spec;
  spec.hosts.resize(2);
  spec.command = {WorkerCommand::Kind::kPython, {"train.py"}, ""};
  return spec;
}

std::string names_of(const std::vector<TimeLimit>& limits) {
  std::string text;
  for (const TimeLimit& limit : limits)
    text += limit.owner + ' ' + limit.name + ": " + format_duration(limit.after) +
            (limit.is_assumed ? " (assumed)\n" : "\n");
  return text;
}

std::vector<std::string> texts_of(const JobSpec& spec, const SchedulerLimits& scheduler = {}) {
  std::vector<std::string> texts;
  for (const CheckDiagnostic& diagnostic : time_limit_diagnostics(spec, scheduler)) {
    CHECK(diagnostic.level == CheckDiagnostic::Severity::kWarning);
    CHECK(diagnostic.item == "timeouts");
    texts.push_back(diagnostic.text + "; " + diagnostic.advice);
  }
  return texts;
}

TEST_CASE("the limits of a job are in order, and those without an end are last") {
  CHECK(names_of(time_limits(two_hosts(), {})) ==
        "ddplaunch --stop-grace, after a failure: 15 s\n"
        "ddplaunch --node-timeout, and 2 s: 17 s\n"
        "ddplaunch --stop-grace, after your signal: 25 s\n"
        "NCCL NCCL_IB_TIMEOUT × NCCL_IB_RETRY_CNT: 30.1 s (assumed)\n"
        "ddplaunch --master-timeout: 35 s\n"
        "ddplaunch --start-timeout: 2 min\n"
        "PyTorch TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 8 min (assumed)\n"
        "ddplaunch --report-stalls: 10 min\n"
        "PyTorch init_process_group(timeout=), NCCL: 10 min (assumed)\n"
        "PyTorch init_process_group(timeout=), Gloo: 30 min (assumed)\n"
        "ddplaunch --hang-timeout: 0 ms\n");
  JobSpec alone = two_hosts();
  alone.launcher = LauncherKind::kLocal;
  alone.command.kind = WorkerCommand::Kind::kTrain;
  alone.hang_timeout = 1min;
  CHECK(names_of(time_limits(alone, {})) ==
        "ddplaunch --stop-grace, after a failure: 15 s\n"
        "ddplaunch --stop-grace, after your signal: 25 s\n"
        "ddplaunch --hang-timeout: 60 s\n"
        "ddplaunch --start-timeout: 2 min\n"
        "ddplaunch --report-stalls: 10 min\n");
}

TEST_CASE("variables of the workers and options of ssh are limits") {
  JobSpec spec = two_hosts();
  spec.env = {{"NCCL_IB_TIMEOUT", "22"}, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "soon"}};
  spec.explicit_env = {{"NCCL_IB_RETRY_CNT", "1"}};
  spec.ssh_command = {"ssh", "-o", "ConnectTimeout=5"};
  const std::string names = names_of(time_limits(spec, {}));
  CHECK(names.starts_with("ssh ConnectTimeout: 5 s\n"));
  CHECK(names.find("NCCL NCCL_IB_TIMEOUT × NCCL_IB_RETRY_CNT: 17.2 s\n") != std::string::npos);
  CHECK(names.find("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 8 min") != std::string::npos);
  // The largest values, and values beyond them.
  spec.explicit_env = {{"NCCL_IB_TIMEOUT", "31"}, {"NCCL_IB_RETRY_CNT", "99999999999999999999"}};
  spec.ssh_command = {"ssh", "-oconnecttimeout=7"};
  CHECK(names_of(time_limits(spec, {})).starts_with("ssh ConnectTimeout: 7 s\n"));
  CHECK(names_of(time_limits(spec, {})).find(": 61572.7 s\n") != std::string::npos);
}

TEST_CASE("a usual job has no limit that undercuts another") {
  CHECK(texts_of(two_hosts()).empty());
  JobSpec hang = two_hosts();
  hang.hang_timeout = 10min;
  CHECK(texts_of(hang, scheduler_limits({{"SLURM_JOB_ID", "7"}}, 0ms)).empty());
}

TEST_CASE("a limit that undercuts another is a warning") {
  JobSpec spec = two_hosts();
  spec.master_timeout = 30s;
  CHECK(texts_of(spec) ==
        std::vector<std::string>{
            "nodes stop their workers after 30 s without the master (--master-timeout), so an "
            "outage shorter than --node-timeout (15 s) may end the job; omit --master-timeout, "
            "or give at least 35 s"});
  spec.launcher = LauncherKind::kLocal;  // its only node is here
  CHECK(texts_of(spec).empty());

  spec = two_hosts();
  spec.explicit_env = {{"NCCL_IB_TIMEOUT", "18"}, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "20"}};
  CHECK(
      texts_of(spec) ==
      std::vector<std::string>{
          "an InfiniBand transfer fails after 7.5 s (NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT), before the end of "
          "an "
          "outage that --node-timeout (15 s) allows; raise them, or shorten --node-timeout",
          "PyTorch ends a process whose watchdog waits for 20 s (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC), before a "
          "node's outage is over (--master-timeout 35 s); give at least 35 seconds"});

  spec = two_hosts();
  spec.hang_timeout = 15min;
  CHECK(texts_of(spec) ==
        std::vector<std::string>{
            "PyTorch ends a collective of NCCL after 10 min unless the script sets another time, "
            "before --hang-timeout (15 min) finds the hang and collects its stacks; shorten "
            "--hang-timeout, or set init_process_group(timeout=…) to more"});
  spec.command.kind = WorkerCommand::Kind::kTrain;
  CHECK(texts_of(spec).empty());

  spec = two_hosts();
  spec.ssh_command = {"ssh", "-o", "ConnectTimeout=120"};
  CHECK(texts_of(spec).size() == 1);
}

TEST_CASE("the limits of a scheduler are those that its variables tell") {
  CHECK(scheduler_limits({}, 0ms).name.empty());
  const auto slurm =
      scheduler_limits({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_END_TIME", "1795230119"}}, 1'795'230'000'000ms);
  CHECK(slurm.name == "Slurm");
  CHECK(slurm.left == 119s);
  CHECK_FALSE(scheduler_limits({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_END_TIME", "1"}}, 2'000ms).left);
  CHECK_FALSE(scheduler_limits({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_END_TIME", "never"}}, 0ms).left);
  JobSpec spec = two_hosts();
  CHECK(texts_of(spec, slurm) ==
        std::vector<std::string>{
            "Slurm ends this job in 119 s, before --start-timeout (2 min) is over; start it in a "
            "job with more time"});
  CHECK(names_of(time_limits(spec, slurm)).find("Slurm KillWait: 30 s (assumed)\n") != std::string::npos);
  spec.stop_grace = 30s;
  CHECK(texts_of(spec, scheduler_limits({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}, 0ms)) ==
        std::vector<std::string>{
            "Kubernetes kills all of a job 30 s after its SIGTERM unless it is configured otherwise, "
            "before --stop-grace (30 s) is over; the report is lost then; shorten --stop-grace, or "
            "raise terminationGracePeriodSeconds"});
}

TEST_CASE("a check prints the limits, and one without an end is null as JSON") {
  CheckResult result;
  result.time_limits = {{"NCCL", "NCCL_IB_TIMEOUT", 30s, "a transfer fails", true},
                        {"ddplaunch", "--hang-timeout", 0s, "a hang ends the job"}};
  CHECK(check_text(two_hosts(), result, {}, false)
            .ends_with("time-outs:\n"
                       "after  program    limit            effect\n"
                       "30 s   NCCL       NCCL_IB_TIMEOUT  a transfer fails (assumed)\n"
                       "never  ddplaunch  --hang-timeout   a hang ends the job\n"
                       "\n"
                       "no problems found\n"));
  const auto limits = nlohmann::json::parse(check_json(two_hosts(), result, {}))["timeouts"];
  REQUIRE(limits.size() == 2);
  CHECK(limits[0]["seconds"] == 30);
  CHECK(limits[0]["assumed"] == true);
  CHECK(limits[1]["seconds"].is_null());
}

}  // namespace
}  // namespace ddp::launcher
