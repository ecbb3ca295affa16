#include "launcher/job/worker_env.h"

#include <map>
#include <regex>
#include <string>

#include "tests/support/catch.h"

using namespace ddp::launcher;

namespace {

// The world of the contract test: node 0 with 2 workers, node 1 with 3.
WorkerFacts unequal_world(int node_rank, int local_rank) {
  WorkerFacts facts;
  facts.rank = (node_rank == 0 ? 0 : 2) + local_rank;
  facts.local_rank = local_rank;
  facts.world_size = 5;
  facts.local_world_size = node_rank == 0 ? 2 : 3;
  facts.node_rank = node_rank;
  facts.node_count = 2;
  facts.master_addr = "10.0.0.1";
  facts.master_port = 31000;
  facts.job_id = "j-20260101-abcd";
  facts.restart_count = 1;
  facts.max_restarts = 3;
  facts.error_file = "/tmp/ddp/error.json";
  facts.omp_threads = 4;
  facts.interface = "eth0";
  return facts;
}

std::map<std::string, std::string> as_map(const EnvVars& vars) {
  std::map<std::string, std::string> made;
  for (const auto& [name, value] : vars) {
    INFO(name);
    REQUIRE(made.emplace(name, value).second);  // each name occurs once
  }
  return made;
}

}  // namespace

TEST_CASE("the environment of every rank of an uneven world is complete") {
  for (int node_rank = 0; node_rank < 2; ++node_rank) {
    for (int local_rank = 0; local_rank < (node_rank == 0 ? 2 : 3); ++local_rank) {
      const std::string rank = std::to_string((node_rank == 0 ? 0 : 2) + local_rank);
      const std::string node = std::to_string(node_rank);
      const std::string local_size = node_rank == 0 ? "2" : "3";
      const std::map<std::string, std::string> expected{
          {"RANK", rank},
          {"LOCAL_RANK", std::to_string(local_rank)},
          {"WORLD_SIZE", "5"},
          {"LOCAL_WORLD_SIZE", local_size},
          {"GROUP_RANK", node},
          {"GROUP_WORLD_SIZE", "2"},
          {"ROLE_RANK", rank},
          {"ROLE_NAME", "default"},
          {"ROLE_WORLD_SIZE", "5"},
          {"MASTER_ADDR", "10.0.0.1"},
          {"MASTER_PORT", "31000"},
          {"TORCHELASTIC_RUN_ID", "j-20260101-abcd"},
          {"TORCHELASTIC_RESTART_COUNT", "1"},
          {"TORCHELASTIC_MAX_RESTARTS", "3"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_ERROR_FILE", "/tmp/ddp/error.json"},
          {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
          {"NCCL_ASYNC_ERROR_HANDLING", "1"},
          {"NODE_RANK", node},
          {"CROSS_RANK", node},
          {"CROSS_SIZE", "2"},
          {"LOCAL_SIZE", local_size},
          {"DDPLAUNCH_JOB_ID", "j-20260101-abcd"},
          {"OMP_NUM_THREADS", "4"},
          {"PYTHONUNBUFFERED", "1"},
          {"NCCL_SOCKET_IFNAME", "=eth0"},
          {"GLOO_SOCKET_IFNAME", "eth0"},
          {"OTEL_RESOURCE_ATTRIBUTES",
           "ddplaunch.job.id=j-20260101-abcd,ddplaunch.rank=" + rank + ",ddplaunch.attempt=1"},
          {"TRACEPARENT", "00-752abcf6c195c65694ce86527841e996-cc67eec951bec4f8-01"},
      };
      const WorkerEnv made = worker_env(unequal_world(node_rank, local_rank), {});
      CHECK(as_map(made.vars) == expected);
      CHECK(made.omp_threads == 4);
    }
  }
}

TEST_CASE("a worker fact overrides the user's value, other variables do not") {
  for (const char* name : {"RANK", "MASTER_PORT", "NODE_RANK", "TORCHELASTIC_ERROR_FILE", "DDPLAUNCH_JOB_ID"})
    CHECK(is_worker_fact(name));
  for (const char* name : {"OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "PATH", ""})
    CHECK_FALSE(is_worker_fact(name));
}

TEST_CASE("attributes of telemetry are added to the user's") {
  const WorkerEnv made =
      worker_env(unequal_world(0, 1), {{"OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"}});
  CHECK(*find_env(made.vars, "OTEL_RESOURCE_ATTRIBUTES") ==
        "deployment.environment=test,ddplaunch.job.id=j-20260101-abcd,ddplaunch.rank=1,ddplaunch.attempt=1");
}

TEST_CASE("all ranks of a job belong to one trace, that of the user if there is one") {
  const std::string made = *find_env(worker_env(unequal_world(0, 1), {}).vars, "TRACEPARENT");
  CHECK(std::regex_match(made, std::regex("00-[0-9a-f]{32}-[0-9a-f]{16}-01")));
  CHECK(*find_env(worker_env(unequal_world(1, 0), {}).vars, "TRACEPARENT") == made);
  WorkerFacts other = unequal_world(0, 1);
  other.job_id = "another";
  CHECK(*find_env(worker_env(other, {}).vars, "TRACEPARENT") != made);
  CHECK_FALSE(find_env(worker_env(other, {{"TRACEPARENT", made}}).vars, "TRACEPARENT"));
  CHECK(find_env(worker_env(other, {{"TRACEPARENT", ""}}).vars, "TRACEPARENT"));
}

TEST_CASE("variables of the user are kept") {
  const EnvVars base{{"OMP_NUM_THREADS", "7"},
                     {"PYTHONUNBUFFERED", ""},
                     {"NCCL_SOCKET_IFNAME", "ib0"},
                     {"GLOO_SOCKET_IFNAME", "ib1"},
                     {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}};
  const WorkerEnv made = worker_env(unequal_world(1, 0), base);
  for (const auto& [name, value] : base)
    CHECK_FALSE(find_env(made.vars, name));
  CHECK_FALSE(made.omp_threads.has_value());
  // The old spelling gets the user's value, too, so that an old torch behaves alike.
  CHECK(*find_env(made.vars, "NCCL_ASYNC_ERROR_HANDLING") == "3");
}

TEST_CASE("the old name of NCCL's error handling variable replaces the new one") {
  const WorkerEnv made = worker_env(unequal_world(0, 0), {{"NCCL_ASYNC_ERROR_HANDLING", "0"}});
  CHECK(*find_env(made.vars, "TORCH_NCCL_ASYNC_ERROR_HANDLING") == "0");
  CHECK_FALSE(find_env(made.vars, "NCCL_ASYNC_ERROR_HANDLING"));
}

TEST_CASE("NCCL's variables enable IPv6, which NCCL would not choose by itself") {
  WorkerFacts facts = unequal_world(0, 0);
  CHECK_FALSE(find_env(worker_env(facts, {}).vars, "NCCL_SOCKET_FAMILY"));
  facts.master_addr = "fd00::1";
  CHECK(*find_env(worker_env(facts, {}).vars, "NCCL_SOCKET_FAMILY") == "AF_INET6");
  CHECK_FALSE(find_env(worker_env(facts, {{"NCCL_SOCKET_FAMILY", "AF_INET"}}).vars, "NCCL_SOCKET_FAMILY"));
}

TEST_CASE("an absent value sets no variable") {
  WorkerFacts facts = unequal_world(0, 0);
  facts.interface.clear();
  facts.error_file.clear();
  const WorkerEnv made = worker_env(facts, {});
  CHECK_FALSE(find_env(made.vars, "NCCL_SOCKET_IFNAME"));
  CHECK_FALSE(find_env(made.vars, "GLOO_SOCKET_IFNAME"));
  CHECK_FALSE(find_env(made.vars, "TORCHELASTIC_ERROR_FILE"));
  CHECK_FALSE(find_env(made.vars, "CUDA_VISIBLE_DEVICES"));
}

TEST_CASE("chosen devices reach every worker of the node, and MIG names are passed on") {
  WorkerFacts facts = unequal_world(0, 1);
  facts.devices = {"0", "MIG-3f5c"};
  CHECK(*find_env(worker_env(facts, {{"CUDA_VISIBLE_DEVICES", "5"}}).vars, "CUDA_VISIBLE_DEVICES") ==
        "0,MIG-3f5c");
}

TEST_CASE("with --store worker rank 0 serves the port itself") {
  WorkerFacts facts = unequal_world(0, 0);
  facts.agent_store = false;
  CHECK(*find_env(worker_env(facts, {}).vars, "TORCHELASTIC_USE_AGENT_STORE") == "False");
}

TEST_CASE("rank 0 is reached without the proxy") {
  const WorkerEnv made =
      worker_env(unequal_world(1, 0), {{"http_proxy", "http://proxy"}, {"no_proxy", "corp"}});
  CHECK(*find_env(made.vars, "no_proxy") == "corp,localhost,127.0.0.1,10.0.0.1");
  CHECK(*find_env(made.vars, "NO_PROXY") == "corp,localhost,127.0.0.1,10.0.0.1");
}

TEST_CASE("threads per worker") {
  CHECK(omp_threads_for(64, 8) == 8);
  CHECK(omp_threads_for(7, 2) == 3);
  CHECK(omp_threads_for(2, 8) == 1);
  CHECK(omp_threads_for(0, 0) == 1);
}
