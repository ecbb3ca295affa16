#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/job_spec.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// What a node that was started by itself (per-node mode) was told of its own workers: as with torchrun, each
/// node runs its own command in its own environment. Sans-IO.
struct JoinJob {
  WorkerCommand command;
  std::string chdir;
  std::vector<std::pair<std::string, std::string>> explicit_env;  ///< --env, --env-file
  std::vector<std::string> setup;
  std::uint32_t workers = 0;  ///< 0: as many as the master plans
};

JoinJob join_job(const JobSpec& spec);

/// The job as this node runs it: command, directory, environment and setup are its own, whatever the master
/// sent; only the job's name, the node's, times, credit, and whether rank 0 reads stdin are the master's.
rendezvous::JobStart lay_over(const rendezvous::JobStart& master, const JoinJob& own);

}  // namespace ddp::launcher
