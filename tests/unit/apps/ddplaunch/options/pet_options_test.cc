#include "apps/ddplaunch/options/pet_options.h"

#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/made_up_surroundings.h"

using ddp::launcher::LauncherKind;
using ddp::test::Env;
using ddp::test::Texts;
using ddp::test::World;

namespace {

World with(const Env& variables) {
  World world;
  world.env.insert(world.env.end(), variables.begin(), variables.end());
  return world;
}

}  // namespace

TEST_CASE("torchrun's variables are options, said once") {
  const auto job =
      with({{"PET_NPROC_PER_NODE", "3"}, {"PET_MAX_RESTARTS", "2"}, {"PET_STANDALONE", "1"}, {"PET_X", "y"}})
          .job({"w"});
  CHECK(job.spec.nproc.number == 3);
  CHECK(job.spec.max_restarts == 2);
  CHECK(job.spec.launcher == LauncherKind::kLocal);
  CHECK(job.notes ==
        Texts{"ddplaunch: options taken from the environment, as torchrun takes them: PET_NPROC_PER_NODE, "
              "PET_STANDALONE, PET_MAX_RESTARTS"});
}

TEST_CASE("The command line goes before them, under any name of the option") {
  const Env variables = {{"PET_NPROC_PER_NODE", "3"},
                         {"PET_RDZV_ID", "theirs"},
                         {"PET_TEE", "3"},
                         {"PET_SHUTDOWN_TIMEOUT", "9"},
                         {"PET_MASTER_ADDR", "10.0.0.9"}};
  const auto job = with(variables).job({"--num_gpus=2", "--job-id", "ours", "--log-dir", "d", "-t", "1",
                                        "--stop-grace=5", "--master-addr=127.0.0.1", "w"});
  CHECK(job.spec.nproc.number == 2);
  CHECK(job.spec.job_id == "ours");
  CHECK(job.spec.stop_grace == std::chrono::seconds(5));
  CHECK(job.notes == Texts{});
}

TEST_CASE("Empty variables and flags of 0 are no options") {
  const auto job = with({{"PET_NNODES", ""}, {"PET_STANDALONE", "0"}, {"PET_MODULE", "00"}}).job({"w"});
  CHECK(job.notes == Texts{});
  CHECK(with({{"PET_MODULE", "1"}}).spec({"pkg.train"}).command.kind ==
        ddp::launcher::WorkerCommand::Kind::kModule);
}

TEST_CASE("The only pod of a PyTorchJob is one node") {
  const ddp::launcher::JobSpec spec = with({{"PET_NNODES", "1"},
                                            {"PET_NODE_RANK", "0"},
                                            {"PET_MASTER_ADDR", "job-master-0"},
                                            {"PET_MASTER_PORT", "23456"},
                                            {"RANK", "0"},
                                            {"WORLD_SIZE", "1"},
                                            {"MASTER_ADDR", "job-master-0"},
                                            {"MASTER_PORT", "23456"}})
                                          .spec({"w"});
  CHECK(spec.hosts.size() == 1);
  CHECK(spec.launcher == LauncherKind::kLocal);
  CHECK(spec.master_port == 23456);
  CHECK(
      with({{"PET_NNODES", "1"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "a"}}).mistakes({"w"}).size() ==
      2);
  CHECK(with({{"PET_MASTER_ADDR", "a"}}).mistakes({"w"}).back() ==
        "ddplaunch: options taken from the environment, as torchrun takes them: PET_MASTER_ADDR");
}

TEST_CASE("What makes no sense in them is told, and where it came from") {
  CHECK(with({{"PET_STANDALONE", "yes"}}).mistakes({"w"}) ==
        Texts{"ddplaunch: PET_STANDALONE=yes: give 1 for --standalone, or 0; torchrun reads a number there, "
              "too"});
  CHECK(with({{"PET_NPROC_PER_NODE", "many"}}).mistakes({"w"}) ==
        Texts{"ddplaunch: --nproc-per-node many: give a whole number from 1 to 65535, or auto, gpu or cpu",
              "ddplaunch: options taken from the environment, as torchrun takes them: PET_NPROC_PER_NODE"});
  // Kubeflow's trainer sets these for one torchrun in each pod.
  const Texts pods =
      with({{"PET_NNODES", "4"}, {"PET_NODE_RANK", "1"}, {"PET_NPROC_PER_NODE", "1"}}).mistakes({"w"});
  REQUIRE(pods.size() == 3);
  CHECK(
      pods[0] ==
      "ddplaunch: --node-rank 1 needs --master-addr ADDR, where node 0 is; or set MASTER_ADDR on all nodes");
  CHECK(pods[1].starts_with("ddplaunch: --nnodes 4 needs hosts: "));
}
