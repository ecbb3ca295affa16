#include "launcher/supervisor/start_messages.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/format_text.h"
#include "launcher/job/output_credit.h"
#include "remote/hosts/host_range.h"

namespace ddp::launcher {
namespace {

/// Time from TERM to KILL on a node that has lost the master.
constexpr std::chrono::milliseconds kLinkGrace{5'000};
/// Longest list of awaited nodes, in bytes.
constexpr std::size_t kNamesShown = 60;

}  // namespace

std::uint32_t to_ms(std::chrono::milliseconds value) {
  return static_cast<std::uint32_t>(value.count());
}

std::string awaited_text(const std::map<std::string, std::vector<std::string>>& awaited, std::size_t nodes) {
  std::size_t count = 0;
  std::string text;
  for (const auto& [step, names] : awaited) {
    std::string some = remote::fold_ranges(names);
    if (some.size() > kNamesShown) some = join_some(names, 1);
    text += (text.empty() ? ": " : ", ") + some + " (" + step + ")";
    count += names.size();
  }
  return count == 0 ? text : std::to_string(count) + " of " + counted(nodes, "node") + text;
}

rendezvous::ProcsWanted procs_wanted(const JobSpec& spec) {
  using Kind = ProcsPerNode::Kind;
  using Rule = rendezvous::ProcsRule;
  Rule rule = Rule::kUnset;
  switch (spec.nproc.kind) {
    case Kind::kUnset:
      rule = Rule::kUnset;
      break;
    case Kind::kNumber:
      rule = Rule::kNumber;
      break;
    case Kind::kAuto:
      rule = Rule::kAuto;
      break;
    case Kind::kGpu:
      rule = Rule::kGpu;
      break;
    case Kind::kCpu:
      rule = Rule::kCpu;
      break;
  }
  return {rule, spec.nproc.number, spec.oversubscribe};
}

std::chrono::milliseconds link_grace(const JobSpec& spec) {
  // Slurm ends a job by SIGTERM to all processes of its nodes, so the grace of a user's stop applies.
  return spec.launcher == LauncherKind::kSlurm ? spec.stop_grace : std::min(spec.failure_grace, kLinkGrace);
}

rendezvous::JobStart job_start(const JobSpec& spec, const remote::Host& host, std::size_t nodes) {
  rendezvous::JobStart job;
  job.job_id = spec.job_id;
  job.host = host.name;
  job.stdin_to_rank0 = spec.stdin_to_rank0;
  job.may_restart = spec.max_restarts > 0 || spec.scale_up_now;
  job.master_timeout_ms = to_ms(node_lease(spec));
  job.link_grace_ms = to_ms(link_grace(spec));
  job.credit = credit_window(nodes);
  job.hang_timeout_ms = to_ms(spec.hang_timeout);
  job.stop_leaders = spec.stop_leaders;
  // A wrapper gives the node other devices, and other PIDs than the master's.
  job.local = host.wrapper.empty() &&
              (spec.launcher == LauncherKind::kLocal || (is_localhost(host) && !spec.ssh_localhost));
  // A node that joins by itself has its own command and environment and does not get the master's.
  if (spec.launcher == LauncherKind::kJoin && !job.local) return job;
  job.command_kind = static_cast<std::uint8_t>(spec.command.kind);
  job.argv = spec.command.argv;
  job.python = spec.command.python;
  job.chdir = host.chdir.empty() ? spec.chdir : host.chdir;
  job.env = job.local ? spec.local_env : spec.env;
  job.explicit_env = spec.explicit_env;
  job.explicit_env.insert(job.explicit_env.end(), host.env.begin(), host.env.end());
  job.setup = spec.setup;
  if (!host.setup.empty()) job.setup.push_back(host.setup);
  job.devices = host.devices;
  return job;
}

rendezvous::Spawn spawn_message(const rendezvous::World& world, std::size_t participant) {
  const rendezvous::RankAssignment& assignment = world.assignments[participant];
  rendezvous::Spawn spawn;
  spawn.node_rank = static_cast<std::uint32_t>(assignment.node_rank);
  spawn.nodes = static_cast<std::uint32_t>(world.assignments.size());
  spawn.first_rank = static_cast<std::uint32_t>(assignment.first_rank);
  spawn.local_world_size = static_cast<std::uint32_t>(assignment.local_world_size);
  spawn.world_size = static_cast<std::uint32_t>(world.world_size);
  return spawn;
}

}  // namespace ddp::launcher
