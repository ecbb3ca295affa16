#include "apps/ddplaunch/options/job_options.h"

#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::launcher::LauncherKind;
using ddp::test::Env;
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

TEST_CASE("Several ddplaunch processes of one node are an error") {
  FakeContext world = in_slurm();
  world.env.insert(world.env.end(), {{"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NUM_TASKS", "16"}});
  const std::string error =
      "ddplaunch: srun has started 16 copies of this program, but one ddplaunch starts all nodes: omit srun, "
      "or use "
      "srun --ntasks-per-node=1 for one ddplaunch per node; --launcher local runs on this machine only";
  for (const char* master : {"", "n00"}) {
    world.env.emplace_back("MASTER_ADDR", master);
    CHECK(world.errors({"w"}) == Texts{error});
    world.env.pop_back();
  }
  CHECK(world.errors({"--launcher", "slurm", "w"}).front() == error);
  CHECK(world.errors({"--launcher", "ssh", "w"}).front() == error);
  CHECK(world.spec({"--launcher", "local", "w"}).hosts.size() == 1);
  CHECK(world.spec({"--host", "a,b", "w"}).hosts.size() == 2);
}

TEST_CASE("One ddplaunch per node is an error if an option or a variable contradicts it") {
  FakeContext world = in_slurm();
  world.env.insert(world.env.end(), {{"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  CHECK(world.errors({"--launcher", "slurm", "w"}).front() ==
        "ddplaunch: srun has started 2 copies of this program, but with --launcher slurm one ddplaunch "
        "starts all "
        "nodes: omit srun or --launcher slurm; --launcher local runs on this machine only");
  CHECK(world.errors({"--launcher", "ssh", "w"}).front() ==
        "ddplaunch: srun has started 2 copies of this program, but with --launcher ssh one ddplaunch starts "
        "all "
        "nodes: omit srun or --launcher ssh; --launcher local runs on this machine only");
  world.env.emplace_back("LOCAL_RANK", "0");
  CHECK(world.errors({"w"}).front() ==
        "ddplaunch: srun has started 2 copies of this program, but LOCAL_RANK is set, as in a worker of "
        "another "
        "launcher; unset it to run one ddplaunch per node; --launcher local runs on this machine only");
}

TEST_CASE("A step of one task runs on its own node") {
  const Env step = {{"SLURM_STEP_ID", "1"},
                    {"SLURM_STEP_NUM_NODES", "1"},
                    {"SLURM_STEP_NUM_TASKS", "1"},
                    {"SLURM_STEP_NODELIST", "n01"}};
  const auto in_step = [&](const char* tasks, const Env& more = {}) {
    FakeContext world = in_slurm(tasks);
    world.env.insert(world.env.end(), step.begin(), step.end());
    world.env.insert(world.env.end(), more.begin(), more.end());
    return world;
  };
  const auto job = in_step("1").job({"w"});
  CHECK(job.spec.launcher == LauncherKind::kLocal);
  CHECK_FALSE(job.spec.per_node);
  CHECK(job.notes ==
        Texts{"ddplaunch: srun has started one ddplaunch as Slurm step 7.1: it runs on this machine "
              "only; --launcher slurm uses all nodes of the job"});
  FakeContext one_node = in_step("1");
  one_node.env.insert(one_node.env.begin(), {"SLURM_JOB_NODELIST", "n01"});
  CHECK(one_node.job({"w"}).notes == Texts{});
  CHECK(in_step("1").spec({"--launcher", "slurm", "w"}).launcher == LauncherKind::kSlurm);
  CHECK(in_step("1").spec({"--nnodes", "2", "w"}).launcher == LauncherKind::kSlurm);
  // In the shell of salloc or srun --pty the job's nodes are used.
  CHECK(in_step("1", {{"SLURM_PTY_PORT", "4000"}}).spec({"w"}).launcher == LauncherKind::kSlurm);
  // In a batch script that was submitted inside a step, that step's variables are still set.
  CHECK(in_step("1(x3)").spec({"w"}).launcher == LauncherKind::kSlurm);
}

TEST_CASE("Without a Slurm job --launcher slurm is an error") {
  CHECK(FakeContext()
            .errors({"--launcher", "slurm", "w"})
            .front()
            .starts_with("ddplaunch: --launcher slurm needs a Slurm job, but SLURM_JOB_ID or "
                         "SLURM_JOB_NODELIST is not set; "));
}

TEST_CASE("mpirun in front of ddplaunch gives a warning") {
  FakeContext world;
  world.env.emplace_back("OMPI_COMM_WORLD_SIZE", "1");
  CHECK(world.job({"w"}).notes.empty());
  world.env.back().second = "2";
  CHECK(world.job({"w"}).notes ==
        Texts{"ddplaunch: warning: mpirun has started 2 copies of this program, and each starts a job of its "
              "own: omit "
              "mpirun, or give each its --node-rank and --master-addr (docs/users/per_node.md)"});
}
