#include "launcher/report/job_status.h"

#include <chrono>
#include <string>

#include <nlohmann/json.hpp>

#include "base/program.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

JobStatus running_job() {
  JobStatus status;
  status.job = "run\"7\\\n";
  status.run = "run7.1";
  status.state = "running";
  status.started = std::chrono::system_clock::time_point(1'700'000'000'500ms);
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
  status.progress.durations = {{{11, 1}, {50, 4}, {146, 2}}, 900.5};
  status.progress.xids = {{"gpu03", {{79, 2}}}};
  return status;
}

/// Returns whether the metrics have this line, whose labels follow those of each series.
bool has_line(const std::string& text, std::string line) {
  const std::size_t labels = line.find('{');
  const std::string common = R"({job="run\"7\\\n",run="run7.1")";
  if (labels == std::string::npos)
    line.insert(line.rfind(' '), common + '}');
  else
    line.replace(labels, 1, common + ',');
  return text.find('\n' + line + '\n') != std::string::npos;
}

TEST_CASE("metrics of a job with steps") {
  const std::string text = metrics_text(running_job());
  CHECK(has_line(text, "ddplaunch_job_info{version=\"" + std::string(version()) + "\"} 1"));
  CHECK(has_line(text, "ddplaunch_job_state{state=\"running\"} 1"));
  CHECK(has_line(text, "ddplaunch_job_state{state=\"stalled\"} 0"));
  CHECK(has_line(text, "ddplaunch_start_time_seconds 1700000000.5"));
  CHECK(text.find("ddplaunch_end_time_seconds") == std::string::npos);
  CHECK(text.find("ddplaunch_exit_code") == std::string::npos);
  CHECK(text.find("ddplaunch_node_cpus") == std::string::npos);
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
  CHECK(has_line(text, "ddplaunch_step_duration_seconds_bucket{le=\"0.0912\"} 1"));
  CHECK(has_line(text, "ddplaunch_step_duration_seconds_bucket{le=\"631\"} 5"));
  CHECK(has_line(text, "ddplaunch_step_duration_seconds_bucket{le=\"+Inf\"} 7"));
  CHECK(has_line(text, "ddplaunch_step_duration_seconds_sum 900.5"));
  CHECK(has_line(text, "ddplaunch_step_duration_seconds_count 7"));
  CHECK(text.find("_seconds{job=\"run7\",run=\"run7.1\",node=\"gpu03\"}") == std::string::npos);
}

TEST_CASE("metrics of what nodes and GPUs use, and of the end") {
  JobStatus status = running_job();
  rendezvous::NodeSample usage;
  usage.cpus = 64;
  usage.cpu_milli = 2500;
  usage.job_cpu_milli = 1500;
  usage.memory = 512;
  usage.job_memory = 12;
  usage.disk_written = 7;
  usage.gpus = {{1, 43, 12, 80, 412'500, 60, 1980, 0x40, 79}};
  status.nodes[1].usage = usage;
  status.usage.nodes = 1;
  status.usage.gpus = 1;
  status.state = "ended";
  status.end = {std::chrono::system_clock::time_point(1'700'000'060s), 3};
  const std::string text = metrics_text(status);
  CHECK(has_line(text, "ddplaunch_job_state{state=\"ended\"} 1"));
  CHECK(has_line(text, "ddplaunch_job_state{state=\"running\"} 0"));
  CHECK(has_line(text, "ddplaunch_end_time_seconds 1700000060"));
  CHECK(has_line(text, "ddplaunch_exit_code 3"));
  CHECK(has_line(text, "ddplaunch_node_cpus{node=\"gpu02\"} 64"));
  CHECK(has_line(text, "ddplaunch_node_cpus_busy{node=\"gpu02\"} 2.5"));
  CHECK(has_line(text, "ddplaunch_job_cpus_busy{node=\"gpu02\"} 1.5"));
  CHECK(has_line(text, "ddplaunch_node_memory_bytes{node=\"gpu02\"} 512"));
  CHECK(has_line(text, "ddplaunch_job_memory_used_bytes{node=\"gpu02\"} 12"));
  CHECK(has_line(text, "ddplaunch_node_disk_bytes_per_second{node=\"gpu02\",direction=\"written\"} 7"));
  CHECK(has_line(text, "ddplaunch_node_network_bytes_per_second{node=\"gpu02\",direction=\"in\"} 0"));
  CHECK(has_line(text, "ddplaunch_gpu_busy_ratio{node=\"gpu02\",gpu=\"1\"} 0.42999999999999999"));
  CHECK(has_line(text, "ddplaunch_gpu_power_watts{node=\"gpu02\",gpu=\"1\"} 412.5"));
  CHECK(has_line(text, "ddplaunch_gpu_clock_hertz{node=\"gpu02\",gpu=\"1\"} 1980000000"));
  CHECK(has_line(text, "ddplaunch_gpu_throttled{node=\"gpu02\",gpu=\"1\"} 1"));
  CHECK(has_line(text, "ddplaunch_gpu_last_xid{node=\"gpu02\",gpu=\"1\"} 79"));
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
  rendezvous::NodeSample usage;
  usage.cpus = 64;
  usage.cpu_milli = 2500;
  usage.job_cpu_milli = 1500;
  usage.gpus = {{1, 43, 12, 80, 412'000, 60, 1980, 0x40, 0}};
  status.nodes[1].usage = usage;
  status.usage.nodes = 1;
  status.usage.cpus = 48;
  status.usage.cpu = 1.5;
  Failure failure;
  failure.host = "gpu02";
  failure.rank = 3;
  failure.status = 3;
  failure.last_stderr = {"Traceback (most recent call last):", "ValueError: boom"};
  status.failure = failure;
  CHECK(
      status_json(status) ==
      R"({"format":1,"job":"run\"7\\\n","state":"running","why":null,"age_s":0.0,"world_size":4,"attempt":1,"restarts":0,)"
      R"("max_restarts":0,"output_bytes":18446744073709551615,"directory":"","step":40,"step_s":0.25,"step_age_s":null,)"
      R"("loss":2.5,"goodput":0.333,"usage":{"cpus":48.0,"cpu":1.5,"memory":0.0,"memory_used":0.0,"network_in":0.0,)"
      R"("network_out":0.0,"infiniband_in":0.0,"infiniband_out":0.0,"disk_read":0.0,"disk_written":0.0,"gpus":0,)"
      R"("gpu_busy":0.0,"gpu_memory":0.0,"gpu_memory_used":0.0,"gpu_power_w":0.0},)"
      R"("failure":{"text":"rank 3 on gpu02 exited 3","host":"gpu02","rank":3,"attempt":0,)"
      R"("exception":"ValueError: boom","out_of_memory":null,"xid":null,"waited_for":null,"hint":null,)"
      R"("stderr_tail":["Traceback (most recent call last):","ValueError: boom"]},)"
      R"("hang":null,"warnings":["no space left"],"nodes":[)"
      R"({"node":"gpu01","state":"running","health":"good","trouble":null,"first_rank":0,"ranks":2,"running":1,"silence_s":1.5,"step":40,)"
      R"("steps":[41,40],"losses":[2.5,null],"phases":["",""],"step_seconds":[0.25,null],"usage":null},)"
      R"({"node":"gpu02","state":"running","health":"doubtful","trouble":"GPU 1 is slowed by heat","first_rank":2,"ranks":2,"running":2,"silence_s":0.0,"step":42,)"
      R"("steps":[null,42],"losses":[null,null],"phases":["",""],"step_seconds":[null,null],"usage":{"cpus":64,)"
      R"("cpu":2.5,"memory":0,"memory_used":0,"job_cpu":1.5,"job_memory":0,"network_in":0,"network_out":0,)"
      R"("infiniband_in":0,"infiniband_out":0,"disk_read":0,"disk_written":0,"gpus":[{"index":1,"busy":43,)"
      R"("memory":80,"memory_used":12,"power_w":412.0,"celsius":60,"clock_mhz":1980,"throttled_by":["heat"],)"
      R"("xid":null}]}},)"
      R"({"node":"gpu03","state":"lost","health":"bad","trouble":"lost","first_rank":null,"ranks":0,"running":0,"silence_s":null,"step":null,)"
      R"("steps":[],"losses":[],"phases":[],"step_seconds":[],"usage":null}]})"
      "\n");
  status.world_size = 0;  // not yet known
  CHECK(status_json(status).find("\"world_size\":null,") != std::string::npos);
}

TEST_CASE("what is wrong with a node is judged once, in the status") {
  JobStatus status = running_job();
  const auto health = [&status](std::size_t node) {
    const auto json = nlohmann::json::parse(status_json(status))["nodes"][node];
    return json["health"].get<std::string>() + ": " + json["trouble"].dump();
  };
  CHECK(health(0) == "good: null");  // a rank has exited 0
  CHECK(health(2) == "bad: \"lost\"");
  status.nodes[0].ended = 0;
  CHECK(health(0) == "doubtful: \"1 of 2 ranks run\"");
  status.nodes[0].silence = 12'300ms;
  CHECK(health(0) == "bad: \"silent for 12.3 s, 1 of 2 ranks run\"");
  status.state = "stopping";
  status.nodes[0].silence = 1s;
  CHECK(health(0) == "good: null");
  status.nodes[0].failed = 2;
  CHECK(health(0) == "bad: \"2 ranks failed\"");
  status.state = "running";
  rendezvous::NodeSample usage;
  usage.gpus = {{1, 43, 12, 80, 412'000, 60, 1980, 0x4, 0}};  // the power limit, as most GPUs at full load
  status.nodes[1].usage = usage;
  CHECK(health(1) == "good: null");
  status.nodes[1].usage->gpus[0].throttle = 0x40;
  CHECK(health(1) == "doubtful: \"GPU 1 is slowed by heat\"");
  status.nodes[1].usage->gpus[0].xid = 79;
  CHECK(health(1) == "bad: \"GPU 1 reports Xid 79, GPU 1 is slowed by heat\"");
  status.nodes[1].usage.reset();
  status.nodes[1].reports = {{{42, {}, ""}}, {{30, {}, ""}}};
  CHECK(health(1) == "doubtful: \"12 steps behind\"");
  status.nodes[1].reports[1]->ended = true;
  CHECK(health(1) == "good: null");
  status.nodes[1].reports[1]->ended = false;
  status.progress.step_seconds = 0.1;  // they report once a second
  CHECK(health(1) == "good: null");
}

TEST_CASE("a job without steps has no metrics about them") {
  JobStatus status = running_job();
  status.progress.step.reset();
  CHECK(metrics_text(status).find("ddplaunch_step") == std::string::npos);
}

}  // namespace
}  // namespace ddp::launcher
