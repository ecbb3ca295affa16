// Reports of the trainer's ranks → diagnostics of the check.
#include "launcher/check/check_diagnosis.h"

#include "base/text.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using Words = std::vector<std::string>;

CheckResult two_nodes() {
  CheckResult result;
  result.nodes.resize(2);
  rendezvous::RankPlan plan;
  plan.nodes = {{0, 0, 2, "slots=2"}, {1, 2, 2, "slots=2"}};
  plan.world_size = 4;
  result.plan = plan;
  return result;
}

DeepRun health(const std::string& diagnostics, bool passed, int exit_code) {
  return {DeepTest::kHealth, exit_code,
          "# a table\n{\"schema\":\"ddp-train-record/1\",\"kind\":\"health\",\"findings\":[" + diagnostics +
              "],\"passed\":" + (passed ? "true" : "false") + "}\n# more\n",
          "train: rank 1 …\nddplaunch: exit 1: rank 2 failed\n"};
}

TEST_CASE("A diagnostic of a rank is reported for its host") {
  const auto found = deep_diagnostics(
      two_nodes(), health("{\"level\":\"error\",\"rank\":2,\"host\":\"x\",\"device\":\"CPU\","
                          "\"item\":\"memory\",\"text\":\"3 wrong words\"},"
                          "{\"level\":\"warning\",\"rank\":1,\"host\":\"x\",\"device\":\"CPU\","
                          "\"item\":\"slow\",\"text\":\"slow\"}",
                          false, 1));
  REQUIRE(found.size() == 2);
  CHECK(found[0] == CheckDiagnostic{CheckDiagnostic::Severity::kError,
                                    "health",
                                    {1},
                                    "rank 2, CPU: 3 wrong words",
                                    "exclude the host with --exclude, and have its memory tested"});
  CHECK(found[1].level == CheckDiagnostic::Severity::kWarning);
  CHECK(found[1].nodes == std::vector<std::size_t>{0});
}

TEST_CASE("Each kind of diagnostic of a rank has an advice, unless its text has it") {
  for (const char* item :
       {"gemm", "gradient", "memory", "ecc", "xid", "pair", "sum", "slow", "pause", "link", "throttle"}) {
    const auto found = deep_diagnostics(
        two_nodes(), health(std::string("{\"level\":\"warning\",\"rank\":2,\"host\":\"x\",\"device\":"
                                        "\"CPU\",\"text\":\"x\",\"item\":\"") +
                                item + "\"}",
                            true, 0));
    CAPTURE(item);
    REQUIRE(found.size() == 1);
    CHECK(!found[0].advice.empty());
  }
}

TEST_CASE("A diagnostic without a rank is one of the job") {
  const auto found = deep_diagnostics(
      two_nodes(), health("{\"level\":\"error\",\"item\":\"sum\",\"text\":\"sums are wrong\"}", false, 1));
  REQUIRE(found.size() == 1);
  CHECK(found[0] == CheckDiagnostic{CheckDiagnostic::Severity::kError, "health", {}, "sums are wrong", ""});
}

TEST_CASE("A passed test has no diagnostics, a test that reported nothing or failed otherwise has one") {
  CHECK(deep_diagnostics(two_nodes(), health("", true, 0)).empty());
  CHECK(deep_diagnostics(two_nodes(), health("", true, 137)).front().text ==
        "train health ended with exit code 137: ddplaunch: exit 1: rank 2 failed; "
        "train: rank 1 …");
  DeepRun silent = health("", true, 127);
  silent.output = "{\"some\":\"json\"}\n{\n";
  CHECK_FALSE(deep_has_result(silent));
  const auto found = deep_diagnostics(two_nodes(), silent);
  REQUIRE(found.size() == 1);
  CHECK(found[0].text ==
        "train health gave no result and ended with exit code 127: ddplaunch: exit 1: rank 2 failed; "
        "train: rank 1 …");
  silent.errors =
      "train: NCCL failed\nddplaunch: the job failed\n  root cause: x\n    | train: NCCL failed\nddplaunch: "
      "exit 1: x\n";
  CHECK(deep_diagnostics(two_nodes(), silent)[0].text ==
        "train health gave no result and ended with exit code 127: ddplaunch: exit 1: x; train: NCCL failed");
}

TEST_CASE("The table of a test is what the trainer printed beside its record") {
  CHECK(deep_table(health("", true, 0)) == "# a table\n# more\n");
  CHECK(deep_table({DeepTest::kCollectives, 0, "{}\n\nno end", ""}) == "\nno end\n");
  CHECK(deep_table({}).empty());
}

TEST_CASE("A slow all-reduce is reported in the trainer's words") {
  const DeepRun run{
      DeepTest::kCollectives, 1,
      "{\"schema\":\"ddp-train-record/1\",\"kind\":\"bench\",\"passed\":false,\"fault\":\"too slow\"}\n", ""};
  const auto found = deep_diagnostics(two_nodes(), run);
  REQUIRE(found.size() == 1);
  CHECK(found[0].item == "collectives");
  CHECK(found[0].text == "too slow");
}

TEST_CASE("The job of a deep check has the hosts of the check, and no files of the user") {
  JobSpec spec;
  spec.hosts.resize(3);
  spec.max_nodes = 1;
  spec.spares = 1;
  spec.max_restarts = 3;
  spec.report_path = "/r.json";
  spec.stdin_to_rank0 = true;
  spec.command.argv = {"python", "x"};
  spec.host_history = "/home/ann/.local/state/ddplaunch/hosts";
  const JobSpec job = deep_job(spec, two_nodes(), DeepTest::kHealth, "/tmp/job", "");
  CHECK(job.hosts.size() == 1);
  CHECK((job.spares == 0 && job.max_restarts == 0 && job.report_path.empty() && !job.stdin_to_rank0));
  CHECK(job.host_history.empty());  // a test of the hosts is no failed job
  CHECK(job.command.kind == WorkerCommand::Kind::kTrain);
  CHECK(job.command.argv == Words{"health", "--json", "/dev/stdout"});
  spec.command = {WorkerCommand::Kind::kTrain, {"health", "--threads", "2"}, ""};
  CHECK(deep_job(spec, two_nodes(), DeepTest::kHealth, "/tmp/job", "").command.argv ==
        Words{"health", "--threads", "2", "--json", "/dev/stdout"});
  const Words bench = deep_job(spec, two_nodes(), DeepTest::kCollectives, "/tmp/job", "9.5").command.argv;
  CHECK(bench.front() == "bench");
  CHECK((bench[bench.size() - 2] == "--min-busbw" && bench.back() == "9.5"));
  // The device that other words of train ask for is that of each test.
  for (const Words& words :
       {Words{"--device", "cpu"}, Words{"health", "--device", "cpu"}, Words{"--epochs=1", "--device=cpu"}}) {
    spec.command.argv = words;
    const Words asked = deep_job(spec, two_nodes(), DeepTest::kCollectives, "/tmp/job", "").command.argv;
    CHECK(join(asked, " ").find("-e 16M ") != std::string::npos);
    CHECK((join(asked, " ") + " ").find(words.back().starts_with("--") ? "--device=cpu " : "--device cpu ") !=
          std::string::npos);
  }
}

TEST_CASE("Between GPUs a deep check sends messages up to 1 GiB") {
  CheckResult result = two_nodes();
  JobSpec two_hosts;
  two_hosts.hosts.resize(2);
  const auto most = [&] {
    const Words words = deep_job(two_hosts, result, DeepTest::kCollectives, "/tmp/job", "").command.argv;
    return *(std::ranges::find(words, "-e") + 1);
  };
  CHECK(most() == "16M");
  result.nodes[1].up = true;
  result.nodes[1].hello.gpus = 8;
  CHECK(most() == "1G");
}

TEST_CASE("A deep check says what was tested on what") {
  DeepRun run;
  run.test = DeepTest::kCollectives;
  CHECK(deep_tested(run).empty());
  run.output = R"({"schema":"ddp-train-record/1","passed":true,"tested":"tested: 8 × H100, NCCL 2.28.9"})";
  CHECK(deep_tested(run) == "train bench: 8 × H100, NCCL 2.28.9");
  CheckResult result = two_nodes();
  result.tested = {deep_tested(run)};
  JobSpec spec;
  spec.hosts.resize(2);
  CHECK(check_text(spec, result, {}, false).ends_with("\ntested: train bench: 8 × H100, NCCL 2.28.9\n"));
}

}  // namespace
}  // namespace ddp::launcher
