#include "launcher/job/job_spec.h"

#include <boost/pfr/core.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/protocol/message.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

JobSpec own_spec() {
  JobSpec spec;
  spec.command = {WorkerCommand::Kind::kPython, {"train.py", "--lr", "1"}, "/venv/bin/python"};
  spec.chdir = "/here";
  spec.env = {{"SECRET", "of this machine"}};
  spec.explicit_env = {{"NCCL_DEBUG", "INFO"}};
  spec.setup = {"module load cuda"};
  spec.nproc = {rendezvous::ProcsRule::kNumber, 4};
  return spec;
}

rendezvous::JobStart masters() {
  rendezvous::JobStart job;
  job.job_id = "run7";
  job.host = "node1";
  job.command = {WorkerCommand::Kind::kProgram, {"other"}, "python2"};
  job.chdir = "/there";
  job.env = {{"A", "1"}};
  job.explicit_env = {{"B", "2"}};
  job.devices = {"0"};
  job.local = true;
  job.stdin_to_rank0 = true;
  job.master_timeout_ms = 1;
  job.link_grace_ms = 2;
  job.credit = 3;
  job.activity_timeout_ms = 4;
  job.may_restart = false;
  job.stop_leaders = true;
  job.setup = {"echo master"};
  job.predecessor = {5};
  job.predecessor_clock_ns = 6;
  job.keepers = {7};
  return job;
}

TEST_CASE("a node that joins runs its own command in its own environment") {
  const JoinJob own = join_job(own_spec());
  CHECK(own.workers == 4);
  const rendezvous::JobStart job = lay_over(masters(), own);
  CHECK(job.command.kind == WorkerCommand::Kind::kPython);
  CHECK(job.command.argv == std::vector<std::string>{"train.py", "--lr", "1"});
  CHECK(job.command.python == "/venv/bin/python");
  CHECK(job.chdir == "/here");
  CHECK(job.env.empty());
  CHECK(job.explicit_env == rendezvous::Pairs{{"NCCL_DEBUG", "INFO"}});
  CHECK(job.devices.empty());
  CHECK(job.setup == std::vector<std::string>{"module load cuda"});
}

TEST_CASE("settings of the whole job come from the master") {
  const rendezvous::JobStart job = lay_over(masters(), join_job(own_spec()));
  CHECK(job.job_id == "run7");
  CHECK(job.host == "node1");
  CHECK(!job.local);
  CHECK(job.stdin_to_rank0);
  CHECK(job.master_timeout_ms == 1);
  CHECK(job.link_grace_ms == 2);
  CHECK(job.credit == 3);
  CHECK(job.activity_timeout_ms == 4);
  CHECK(!job.may_restart);
  CHECK(job.stop_leaders);
  CHECK(job.predecessor == std::vector<std::uint32_t>{5});
  CHECK(job.predecessor_clock_ns == 6);
  CHECK(job.keepers == std::vector<std::uint32_t>{7});
}

TEST_CASE("each field of a job is the node's own or the master's") {
  // A new field: is it a setting of the whole job (check it above), or does it say what runs on a node (clear
  // it in lay_over)?
  CHECK(boost::pfr::tuple_size_v<rendezvous::JobStart> == 20);
}

TEST_CASE("a worker count that must be detected is planned by the master") {
  JobSpec spec = own_spec();
  spec.nproc = {rendezvous::ProcsRule::kUnset, 0};
  CHECK(join_job(spec).workers == 0);
}

}  // namespace
}  // namespace ddp::launcher
