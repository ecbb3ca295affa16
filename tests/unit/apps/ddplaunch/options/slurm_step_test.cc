#include "apps/ddplaunch/options/job_options.h"

#include <set>
#include <string>

#include "tests/support/catch.h"

using ddp::SlurmStep;

namespace {

SlurmStep step_with(const ddp::launcher::EnvVars& env) {
  ddp::ProcessContext context;
  context.env = env;
  return SlurmStep(context);
}

/// Returns a step of `nodes` nodes with one task each.
SlurmStep step_of(const char* nodes, const char* list, const char* id = "0", const char* name = "") {
  return step_with({{"SLURM_JOB_ID", "7"},
                    {"SLURM_JOB_NODELIST", "n[000-100]"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_STEP_NODELIST", list},
                    {"SLURM_STEP_NUM_TASKS", nodes},
                    {"SLURM_STEP_NUM_NODES", nodes},
                    {"SLURM_NODEID", id},
                    {"SLURMD_NODENAME", name}});
}

unsigned port(const std::string& job, const std::string& step) {
  return step_with({{"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}}).port().value_or(0);
}

}  // namespace

TEST_CASE("Node 0 is the first node of the step") {
  struct Row {
    const char* nodes;
    const char* list;
    const char* first;
  };
  for (const Row& row :
       {Row{"2", "gpu[07,12]", "gpu07"}, Row{"3", "b1,a[1-2]", "b1"}, Row{"4", "r[1-2]n[3-4]", "r1n3"},
        Row{"2", "gpu07.example.org,gpu08", "gpu07.example.org"}, Row{"101", "", "n000"}}) {
    CAPTURE(row.list);
    const auto first = step_of(row.nodes, row.list).first_node();
    REQUIRE(first.has_value());
    CHECK(*first == row.first);
  }
  CHECK_FALSE(step_of("3", "gpu[07,12]").first_node().has_value());
  CHECK_FALSE(step_of("2", "gpu[07,").first_node().has_value());
  CHECK(step_of("2", "gpu[07,12]", "1", "gpu12").first_node().has_value());
  CHECK_FALSE(step_of("2", "gpu[07,12]", "1", "gpu07").first_node().has_value());
}

TEST_CASE("A step has one task per node only if there are as many nodes as tasks") {
  const auto one_per_node = [](const char* tasks, const char* nodes) {
    return step_with({{"SLURM_STEP_NUM_TASKS", tasks}, {"SLURM_STEP_NUM_NODES", nodes}}).one_per_node();
  };
  CHECK(one_per_node("2", "2"));
  CHECK_FALSE(one_per_node("1", "1"));
  CHECK_FALSE(one_per_node("4", "2"));
  CHECK_FALSE(one_per_node("2", ""));
  CHECK_FALSE(one_per_node("", ""));
  CHECK_FALSE(one_per_node("x", "x"));
  // A batch script is task 0 of node 0, but of no step.
  CHECK_FALSE(
      step_with({{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}, {"SLURM_NTASKS", "2"}})
          .one_per_node());
}

TEST_CASE("Jobs of an array and steps of a job have different ports") {
  std::set<unsigned> ports;
  for (int job = 0; job < 40; ++job) {
    for (int step = 0; step < 50; ++step)
      ports.insert(port(std::to_string(4'000'000 + job), std::to_string(step)));
  }
  CHECK(ports.size() == 40 * 50);
  CHECK(*ports.begin() >= 20000);
  CHECK(*ports.rbegin() <= 27999);
  CHECK(port("7", "0") == 22601);
  CHECK(port("4294967295", "4294967290") >= 20000);
  CHECK(port("", "0") == 0);
  CHECK(port("7", "batch") == 0);
}
