#include "apps/ddplaunch/options/job_options.h"

#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::launcher::LauncherKind;
using ddp::test::FakeContext;
using ddp::test::Texts;

namespace {

FakeContext in_slurm(const char* tasks = "1(x3)") {
  FakeContext world;
  world.env.insert(
      world.env.end(),
      {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[00-02]"}, {"SLURM_TASKS_PER_NODE", tasks}});
  return world;
}

}  // namespace

TEST_CASE("In a Slurm job the job's nodes are used, and srun starts the agents") {
  const auto job = in_slurm().job({"--nproc-per-node", "8", "w"});
  CHECK(job.spec.launcher == LauncherKind::kSlurm);
  REQUIRE(job.spec.hosts.size() == 3);
  CHECK(job.spec.hosts[2].name == "n02");
  CHECK(job.notes == Texts{"ddplaunch: in Slurm job 7: its nodes are started with srun; --launcher local "
                           "runs on this machine only"});
  CHECK(in_slurm().job({"--launcher", "slurm", "w"}).notes == Texts{});
  CHECK(in_slurm("4(x3)").spec({"w"}).hosts[0].slots == 4);
  CHECK(in_slurm().spec({"--launcher", "slurm", "--host", "n01", "w"}).hosts.size() == 1);
}

TEST_CASE("In a Slurm job an explicit choice is kept") {
  CHECK(in_slurm().spec({"--launcher", "local", "w"}).launcher == LauncherKind::kLocal);
  CHECK(in_slurm().spec({"--host", "a,b", "w"}).launcher == LauncherKind::kSsh);
  const auto ssh = in_slurm().spec({"--launcher", "ssh", "w"});
  CHECK(ssh.launcher == LauncherKind::kSsh);
  CHECK(ssh.hosts.size() == 3);
  CHECK(
      in_slurm().errors({"--ssh-command", "ssh", "w"}) ==
      Texts{
          "ddplaunch: --ssh-command cannot be used with --launcher slurm, which starts the nodes with srun"});
}

TEST_CASE("Several ddplaunch processes started by srun are an error") {
  FakeContext world = in_slurm();
  world.env.emplace_back("SLURM_STEP_NUM_TASKS", "3");
  CHECK(world.errors({"w"}).front() ==
        "ddplaunch: srun has started 3 of this program, but one ddplaunch starts all nodes: omit srun, or "
        "use srun --ntasks=1; for one ddplaunch per node set MASTER_ADDR; --launcher local runs on this "
        "machine only");
  CHECK(world.spec({"--launcher", "local", "w"}).hosts.size() == 1);
  world.env.back().second = "1";
  CHECK(world.spec({"w"}).launcher == LauncherKind::kSlurm);
}

TEST_CASE("Without a Slurm job --launcher slurm is an error") {
  CHECK(FakeContext()
            .errors({"--launcher", "slurm", "w"})
            .front()
            .starts_with("ddplaunch: --launcher slurm needs a Slurm job, but SLURM_JOB_ID or "
                         "SLURM_JOB_NODELIST is not set; "));
}
