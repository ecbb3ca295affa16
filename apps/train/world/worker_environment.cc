#include "apps/train/world/worker_environment.h"

#include <limits>
#include <string_view>

#include "base/parse_text.h"

namespace ddp::train {

namespace {

using Getter = std::function<const char*(const char*)>;

Result<std::int64_t> number(const Getter& get, const char* name, std::int64_t least, std::int64_t most) {
  const char* value = get(name);
  if (value == nullptr) {
    return Error{ErrorCode::kUsage, std::string(name) +
                                        " is not set; start train with ddplaunch (or torchrun), or " +
                                        "without RANK and WORLD_SIZE for a single process"};
  }
  const auto result = parse_number<std::int64_t>(value);
  if (!result || *result < least || *result > most) {
    return Error{ErrorCode::kUsage, std::string(name) + "=\"" + value + "\" is not a number from " +
                                        std::to_string(least) + " to " + std::to_string(most)};
  }
  return *result;
}

Result<std::int64_t> number_or(const Getter& get, const char* name, std::int64_t least, std::int64_t most,
                               std::int64_t missing) {
  if (get(name) == nullptr) return missing;
  return number(get, name, least, most);
}

}  // namespace

Result<WorkerEnvironment> read_worker_environment(const Getter& get) {
  constexpr std::int64_t kMost = 1'000'000;
  WorkerEnvironment result;
  if (const char* control = get("DDPLAUNCH_CONTROL")) result.control = control;
  if (const char* collectives = get("DDPLAUNCH_COLLECTIVES")) result.collectives = collectives;
  if (get("RANK") == nullptr && get("WORLD_SIZE") == nullptr) return result;

  const auto world = number(get, "WORLD_SIZE", 1, kMost);
  if (!world) return world.error();
  const auto rank = number(get, "RANK", 0, *world - 1);
  if (!rank) return rank.error();
  const auto local_rank = number_or(get, "LOCAL_RANK", 0, kMost, 0);
  if (!local_rank) return local_rank.error();
  const auto local_world = number_or(get, "LOCAL_WORLD_SIZE", 1, *world, 0);
  if (!local_world) return local_world.error();
  const auto node = number_or(get, "GROUP_RANK", 0, kMost, -1);
  if (!node) return node.error();
  const auto attempt =
      number_or(get, "TORCHELASTIC_RESTART_COUNT", 0, std::numeric_limits<std::uint32_t>::max(), 0);
  if (!attempt) return attempt.error();
  const auto restarts = number_or(get, "TORCHELASTIC_MAX_RESTARTS", 0, std::numeric_limits<int>::max(), -1);
  if (!restarts) return restarts.error();
  result.rank = static_cast<int>(*rank);
  result.world_size = static_cast<int>(*world);
  result.local_rank = static_cast<int>(*local_rank);
  result.local_world_size = static_cast<int>(*local_world);
  result.node = static_cast<int>(*node);
  result.attempt = static_cast<std::uint32_t>(*attempt);
  result.max_restarts = *restarts;
  if (const char* run_id = get("TORCHELASTIC_RUN_ID")) result.run_id = run_id;
  if (result.world_size == 1) return result;

  const auto port = number(get, "MASTER_PORT", 1, 65'535);
  if (!port) return port.error();
  result.master_port = static_cast<std::uint16_t>(*port);
  const char* address = get("MASTER_ADDR");
  if (address == nullptr || *address == 0) {
    return Error{ErrorCode::kUsage, "MASTER_ADDR is not set, but WORLD_SIZE is " + std::to_string(*world)};
  }
  result.master_addr = address;
  const char* agent_store = get("TORCHELASTIC_USE_AGENT_STORE");
  result.agent_store = agent_store != nullptr && std::string_view(agent_store) == "True";
  return result;
}

}  // namespace ddp::train
