#include "launcher/supervisor/attempt_start.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

JobSpec spec_of_node_0() {
  JobSpec spec;
  spec.job_id = "run7";
  spec.launcher = LauncherKind::kJoin;
  spec.hosts.resize(2);
  spec.hosts[0].name = "localhost";
  spec.hosts[1].name = "node1";
  spec.command = {WorkerCommand::Kind::kPython, {"train.py"}, "/venv/bin/python"};
  spec.chdir = "/here";
  spec.env = {{"FORWARDED", "1"}};
  spec.local_env = {{"LOCAL", "1"}};
  spec.explicit_env = {{"WANDB_API_KEY", "secret"}};
  spec.setup = {"module load cuda"};
  spec.stdin_to_rank0 = true;
  return spec;
}

TEST_CASE("a node that joins gets the job's timeouts and nothing of node 0's own settings") {
  const JobSpec spec = spec_of_node_0();
  const rendezvous::JobStart other = job_start(spec, spec.hosts[1], 2);
  CHECK(other.job_id == "run7");
  CHECK(other.host == "node1");
  CHECK(other.stdin_to_rank0);
  CHECK(other.credit > 0);
  CHECK(other.master_timeout_ms == to_ms(node_lease(spec)));
  CHECK(other.argv.empty());
  CHECK(other.python.empty());
  CHECK(other.chdir.empty());
  CHECK(other.env.empty());
  CHECK(other.explicit_env.empty());
  CHECK(other.setup.empty());
  const rendezvous::JobStart own = job_start(spec, spec.hosts[0], 2);
  CHECK(own.local);
  CHECK(own.argv == std::vector<std::string>{"train.py"});
  CHECK(own.env == spec.local_env);
  CHECK(own.explicit_env == spec.explicit_env);
}

TEST_CASE("a node's line in the hostfile adds to the job's settings, and its chdir replaces the job's") {
  JobSpec spec = spec_of_node_0();
  spec.launcher = LauncherKind::kSsh;
  remote::Host host;
  host.name = "gpu01";
  const rendezvous::JobStart plain = job_start(spec, host, 2);
  CHECK_FALSE(plain.local);
  CHECK(plain.chdir == "/here");
  CHECK(plain.python == "/venv/bin/python");
  CHECK(plain.env == spec.env);
  CHECK(plain.setup == std::vector<std::string>{"module load cuda"});
  CHECK(plain.devices.empty());
  CHECK(plain.link_grace_ms == 5000);
  spec.failure_grace = std::chrono::seconds(4);
  CHECK(job_start(spec, host, 2).link_grace_ms == 4000);
  spec.launcher = LauncherKind::kSlurm;
  CHECK(job_start(spec, host, 2).link_grace_ms == to_ms(spec.stop_grace));
  host.chdir = "/there";
  host.env = {{"NCCL_DEBUG", "INFO"}};
  host.setup = "source venv/bin/activate";
  host.devices = {"2", "3"};
  const rendezvous::JobStart own = job_start(spec, host, 2);
  CHECK(own.chdir == "/there");
  CHECK(own.explicit_env == decltype(own.explicit_env){{"WANDB_API_KEY", "secret"}, {"NCCL_DEBUG", "INFO"}});
  CHECK(own.setup == std::vector<std::string>{"module load cuda", "source venv/bin/activate"});
  CHECK(own.devices == host.devices);
}

TEST_CASE("procs_wanted has the rule, number and oversubscription of the options") {
  using Kind = ProcsPerNode::Kind;
  using Rule = rendezvous::ProcsRule;
  for (const auto& [kind, rule] :
       {std::pair(Kind::kUnset, Rule::kUnset), std::pair(Kind::kNumber, Rule::kNumber),
        std::pair(Kind::kAuto, Rule::kAuto), std::pair(Kind::kGpu, Rule::kGpu),
        std::pair(Kind::kCpu, Rule::kCpu)}) {
    JobSpec spec;
    spec.nproc = {kind, 3};
    spec.oversubscribe = kind == Kind::kCpu;
    const rendezvous::ProcsWanted wanted = procs_wanted(spec);
    CHECK(wanted.rule == rule);
    CHECK(wanted.number == 3);
    CHECK(wanted.oversubscribe == (kind == Kind::kCpu));
  }
}

}  // namespace
}  // namespace ddp::launcher
