#include "apps/ddplaunch/options/options.h"

#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::command_text;
using ddp::launcher::WorkerCommand;
using ddp::test::FakeContext;
using ddp::test::Texts;

TEST_CASE("--dry-run prints the plan, and no value of the environment") {
  FakeContext world;
  world.env.emplace_back("WANDB_API_KEY", "hush");
  world.files["hosts"] = "me@gpu01 slots=4 env:TOKEN=hush\ngpu02 slots=2 port=2222 gpus=0,2\ngpu03 slots=1\n";
  const Texts args = {"--hostfile", "hosts",       "--nnodes",  "2",        "--job-id", "run7",
                      "--env",      "SECRET=hush", "--dry-run", "train.py", "a b",      "--lr=1"};
  CHECK(world.text(args) ==
        "job run7, nothing is started\n"
        "files in /home/ann/.local/state/ddplaunch/jobs/run7.20261121-034500-ab12cd\n"
        "worker python3 -u train.py 'a b' --lr=1\n"
        "in /data/run\n"
        "over SSH\n"
        "\n"
        "node  host   slots  workers  ranks  from the list of hosts\n"
        "0     gpu01  4      4        0-3    user=me env:TOKEN\n"
        "1     gpu02  2      2        4-5    port=2222 gpus=0,2\n"
        "world size 6\n"
        "unused hosts: 1\n"
        "\n"
        "set for the workers: SECRET\n"
        "forwarded from here: PATH DATA WANDB_API_KEY\n"
        "\n"
        "options, and where they are given\n"
        "  --hostfile hosts  command line\n"
        "  --nnodes 2        command line\n"
        "  --job-id run7     command line\n"
        "  --env SECRET      command line\n"
        "all others have their defaults\n");
}

TEST_CASE("The plan shows a question mark for a value that only the node knows") {
  const std::string text = FakeContext().text({"--host", "a:2,b", "--dry-run", "train"});
  CHECK(text.find("0     a     2      2        0-1\n"
                  "1     b     any    ?        ?\n"
                  "? is counted by the node at the start: its GPUs, else one worker\n") != std::string::npos);
  const std::string any = FakeContext().text({"--nproc-per-node", "auto", "--dry-run", "train"});
  CHECK(any.find("? is counted by the node at the start: its GPUs, else its CPUs\n") != std::string::npos);
  const std::string cpu = FakeContext().text({"--nproc-per-node", "cpu", "--dry-run", "train"});
  CHECK(cpu.find("on this machine\n") != std::string::npos);
  CHECK(cpu.find("? is counted by the node at the start: its CPUs\n") != std::string::npos);
}

TEST_CASE("--dry-run with errors is refused like a run") {
  CHECK(FakeContext().errors({"--dry-run", "--nnodes", "x", "w"}).size() == 1);
}

TEST_CASE("The text of a command") {
  CHECK(command_text({WorkerCommand::Kind::kTrain, {"--lr", "0.1"}, ""}) == "train --lr 0.1");
  CHECK(command_text({WorkerCommand::Kind::kModule, {"pkg.mod"}, "/v/python"}) == "/v/python -u -m pkg.mod");
  CHECK(command_text({WorkerCommand::Kind::kProgram, {"./a", ""}, ""}) == "./a ''");
  CHECK(command_text({WorkerCommand::Kind::kProgram, {"./a", "b\nc"}, ""}) == "'./a' 'b\nc'");
}
