#include "apps/ddplaunch/options/slurm_step.h"

#include <limits>
#include <utility>

#include "base/parse_text.h"
#include "remote/hosts/diagnostic.h"
#include "remote/hosts/scheduler_hosts.h"

namespace ddp {
namespace {

constexpr unsigned long long kMaxTasks = 1'000'000;
constexpr unsigned long long kMaxId = std::numeric_limits<std::uint32_t>::max();
constexpr char kNodeList[] = "SLURM_STEP_NODELIST";

std::string value(const launcher::EnvVars& env, const char* name) {
  const std::string* found = launcher::find_env(env, name);
  return found == nullptr ? std::string() : *found;
}

Error other_step(std::string text) {
  text +=
      "; the variables belong to different jobs or steps. Unset SLURM_STEP_NUM_TASKS if srun has not started "
      "this program";
  return Error{ErrorCode::kUsage, std::move(text)};
}

}  // namespace

SlurmStep::SlurmStep(const launcher::EnvVars& env)
    : job(value(env, "SLURM_JOB_ID")),
      id(value(env, "SLURM_STEP_ID")),
      tasks(whole_number(value(env, "SLURM_STEP_NUM_TASKS"), kMaxTasks).value_or(0)),
      nodes(whole_number(value(env, "SLURM_STEP_NUM_NODES"), kMaxTasks).value_or(0)),
      tasks_per_node(value(env, "SLURM_TASKS_PER_NODE")),
      node_id(value(env, "SLURM_NODEID")),
      node_list(value(env, kNodeList)),
      job_node_list(value(env, "SLURM_JOB_NODELIST")),
      node_name(value(env, "SLURMD_NODENAME")),
      terminal(!value(env, "SLURM_PTY_PORT").empty()) {
  if (node_list.empty()) node_list = job_node_list;
}

std::optional<int> SlurmStep::node_rank() const {
  const auto number = whole_number(node_id, kMaxTasks);
  if (!number || *number >= nodes) return std::nullopt;
  return static_cast<int>(*number);
}

Result<std::string> SlurmStep::first_node() const {
  if (node_list.empty()) return Error{ErrorCode::kUsage, std::string(kNodeList) + " is not set"};
  auto names = remote::expand_node_list(node_list, kNodeList);
  if (!names) return Error{ErrorCode::kUsage, to_text(names.error().list.front())};
  const std::string list = std::string(kNodeList) + '=' + node_list;
  if (names->size() != nodes)
    return other_step(list + " names " + std::to_string(names->size()) +
                      " nodes, but SLURM_STEP_NUM_NODES is " + std::to_string(nodes));
  const auto rank = node_rank();
  if (rank && !node_name.empty() && (*names)[static_cast<std::size_t>(*rank)] != node_name)
    return other_step("SLURMD_NODENAME=" + node_name + " is not node " + node_id + " of " + list);
  return std::move(names->front());
}

std::optional<std::uint16_t> SlurmStep::port() const {
  // The factor is near the golden section of kPorts and has no divisor in common with it. So the ports of
  // jobs with neighboring ids lie far apart, with space for the steps of each.
  constexpr unsigned long long kJobDistance = 4943;
  const auto job_number = whole_number(job, kMaxId);
  const auto step_number = whole_number(id, kMaxId);
  if (!job_number || !step_number) return std::nullopt;
  return static_cast<std::uint16_t>(kFirstPort + (*job_number * kJobDistance + *step_number) % kPorts);
}

}  // namespace ddp
