#include "launcher/job/join_job.h"

namespace ddp::launcher {

JoinJob join_job(const JobSpec& spec) {
  JoinJob own;
  own.command = spec.command;
  own.chdir = spec.chdir;
  own.explicit_env = spec.explicit_env;
  own.setup = spec.setup;
  // Counts that depend on the node (auto, gpu, cpu) are planned by the master from the node's hello.
  if (spec.nproc.kind == ProcsPerNode::Kind::kNumber)
    own.workers = static_cast<std::uint32_t>(spec.nproc.number);
  return own;
}

rendezvous::JobStart lay_over(const rendezvous::JobStart& master, const JoinJob& own) {
  rendezvous::JobStart job;
  job.job_id = master.job_id;
  job.host = master.host;
  job.command_kind = static_cast<std::uint8_t>(own.command.kind);
  job.argv = own.command.argv;
  job.python = own.command.python;
  job.chdir = own.chdir;
  job.explicit_env = own.explicit_env;
  job.setup = own.setup;
  job.stdin_to_rank0 = master.stdin_to_rank0;
  job.master_timeout_ms = master.master_timeout_ms;
  job.link_grace_ms = master.link_grace_ms;
  job.credit = master.credit;
  job.hang_timeout_ms = master.hang_timeout_ms;
  job.stop_leaders = master.stop_leaders;
  job.predecessor = master.predecessor;
  job.predecessor_clock_ns = master.predecessor_clock_ns;
  job.keepers = master.keepers;
  return job;
}

}  // namespace ddp::launcher
