#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/job_spec.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Options of a node that was started by itself (per-node mode). As with torchrun, each node runs its own
/// command in its own environment. Sans-IO.
struct JoinJob {
  WorkerCommand command;
  std::string chdir;
  std::vector<std::pair<std::string, std::string>> explicit_env;  ///< --env, --env-file
  std::vector<std::string> setup;
  std::uint32_t workers = 0;  ///< 0: the number that the master plans
};

JoinJob join_job(const JobSpec& spec);

/// Returns the job as this node runs it. Command, directory, environment and setup are the node's own and
/// override the master's. From the master come only the names of job and node, times, credit, the
/// predecessor's PIDs, and whether rank 0 reads stdin.
rendezvous::JobStart lay_over(const rendezvous::JobStart& master, const JoinJob& own);

}  // namespace ddp::launcher
