#include "launcher/join_job.h"

namespace ddp::launcher {

JoinJob join_job(const JobSpec& spec) {
  JoinJob own;
  own.command = spec.command;
  own.chdir = spec.chdir;
  own.explicit_env = spec.explicit_env;
  own.setup = spec.setup;
  // What has to be counted on the node (auto, gpu, cpu) is planned by the master from the node's hello.
  if (spec.nproc.kind == ProcsPerNode::Kind::kNumber)
    own.workers = static_cast<std::uint32_t>(spec.nproc.number);
  return own;
}

rendezvous::JobStart lay_over(rendezvous::JobStart master, const JoinJob& own) {
  master.command_kind = static_cast<std::uint8_t>(own.command.kind);
  master.argv = own.command.argv;
  master.python = own.command.python;
  master.chdir = own.chdir;
  master.env.clear();
  master.explicit_env = own.explicit_env;
  master.devices.clear();
  master.setup = own.setup;
  return master;
}

}  // namespace ddp::launcher
