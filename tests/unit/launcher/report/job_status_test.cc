#include "launcher/report/job_status.h"

#include <chrono>
#include <string>

#include "base/program.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

JobStatus running_job() {
  JobStatus status;
  status.job = "run\"7\\\n";
  status.state = "running";
  status.world_size = 4;
  status.attempt = 1;
  status.output_bytes = 18'446'744'073'709'551'615u;
  status.nodes = {{"gpu01", "running", 0, 2, 1, 1, {{{41, 2.5, "", 0.25}}, {{40, {}, ""}}}, 1500ms},
                  {"gpu02", "running", 2, 2, 2, 0, {{}, {{42, {}, ""}}}, 0ms},
                  {"gpu03", "lost", 0, 0, 0, 0, {}, {}}};
  status.progress.step = 40;
  status.progress.last_step = 42;
  status.progress.step_seconds = 0.25;
  status.progress.spent = {1s, 1500ms, 0s, 0s, 2s};
  status.progress.failures = {1, 0, 0, 0};
  status.progress.nodes_lost = 1;
  status.progress.loss = 2.5;
  status.progress.durations = {{0, 1, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 2}, 900.5};
  status.progress.xids = {{"gpu03", {{79, 2}}}};
  return status;
}

bool has_line(const std::string& text, const std::string& line) {
  return text.find('\n' + line + '\n') != std::string::npos;
}

TEST_CASE("metrics of a job with steps") {
  const std::string text = metrics_text(running_job());
  CHECK(has_line(text,
                 "ddplaunch_job_info{job=\"run\\\"7\\\\\\n\",version=\"" + std::string(version()) + "\"} 1"));
  CHECK(has_line(text, "ddplaunch_nodes{state=\"lost\"} 1"));
  CHECK(has_line(text, "ddplaunch_nodes{state=\"running\"} 2"));
  CHECK(has_line(text, "ddplaunch_ranks{state=\"running\"} 3"));
  CHECK(has_line(text, "ddplaunch_ranks{state=\"ended\"} 1"));
  CHECK(has_line(text, "ddplaunch_ranks{state=\"lost\"} 0"));
  CHECK(has_line(text, "ddplaunch_attempts_total 2"));
  CHECK(has_line(text, "ddplaunch_failures_total{cause=\"rank\"} 1"));
  CHECK(has_line(text, "ddplaunch_nodes_lost_total 1"));
  CHECK(has_line(text, "ddplaunch_time_seconds{phase=\"start\"} 1"));
  CHECK(has_line(text, "ddplaunch_time_seconds{phase=\"train\"} 1.5"));
  CHECK(has_line(text, "ddplaunch_output_bytes_total 18446744073709551615"));
  CHECK(has_line(text, "ddplaunch_step 40"));
  CHECK(has_line(text, "ddplaunch_step_lag{node=\"gpu01\"} 2"));
  CHECK(has_line(text, "ddplaunch_step_lag{node=\"gpu02\"} 0"));
  CHECK(has_line(text, "ddplaunch_last_step_seconds 0.25"));
  CHECK(has_line(text, "ddplaunch_loss 2.5"));
  CHECK(has_line(text, "ddplaunch_heartbeat_delay_seconds{node=\"gpu01\"} 1.5"));
  CHECK(has_line(text, "ddplaunch_heartbeat_delay_seconds{node=\"gpu02\"} 0"));
  CHECK(has_line(text, "ddplaunch_xid_errors_total{node=\"gpu03\",xid=\"79\"} 2"));
  CHECK(has_line(text, "ddplaunch_step_duration_seconds_bucket{le=\"0.001\"} 0"));
  CHECK(has_line(text, "ddplaunch_step_duration_seconds_bucket{le=\"0.1\"} 5"));
  CHECK(has_line(text, "ddplaunch_step_duration_seconds_bucket{le=\"300\"} 5"));
  CHECK(has_line(text, "ddplaunch_step_duration_seconds_bucket{le=\"+Inf\"} 7"));
  CHECK(has_line(text, "ddplaunch_step_duration_seconds_sum 900.5"));
  CHECK(has_line(text, "ddplaunch_step_duration_seconds_count 7"));
  CHECK(text.find("_seconds{node=\"gpu03\"}") == std::string::npos);
}

TEST_CASE("ranks are counted by their own state, not by that of their node") {
  JobStatus status = running_job();
  status.nodes[1] = {"gpu02", "lost", 2, 2, 0, 1, {}, {}};
  const std::string lost = metrics_text(status);
  CHECK(has_line(lost, "ddplaunch_ranks{state=\"running\"} 1"));
  CHECK(has_line(lost, "ddplaunch_ranks{state=\"ended\"} 2"));
  CHECK(has_line(lost, "ddplaunch_ranks{state=\"lost\"} 1"));
  status.nodes[1] = {"gpu02", "running", 2, 2, 1, 0, {}, {}};  // its second worker is being started
  const std::string starting = metrics_text(status);
  CHECK(has_line(starting, "ddplaunch_ranks{state=\"starting\"} 1"));
  CHECK(has_line(starting, "ddplaunch_ranks{state=\"running\"} 2"));
}

TEST_CASE("the status of a job is one line") {
  JobStatus status = running_job();
  status.warnings = {"no space left"};
  CHECK(
      status_json(status) ==
      R"({"job":"run\"7\\\n","state":"running","why":null,"age_s":0.0,"world_size":4,"attempt":1,"restarts":0,)"
      R"("max_restarts":0,"output_bytes":18446744073709551615,"directory":"","step":40,"step_s":0.25,"step_age_s":null,)"
      R"("loss":2.5,"goodput":0.333,"warnings":["no space left"],"nodes":[)"
      R"({"node":"gpu01","state":"running","first_rank":0,"ranks":2,"running":1,"step":40,"steps":[41,40],)"
      R"("losses":[2.5,null],"phases":["",""],"step_seconds":[0.25,null]},)"
      R"({"node":"gpu02","state":"running","first_rank":2,"ranks":2,"running":2,"step":42,"steps":[null,42],)"
      R"("losses":[null,null],"phases":["",""],"step_seconds":[null,null]},)"
      R"({"node":"gpu03","state":"lost","first_rank":null,"ranks":0,"running":0,"step":null,"steps":[],)"
      R"("losses":[],"phases":[],"step_seconds":[]}]})"
      "\n");
  status.world_size = 0;  // not yet known
  CHECK(status_json(status).find("\"world_size\":null,") != std::string::npos);
}

TEST_CASE("a job without steps has no metrics about them") {
  JobStatus status = running_job();
  status.progress.step.reset();
  CHECK(metrics_text(status).find("ddplaunch_step") == std::string::npos);
}

}  // namespace
}  // namespace ddp::launcher
