#include "launcher/report/report_json.h"

#include <csignal>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::launcher;
using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;

namespace {

JobFacts facts() {
  JobFacts facts;
  facts.goodput = 0.9612;
  facts.step = 99;
  facts.loss = 2.5;
  facts.version = "0.1.0";
  facts.job_id = "j1";
  facts.job_dir = "/jobs/j1";
  facts.nodes = {"gpu01", "gpu02"};
  facts.world_size = 8;
  facts.attempts = 2;
  facts.began = 100s;
  facts.ended = 112'345ms;
  facts.ended_at = std::chrono::system_clock::time_point(1'700'000'012'345ms);
  return facts;
}

Failure crashed() {
  Failure failure;
  failure.kind = Failure::Kind::kSignaled;
  failure.host = "gpu02";
  failure.rank = 5;
  failure.local_rank = 1;
  failure.pid = 4005;
  failure.signal = SIGSEGV;
  failure.core_dumped = true;
  failure.happened = {112s - 150us, 112s + 150us};
  failure.attempt_began = 101s;
  failure.ran = 10'900ms;
  failure.attempt = 1;
  failure.last_stderr = {"good", "bad \xff\xfe byte"};
  failure.stderr_path = "/jobs/j1/attempt_1/rank_00005.stderr";
  return failure;
}

Json made(const JobEnd& end) {
  return Json::parse(report_json(end, make_exit_report(end), facts()));
}

std::vector<std::string> keys_of(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items())
    keys.push_back(key);
  return keys;
}

}  // namespace

TEST_CASE("the report lists ranks that exited 0 before the cause or the user's stop") {
  JobEnd end;
  end.early = {{2, "gpu01", {109'700ms - 150us, 109'700ms + 150us}, 101s}, {3, "gpu02", {112s, 112s}, 101s}};
  CHECK(made(end)["exited_early"].empty());  // a success
  end.stop_signal = SIGINT;
  CHECK(made(end)["exited_early"].size() == 2);
  end.stop_signal = 0;
  end.failures = {crashed()};  // in the same moment as the exit of rank 3
  CHECK(made(end)["exited_early"] == Json::parse(R"([{"rank": 2, "host": "gpu01", "since_start_s": 8.7,
                                                      "margin_s": 0.00015}])"));
}

TEST_CASE("long texts of very many failures do not make the report long, and the cause keeps its own") {
  JobEnd end;
  const std::string trace(32u << 10, 't');
  for (int rank = 0; rank < 200; ++rank) {
    Failure failure = crashed();
    failure.rank = rank;
    failure.happened = {failure.happened.earliest + rank * 1s, failure.happened.latest + rank * 1s};
    failure.evidence.exception = WorkerException{"E", "m", "f", trace, {}};
    end.failures.push_back(std::move(failure));
  }
  const std::string text = report_json(end, make_exit_report(end), facts());
  CHECK(text.size() < 5u << 20);  // of 6.5 MB
  const Json report = Json::parse(text);
  CHECK(report["root_cause"]["exception"]["traceback"] == trace);
  CHECK(report["other_failures"].size() == 199);
  CHECK(report["other_failures"][198]["exception"]["traceback"] == trace.substr(0, 1'000));
  CHECK(report["other_failures"][198]["exception"]["message"] == "m");
}

TEST_CASE("the report of a failed job") {
  JobEnd end;
  end.failures = {crashed()};
  Failure stopped = crashed();
  stopped.rank = 0;
  stopped.signal = SIGTERM;
  stopped.stopped_by_us = true;
  end.failures.push_back(stopped);
  end.earlier = {stopped};  // the cause of an attempt has its last lines in any case
  end.failures[0].evidence = read_evidence(
      {1, 5, "killed for memory", "NVRM: Xid 1\nNVRM: Xid 2",
       R"({"message": {"message": "ValueError: boom", "extraInfo": {"timestamp": "1700000011"}}})"});
  const Json report = made(end);
  CHECK(report["format"] == 1);
  CHECK(report["outcome"] == "failed");
  CHECK(report["exit_code"] == 139);
  CHECK(report["why"] == "rank 5 on gpu02 killed by SIGSEGV (core dumped), out of memory");
  CHECK(report["started"] == "2023-11-14T22:13:20.000Z");
  CHECK(report["ended"] == "2023-11-14T22:13:32.345Z");
  CHECK(report["duration_s"] == 12.345);
  CHECK(report["goodput"] == 0.961);
  CHECK(report["step"] == 99);
  CHECK(report["step_s"].is_null());
  CHECK(report["loss"] == 2.5);
  CHECK(report["job"] == Json::parse(R"({"id": "j1", "directory": "/jobs/j1", "nodes": ["gpu01", "gpu02"],
                                         "world_size": 8, "attempts": 2})"));
  const Json& cause = report["root_cause"];
  CHECK(cause["what"] == "signaled");
  CHECK(cause["signal"] == "SIGSEGV");
  CHECK(cause["exit_code"].is_null());
  CHECK(cause["time"] == "2023-11-14T22:13:32.000Z");
  CHECK(cause["since_start_s"] == 11.0);
  CHECK(cause["margin_s"] == 0.00015);
  CHECK(cause["ran_s"] == 10.9);
  CHECK(cause["start_attempt"] == 0);
  CHECK(cause["out_of_memory"] == "killed for memory");
  CHECK(cause["xid"] == Json::parse(R"(["NVRM: Xid 1", "NVRM: Xid 2"])"));
  CHECK(cause["exception"]["type"] == "ValueError");
  CHECK(cause["exception"]["time"] == "2023-11-14T22:13:31.000Z");
  CHECK(cause["stderr_tail"] == Json::parse("[\"good\", \"bad \xef\xbf\xbd\xef\xbf\xbd byte\"]"));
  CHECK(report["other_failures"].size() == 1);
  CHECK(report["other_failures"][0]["stopped_by_ddplaunch"] == true);
  CHECK(report["other_failures"][0]["stderr_tail"].empty());
  REQUIRE(report["earlier_attempts"].size() == 1);
  CHECK(report["earlier_attempts"][0]["stderr_tail"].size() == 2);
}

TEST_CASE("a brief report has the end and its cause, and is short whatever failed") {
  JobEnd end;
  end.failures = {crashed()};
  end.failures[0].error.text = std::string(100'000, 'x');
  end.failures[0].last_stderr = std::vector<std::string>(20, std::string(10'000, 'x'));
  for (int rank = 0; rank < 100; ++rank) {
    end.failures.push_back(crashed());
    end.earlier.push_back(crashed());
  }
  JobFacts warned = facts();
  warned.warnings = {"no space left"};
  const std::string text = brief_report_json(end, make_exit_report(end), warned);
  CHECK(text.size() < 8'000);
  const Json brief = Json::parse(text), whole = made(end);
  CHECK(keys_of(brief) == keys_of(whole));
  for (const char* key : {"exit_code", "why", "outcome", "job", "duration_s"})
    CHECK(brief[key] == whole[key]);
  CHECK(brief["root_cause"]["rank"] == 5);
  CHECK(brief["other_failures"].empty());
  CHECK(brief["earlier_attempts"].empty());
  CHECK(brief["warnings"] == Json{"no space left"});
}

TEST_CASE("every end of a job has the same keys") {
  JobEnd failed;
  failed.failures = {crashed()};
  JobEnd stopped;
  stopped.stop_signal = SIGINT;
  JobEnd refused;
  refused.master = Error{ErrorCode::kSystem, "create /x: No space left on device", ENOSPC};
  JobEnd unreachable;
  Failure node;
  node.kind = Failure::Kind::kNode;
  node.host = "gpu03";
  node.error = {ErrorCode::kUnreachable, "Connection refused", ECONNREFUSED};
  unreachable.failures = {node};
  const auto keys = keys_of(made({}));
  for (const JobEnd& end : {failed, stopped, refused, unreachable})
    CHECK(keys_of(made(end)) == keys);
  CHECK(keys_of(made(failed)["root_cause"]) == keys_of(made(unreachable)["root_cause"]));

  CHECK(made({})["outcome"] == "success");
  CHECK(made({})["why"].is_null());
  CHECK(made({})["root_cause"].is_null());
  CHECK(made(stopped)["outcome"] == "stopped");
  CHECK(made(stopped)["stop_signal"] == "SIGINT");
  CHECK(made(refused)["outcome"] == "not_started");
  CHECK(made(refused)["error"]["kind"] == "System");
  CHECK(made(refused)["error"]["errno"] == ENOSPC);
  refused.master->sys = 0;
  CHECK(made(refused)["error"]["errno"].is_null());
  JobFacts no_attempt = facts();
  no_attempt.world_size = 0;
  CHECK(Json::parse(report_json(refused, make_exit_report(refused), no_attempt))["job"]["world_size"]
            .is_null());
  CHECK(made(failed)["outcome"] == "failed");
  failed.failures[0].attempt = 0;
  CHECK(made(failed)["outcome"] == "failed");
  CHECK(made(unreachable)["outcome"] == "not_started");
  unreachable.failures[0].attempt = 1;
  CHECK(made(unreachable)["outcome"] == "failed");
  CHECK(made(unreachable)["root_cause"]["rank"].is_null());
  CHECK(made(unreachable)["root_cause"]["error"]["kind"] == "Unreachable");
}

TEST_CASE("docs/users/report.md names every key") {
  std::ifstream file(DDP_SOURCE_DIR "/docs/users/report.md");
  REQUIRE(file);
  const std::string document{std::istreambuf_iterator<char>(file), {}};
  JobEnd end;
  end.failures = {crashed()};
  end.failures[0].evidence.exception = WorkerException{"E", "m", "f", "t", 1};
  const Json report = made(end);
  std::vector<std::string> keys = keys_of(report);
  for (const Json& part : {report["job"], report["root_cause"], report["root_cause"]["exception"]}) {
    const auto more = keys_of(part);
    keys.insert(keys.end(), more.begin(), more.end());
  }
  for (const std::string& key : keys) {
    INFO(key);
    CHECK(document.find("`" + key + "`") != std::string::npos);
  }
}

TEST_CASE("a large job's report keeps the last lines of a few ranks") {
  JobEnd end;
  for (int rank = 0; rank < 100; ++rank) {
    end.failures.push_back(crashed());
    end.failures.back().rank = rank;
  }
  std::size_t tails = 0;
  const Json report = made(end);
  CHECK(report["root_cause"]["stderr_tail"].size() == 2);
  for (const Json& failure : report["other_failures"])
    tails += failure["stderr_tail"].empty() ? 0 : 1;
  CHECK(tails == 15);
}

TEST_CASE("times are in UTC") {
  CHECK(utc_text({}) == "1970-01-01T00:00:00.000Z");
  CHECK(utc_text(std::chrono::system_clock::time_point(1'709'164'799'999ms)) == "2024-02-28T23:59:59.999Z");
  CHECK(utc_text(std::chrono::system_clock::time_point(1'709'164'800'000ms)) == "2024-02-29T00:00:00.000Z");
  CHECK(utc_text(std::chrono::system_clock::time_point(-1ms)) == "1969-12-31T23:59:59.999Z");
}
