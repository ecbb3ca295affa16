#include "launcher/report/sample_history.h"

#include <chrono>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/report/journal.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kGiB = 1u << 30;

rendezvous::NodeSample sample(std::uint64_t cpu_milli, std::uint32_t busy) {
  rendezvous::NodeSample made;
  made.cpus = 64;
  made.memory = 512 * kGiB;
  made.job_memory = cpu_milli * kGiB / 1000;
  made.job_cpu_milli = cpu_milli;
  made.network_in = 100;
  made.gpus = {{0, busy, 12 * kGiB, 80 * kGiB, 400'500, 60, 1980, 0, 0},
               {1, busy + 10, 8 * kGiB, 80 * kGiB, 300'000, 61, 1980, 0, 0}};
  return made;
}

TEST_CASE("the usage of a job is that of the nodes that still say theirs") {
  SampleHistory history;
  CHECK(history.usage(0s).nodes == 0);
  history.add_sample(0, 48, sample(2'000, 40), 1s);
  history.add_sample(3, 48, sample(1'000, 60), 5s);
  const JobUsage both = history.usage(6s);
  CHECK(both.nodes == 2);
  CHECK(both.cpus == 96);
  CHECK(both.cpu == 3);
  CHECK(both.gpus == 4);
  CHECK(both.gpu_busy == 55);
  CHECK(both.gpu_memory == 320.0 * kGiB);
  CHECK(both.gpu_power == 1401);
  CHECK(both.network_in == 200);
  CHECK(history.usage(17s).nodes == 1);  // node 0 was lost
  CHECK(history.sample_of(0, 17s) == nullptr);
  REQUIRE(history.sample_of(3, 17s) != nullptr);
  CHECK(history.sample_of(3, 17s)->job_cpu_milli == 1'000);
}

TEST_CASE("the summary has means of what is busy and peaks of memory, for people") {
  SampleHistory history;
  CHECK(usage_text(history.summary()).empty());
  history.add_sample(0, 96, sample(2'000, 30), 0s);
  history.record({}, 0, 0s);
  history.record({}, 0, 500ms);  // too early: counts nothing
  history.add_sample(0, 96, sample(12'000, 50), 1s);
  history.record({}, 0, 1s);
  const UsageSummary& summary = history.summary();
  CHECK(summary.cpu.count == 2);
  CHECK(summary.cpu.mean() == 7);
  CHECK(summary.cpu.peak == 12);
  CHECK(usage_text(summary) == "GPU 45 % busy, 10 of 80 GiB; CPU 7.0 of 96 cores, memory 12 of 512 GiB");
}

TEST_CASE("what came since the last second counts at the end") {
  SampleHistory history;
  history.add_sample(0, 96, sample(2'000, 30), 0s);
  history.record({}, 0, 0s);
  CHECK(history.take_point().value().usage.cpu == 2);
  history.add_sample(0, 96, sample(12'000, 50), 500ms);
  CHECK_FALSE(history.record({}, 0, 900ms));
  history.record_end({}, 0, 900ms);
  CHECK(history.summary().cpu.peak == 12);
  CHECK(history.take_point().value().usage.cpu == 12);
}

TEST_CASE("a node without GPUs has only the rest") {
  SampleHistory history;
  rendezvous::NodeSample made = sample(500, 0);
  made.gpus.clear();
  history.add_sample(0, 8, made, 0s);
  history.record({}, 0, 0s);
  CHECK(usage_text(history.summary()) == "CPU 0.5 of 8 cores, memory 0.5 of 512 GiB");
}

TEST_CASE("a reader who drops every second of 2,000 points has them equally far apart") {
  SampleHistory history;
  JobProgress::Figures figures;
  std::vector<std::uint64_t> steps;
  std::size_t all = 0;
  for (auto now = 0s; now < 100'000s; now += 1s) {
    figures.step = static_cast<std::uint64_t>(now.count());
    CHECK(history.record(figures, 7, now));
    const auto point = history.take_point();
    if (!point) continue;
    ++all;
    CHECK(point->attempt == 7);
    steps.push_back(*point->step);
    if (steps.size() < SampleHistory::kMostPoints) continue;
    for (std::size_t i = 0; i < steps.size() / 2; ++i)
      steps[i] = steps[2 * i];
    steps.resize(steps.size() / 2);
  }
  CHECK(all < 8'000);  // lines of the journal in 28 hours
  CHECK(steps.size() >= SampleHistory::kMostPoints / 2);
  for (std::size_t i = 1; i < steps.size(); ++i)
    REQUIRE(steps[i] - steps[i - 1] == steps[1] - steps[0]);
  CHECK_FALSE(history.take_point());
}

TEST_CASE("a sample as a line of the journal") {
  SampleHistory history;
  JobProgress::Figures figures;
  const auto line = [&] {
    const auto time = std::chrono::system_clock::from_time_t(0);
    return nlohmann::json::parse(sample_line(history.take_point().value(), 5, time));
  };
  history.record(figures, 0, 10s);
  const auto nothing = line();
  CHECK(nothing["event"] == "sample");
  CHECK((nothing["id"] == 5 && nothing["time"] == "1970-01-01T00:00:00.000Z" && nothing["attempt"] == 0));
  CHECK((nothing["node"].is_null() && nothing["step"].is_null() && nothing["cpu"].is_null()));
  figures.step = 4;
  figures.loss = 2.5;
  history.add_sample(0, 8, sample(500, 20), 10500ms);
  history.record(figures, 1, 11s);
  const auto some = line();
  CHECK((some["attempt"] == 1 && some["step"] == 4 && some["loss"] == 2.5));
  CHECK((some["cpu"] == 0.5 && some["gpu_busy"] == 25.0));
}

TEST_CASE("why a GPU is slow") {
  CHECK(throttle_reasons(0).empty());
  CHECK(throttle_reasons(0x1 | 0x2 | 0x10 | 0x100).empty());  // idle, set clocks, sync boost, display
  CHECK(throttle_reasons(0x4) == std::vector<std::string>{"power"});
  CHECK(throttle_reasons(0x8 | 0x40) == std::vector<std::string>{"heat"});
  CHECK(throttle_reasons(0x8) == std::vector<std::string>{"hardware"});
  CHECK(throttle_reasons(0x80 | 0x20) == std::vector<std::string>{"power", "heat"});
}

TEST_CASE("what slows the ranks of a node down") {
  rendezvous::NodeSample made;
  made.cpu_milli = 3000;
  made.cpus = 4;
  made.job_cpu_milli = 2500;
  CHECK(node_troubles(made).empty());
  made.gpus.resize(2);
  made.gpus[0] = {.index = 3, .throttle = 0x40 | 0x4};
  made.gpus[1] = {.index = 5, .xid = 48};
  made.memory_stall = 100;
  made.network_errors = 1;
  CHECK(
      node_troubles(made) ==
      "GPU 5 reports Xid 48, GPU 3 is slowed by heat, processes wait for memory, the network reports errors");
  made.gpus.clear();
  made.memory_stall = made.network_errors = 0;
  made.job_cpu_milli = 2000;
  CHECK(node_troubles(made) == "other programs use the CPUs");
  made.steal_milli = 200;
  CHECK(node_troubles(made) == "the host of this virtual machine takes CPU time away");
}

}  // namespace
}  // namespace ddp::launcher
