#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::Verb;
using ddp::launcher::JobSpec;
using ddp::test::FakeContext;
using ddp::test::Texts;

namespace {

std::string hosts_of(const FakeContext& world, const Texts& args) {
  std::string text;
  for (const auto& host : world.spec(args).hosts)
    text += (text.empty() ? "" : " ") + host.name + (host.slots ? ':' + std::to_string(*host.slots) : "");
  return text;
}

}  // namespace

TEST_CASE("Hosts from Slurm") {
  FakeContext world;
  CHECK(
      world.errors({"--hosts-from", "slurm", "w"}) ==
      Texts{
          "ddplaunch: --hosts-from slurm: SLURM_JOB_NODELIST is not set; run ddplaunch inside a job (salloc, "
          "sbatch)"});
  world.env.emplace_back("SLURM_JOB_NODELIST", "gpu[01-02]");
  world.env.emplace_back("SLURM_TASKS_PER_NODE", "4(x2)");
  CHECK(hosts_of(world, {"--hosts-from", "slurm", "w"}) == "gpu01:4 gpu02:4");
  CHECK(hosts_of(world, {"--hosts-from", "env", "w"}) == "gpu01:4 gpu02:4");
  CHECK(hosts_of(world, {"--hosts-from", "slurm", "--include", "gpu02:0,2", "w"}) == "gpu02:2");
}

TEST_CASE("GPU counts that only one node reported are called a guess") {
  FakeContext world;
  world.env.emplace_back("SLURM_JOB_NODELIST", "gpu[01-02]");
  world.env.emplace_back("SLURM_TASKS_PER_NODE", "1(x2)");
  world.env.emplace_back("SLURM_GPUS_ON_NODE", "8");
  CHECK(hosts_of(world, {"--hosts-from", "slurm", "w"}) == "gpu01:8 gpu02:8");
  CHECK(world.job({"--hosts-from", "slurm", "w"}).notes ==
        Texts{"ddplaunch: assuming that every node has 8 GPUs, the SLURM_GPUS_ON_NODE of this node; "
              "--gpus-per-node in the job sets it for all nodes"});
}

TEST_CASE("A hostfile from standard input, which rank 0 then cannot have") {
  FakeContext world;
  world.stdin_has_data = true;
  world.standard_input = "a slots=2\nb\n";
  CHECK(hosts_of(world, {"--hostfile", "-", "w"}) == "a:2 b");
  CHECK_FALSE(world.spec({"--hostfile", "-", "w"}).stdin_to_rank0);
  CHECK(world.errors({"--hostfile", "-", "--stdin", "0", "w"}) ==
        Texts{"ddplaunch: --stdin 0 cannot be used with --hostfile -, which reads standard input"});
  CHECK(world.errors({"--hostfile", "-", "--nnodes", "3", "w"}) ==
        Texts{"ddplaunch: --nnodes 3: there are only 2 hosts in standard input"});
  world.standard_input = "a slots=x\n";
  CHECK(world.errors({"--hostfile", "-", "w"}) ==
        Texts{"ddplaunch: standard input:1:9: slots=x: \"x\" is not a number of slots (a whole number from 1 "
              "to 65535)"});
}

TEST_CASE("Hosts from other schedulers' variables") {
  FakeContext world;
  CHECK(world.errors({"--hosts-from", "env", "w"}) ==
        Texts{"ddplaunch: --hosts-from env: no variable of a scheduler names hosts; searched for "
              "SLURM_JOB_NODELIST, "
              "PBS_NODEFILE, LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS, LSB_HOSTS, PE_HOSTFILE, COBALT_NODEFILE, "
              "DLTS_HOSTFILE"});
  world.files["/pbs"] = "a\na\nb\n";
  world.files["/sge"] = "a 4 q@a U\n";
  world.files["/dlts"] = "a slots=4\n";
  const std::vector<std::pair<std::string, std::string>> rows[] = {
      {{"PBS_NODEFILE", "/pbs"}, {"", "a:2 b:1"}},      {{"LSB_DJOB_HOSTFILE", "/pbs"}, {"", "a:2 b:1"}},
      {{"LSB_MCPU_HOSTS", "a 4 b 8"}, {"", "a:4 b:8"}}, {{"LSB_HOSTS", "a b b"}, {"", "a:1 b:2"}},
      {{"PE_HOSTFILE", "/sge"}, {"", "a:4"}},           {{"COBALT_NODEFILE", "/pbs"}, {"", "a:2 b:1"}},
      {{"DLTS_HOSTFILE", "/dlts"}, {"", "a:4"}},
  };
  for (const auto& row : rows) {
    FakeContext one = world;
    one.env.push_back(row[0]);
    CAPTURE(row[0].first);
    CHECK(hosts_of(one, {"--hosts-from", "env", "w"}) == row[1].second);
  }
  world.env.emplace_back("PBS_NODEFILE", "/gone");
  CHECK(
      world.errors({"--hosts-from", "env", "w"}) ==
      Texts{
          "ddplaunch: --hosts-from env: the file that PBS_NODEFILE names: /gone: No such file or directory"});
}

TEST_CASE("Hosts from a file, and from standard input") {
  FakeContext world;
  world.files["hosts"] = "a:4\nb:4\n";
  CHECK(hosts_of(world, {"--hosts-from", "hosts", "w"}) == "a:4 b:4");
  CHECK(world.errors({"--hosts-from", "none", "w"}) ==
        Texts{"ddplaunch: --hosts-from none: No such file or directory; give slurm, env, - for standard "
              "input, or "
              "the name of a hostfile"});
  world.standard_input = "c[1-2] slots=2\n";
  world.stdin_has_data = true;
  const JobSpec spec = world.spec({"--hosts-from", "-", "w"});
  CHECK(spec.hosts.size() == 2);
  CHECK_FALSE(spec.stdin_to_rank0);
  CHECK(world.errors({"--hosts-from", "-", "--stdin", "0", "w"}) ==
        Texts{"ddplaunch: --stdin 0 cannot be used with --hosts-from -, which reads standard input"});
  world.standard_input = "c slots=x\n";
  CHECK(
      world.errors({"--hosts-from", "-", "w"}) ==
      Texts{
          "ddplaunch: standard input:1:9: slots=x: \"x\" is not a number of slots (a whole number from 1 to "
          "65535)"});
}

TEST_CASE("Subcommands") {
  FakeContext world;
  CHECK(world.job({"check"}).verb == Verb::kCheck);
  CHECK_FALSE(world.job({"check"}).worker_given);
  CHECK(world.job({"check", "--host", "a", "python", "x"}).spec.command.argv == Texts{"python", "x"});
  CHECK(world.job({"check", "python"}).worker_given);
  CHECK(world.job({"hosts", "--json"}).verb == Verb::kHosts);
  CHECK(world.job({"hosts", "--json"}).json);
  // Only the very first word is a subcommand.
  CHECK(world.job({"--", "check"}).verb == Verb::kRun);
  CHECK(world.job({"--", "check"}).spec.command.argv == Texts{"check"});
  CHECK(world.job({"--host", "a", "--", "check"}).spec.command.argv == Texts{"check"});
  CHECK(world.job({"check", "--collectives", "--min-busbw", "9.5"}).min_busbw == "9.5");
  CHECK(world.job({"check", "--deep"}).deep);
  CHECK(world.errors({"check", "--min-busbw", "0"}) ==
        Texts{"ddplaunch: --min-busbw 0: give GB/s, a number above 0",
              "ddplaunch: --min-busbw needs --collectives; to measure in a job use train bench"});
}
