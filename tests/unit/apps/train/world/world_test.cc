#include "apps/train/world/world.h"

#include <map>
#include <string>

#include "tests/support/catch.h"

using namespace ddp::train;

namespace {

ddp::Result<WorkerEnvironment> read(const std::map<std::string, std::string>& variables) {
  return read_worker_environment([&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const std::map<std::string, std::string> kFull{{"RANK", "3"},
                                               {"WORLD_SIZE", "4"},
                                               {"LOCAL_RANK", "1"},
                                               {"LOCAL_WORLD_SIZE", "2"},
                                               {"GROUP_RANK", "1"},
                                               {"MASTER_ADDR", "10.0.0.7"},
                                               {"MASTER_PORT", "29500"},
                                               {"TORCHELASTIC_RUN_ID", "job-1"},
                                               {"TORCHELASTIC_RESTART_COUNT", "2"},
                                               {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                               {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

std::string problem(std::map<std::string, std::string> change) {
  change.insert(kFull.begin(), kFull.end());
  std::erase_if(change, [](const auto& entry) { return entry.second == "unset"; });
  const auto result = read(change);
  REQUIRE_FALSE(result.has_value());
  return result.error().text;
}

}  // namespace

TEST_CASE("the launcher's environment is read completely") {
  const auto environment = read(kFull);
  REQUIRE(environment.has_value());
  CHECK(environment->rank == 3);
  CHECK(environment->world_size == 4);
  CHECK(environment->local_rank == 1);
  CHECK(environment->local_world_size == 2);
  CHECK(environment->node == 1);
  CHECK(environment->master_addr == "10.0.0.7");
  CHECK(environment->master_port == 29500);
  CHECK(environment->job_id == "job-1");
  CHECK(environment->attempt == 2);
  CHECK(environment->max_restarts == 3);
  CHECK(environment->agent_store);
}

TEST_CASE("without a launcher the world is one process") {
  const auto environment = read({{"MASTER_PORT", "nonsense"}});
  REQUIRE(environment.has_value());
  CHECK(environment->world_size == 1);
  CHECK(environment->max_restarts == -1);
  CHECK(environment->rank == 0);
}

TEST_CASE("a wrong value in the environment is an error that names the variable") {
  CHECK(problem({{"RANK", "4"}}) == "RANK=\"4\" is not a number from 0 to 3");
  CHECK(problem({{"RANK", "1x"}}) == "RANK=\"1x\" is not a number from 0 to 3");
  CHECK(problem({{"WORLD_SIZE", ""}}) == "WORLD_SIZE=\"\" is not a number from 1 to 1000000");
  CHECK(problem({{"MASTER_PORT", "70000"}}) == "MASTER_PORT=\"70000\" is not a number from 1 to 65535");
  CHECK(
      problem({{"TORCHELASTIC_MAX_RESTARTS", "-1"}}).starts_with("TORCHELASTIC_MAX_RESTARTS=\"-1\" is not"));
  CHECK(problem({{"MASTER_ADDR", "unset"}}) == "MASTER_ADDR is not set, but WORLD_SIZE is 4");
  CHECK(problem({{"RANK", "unset"}}) ==
        "RANK is not set; start train with ddplaunch (or torchrun), or without RANK and WORLD_SIZE for a "
        "single process");
}
