#include "apps/ddplaunch/options/job_options.h"

#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::launcher::JobSpec;
using ddp::launcher::LauncherKind;
using ddp::test::FakeContext;
using ddp::test::Texts;

TEST_CASE("Hosts of a hostfile") {
  FakeContext world;
  world.files["hosts"] = "gpu[01-02] slots=8 identity=~/.ssh/lab\n";
  const JobSpec spec = world.spec({"--hostfile", "hosts", "w"});
  REQUIRE(spec.hosts.size() == 2);
  CHECK(spec.launcher == LauncherKind::kSsh);
  CHECK(spec.hosts[1].name == "gpu02");
  CHECK(spec.hosts[1].identity == "/home/ann/.ssh/lab");
}

TEST_CASE("No hostfile") {
  CHECK(FakeContext().errors({"--hostfile", "hosts", "w"}) ==
        Texts{"ddplaunch: --hostfile hosts: No such file or directory; write one host per line (gpu01 "
              "slots=8), or omit --hostfile to run on this machine"});
  FakeContext world;
  world.files["hosts"] = "unreadable";
  CHECK(world.errors({"--hostfile", "hosts", "w"}) ==
        Texts{"ddplaunch: --hostfile hosts: Permission denied"});
}

TEST_CASE("Empty hostfile") {
  FakeContext world;
  world.files["hosts"] = "# nothing\n\n";
  CHECK(world.errors({"--hostfile", "hosts", "w"}) ==
        Texts{"ddplaunch: hosts: no hosts in this file; write one host a line, for instance: gpu01 slots=8"});
}

TEST_CASE("slots=4x, a host twice, an unknown key") {
  FakeContext world;
  world.files["hosts"] = "a slots=2\nb slots=4x\n";
  CHECK(world.errors({"--hostfile", "hosts", "w"}) ==
        Texts{"ddplaunch: hosts:2:9: slots=4x: \"4x\" is not a number of slots (a whole number from 1 to "
              "65535)"});
  world.files["hosts"] = "a slots=2\nb\na slots=1 port=22\n";
  CHECK(world.errors({"--hostfile", "hosts", "w"}) ==
        Texts{"ddplaunch: hosts:3:1: host a is listed twice (first on line 1); lines with port= do not add "
              "up; give each host one entry with all of its slots"});
  world.files["hosts"] = "a slot=2\n";
  CHECK(world.errors({"--hostfile", "hosts", "w"}) ==
        Texts{"ddplaunch: hosts:1:3: unknown key slot; did you mean slots?"});
}

TEST_CASE("More processes than slots: one message names all short hosts") {
  FakeContext world;
  world.files["hosts"] = "a slots=2\nb slots=8\nc slots=1\nd\n";
  const Texts args = {"--hostfile", "hosts", "--nproc-per-node", "4", "w"};
  CHECK(world.errors(args) == Texts{"ddplaunch: --nproc-per-node 4 is more than the slots: a (hosts:1) has "
                                    "2, c (hosts:3) has 1; ask for fewer, "
                                    "raise slots= there, or add --oversubscribe"});
  Texts over = args;
  over.insert(over.begin(), "--oversubscribe");
  CHECK(world.spec(over).nproc.oversubscribe);
  CHECK(world.spec({"--hostfile", "hosts", "--nproc-per-node", "4", "--include", "b@d", "w"}).hosts.size() ==
        2);
  CHECK(world.errors({"--host", "a:2", "--nproc-per-node", "4", "w"}) ==
        Texts{"ddplaunch: --nproc-per-node 4 is more than the slots: a (--host) has 2; ask for fewer, raise "
              "slots= there, "
              "or add --oversubscribe"});
}

TEST_CASE("-n fills the slots of the hosts in their order") {
  FakeContext world;
  world.files["hosts"] = "a slots=4\nb gpus=0,1,2\nc slots=4\n";
  const auto shares = [&](const Texts& args) {
    const JobSpec spec = world.spec(args);
    Texts each;
    for (std::size_t i = 0; i < hosts_used(spec); ++i)
      each.push_back(spec.hosts[i].name + ':' + std::to_string(*spec.hosts[i].slots));
    return each;
  };
  CHECK(shares({"--hostfile", "hosts", "-n", "2", "w"}) == Texts{"a:2"});
  CHECK(shares({"--hostfile", "hosts", "-n", "6", "w"}) == Texts{"a:4", "b:2"});
  CHECK(shares({"--hostfile", "hosts", "-n", "11", "w"}) == Texts{"a:4", "b:3", "c:4"});
  CHECK(shares({"--hostfile", "hosts", "--include", "c:1,2@a", "-n", "5", "w"}) == Texts{"a:4", "c:1"});
  CHECK(
      world.errors({"--hostfile", "hosts", "-n", "12", "w"}) ==
      Texts{"ddplaunch: -n 12 is more than the 11 slots of the hosts: a (hosts:1) has 4, b (hosts:2) has 3, "
            "c (hosts:3) has 4; ask for fewer, raise slots= there, or add --oversubscribe"});
  CHECK(world.errors({"--host", "a:2,b", "-n", "2", "w"}) ==
        Texts{"ddplaunch: -n 2 fills the slots of the hosts, but these have no slots=: b (--host); give each "
              "host slots=, or none"});
}

TEST_CASE("-n is shared evenly without slots, with --nnodes and with --oversubscribe") {
  FakeContext world;
  CHECK(world.spec({"-n", "5", "w"}).nproc.number == 5);
  CHECK(world.spec({"--host", "a,b,c", "-n", "6", "w"}).nproc.number == 2);
  CHECK(world.spec({"--host", "a:4,b:4,c:4", "--nnodes", "2", "-n", "6", "w"}).nproc.number == 3);
  CHECK(world.spec({"--host", "a:2,b:2", "--oversubscribe", "-n", "6", "w"}).nproc.number == 3);
  CHECK(world.errors({"--host", "a,b", "-n", "5", "w"}) ==
        Texts{"ddplaunch: -n 5 is the total and cannot be divided evenly among 2 machines; correct it, or "
              "remove it and give each host slots= in the hostfile"});
  CHECK(
      world.errors({"--host", "a:4,b:2", "--nnodes", "2", "-n", "6", "w"}) ==
      Texts{"ddplaunch: -n 6, 3 on each host, is more than the slots: b (--host) has 2; ask for fewer, raise "
            "slots= there, or add --oversubscribe"});
}

TEST_CASE("-n contradicts nodes that may be lost") {
  FakeContext world;
  CHECK(world.errors({"-np", "4", "--nproc-per-node", "2", "w"}).size() == 1);
  CHECK(
      world.errors({"--host", "a,b,c", "--nnodes", "1:3", "-n", "6", "w"}) ==
      Texts{"ddplaunch: -n 6 cannot be used with --spares or --nnodes MIN:MAX: the number of workers changes "
            "with the nodes; use --nproc-per-node"});
  CHECK(world.errors({"-n", "0", "w"}) ==
        Texts{"ddplaunch: --ntasks 0: give a whole number from 1 to 10000000"});
}

TEST_CASE("Hosts that --nnodes leaves out need no slots") {
  FakeContext world;
  world.files["hosts"] = "b slots=8\na slots=2\n";
  CHECK(world.spec({"--hostfile", "hosts", "--nproc-per-node", "4", "--nnodes", "1", "w"}).max_nodes == 1);
}

TEST_CASE("max_slots is a limit for --oversubscribe too") {
  FakeContext world;
  world.files["hosts"] = "a slots=2 max_slots=3\n";
  CHECK(world.errors({"--hostfile", "hosts", "--oversubscribe", "--nproc-per-node", "4", "w"}) ==
        Texts{"ddplaunch: --nproc-per-node 4 is more than max_slots: a (hosts:1) has 3; ask for fewer, or "
              "raise it there"});
}

TEST_CASE("A long list of short hosts is abbreviated") {
  FakeContext world;
  world.files["hosts"] = "n[01-40] slots=1\n";
  const Texts errors = world.errors({"--hostfile", "hosts", "--nproc-per-node", "2", "w"});
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].find("n10 (hosts:1) has 1 and 30 more; ask") != std::string::npos);
}

TEST_CASE("Include and exclude") {
  FakeContext world;
  world.files["hosts"] = "a slots=4\nb slots=4\n";
  const JobSpec spec = world.spec({"--hostfile", "hosts", "--include", "b:1,3", "w"});
  REQUIRE(spec.hosts.size() == 1);
  CHECK(spec.hosts[0].devices == Texts{"1", "3"});
  CHECK(world.spec({"--hostfile", "hosts", "--exclude", "b", "w"}).hosts[0].name == "a");
  CHECK(world.errors({"--hostfile", "hosts", "--include", "a", "--exclude", "b", "w"}) ==
        Texts{"ddplaunch: --exclude cannot be used with --include; use one of them"});
  CHECK(world.errors({"--hostfile", "hosts", "--exclude", "a@b", "w"}) ==
        Texts{"ddplaunch: --exclude: no host is left to run on"});
  CHECK(world.errors({"--hostfile", "hosts", "--include", "c:0", "w"}) ==
        Texts{"ddplaunch: --include, column 1: host c is not in hosts; did you mean a?"});
  // As with DeepSpeed, these are devices of this machine.
  CHECK(world.spec({"--include", "localhost:0,2", "w"}).hosts[0].devices == Texts{"0", "2"});
  // Scripts pass an empty variable: it is no filter, as in DeepSpeed.
  for (const char* none : {"--include=", "--exclude=", "--deepspeed_inclusion_filter="})
    CHECK(world.spec({"--hostfile", "hosts", none, "w"}).hosts.size() == 2);
  CHECK(world.spec({"--hostfile", "hosts", "-i", "", "-e", "b", "w"}).hosts.size() == 1);
}

TEST_CASE("--launcher daemon with its port and token") {
  const JobSpec spec = FakeContext().spec({"--host", "a,b port=4000", "--launcher", "daemon", "--daemon-port",
                                           "5000", "--token-file", "/run/token", "w"});
  CHECK(spec.launcher == LauncherKind::kDaemon);
  CHECK(spec.daemon_port == 5000);
  CHECK(spec.token_file == "/run/token");
  CHECK_FALSE(spec.push);
  REQUIRE(spec.hosts.size() == 2);
  CHECK(spec.hosts[1].port == 4000);
  const JobSpec usual = FakeContext().spec({"--host", "a", "--launcher=daemon", "w"});
  CHECK(usual.daemon_port == 0);
  CHECK(usual.token_file.empty());
}

TEST_CASE("Daemons need hosts and start no wrapper") {
  CHECK(FakeContext().errors({"--launcher", "daemon", "w"}) ==
        Texts{"ddplaunch: --launcher daemon needs hosts: --hostfile FILE or --host LIST"});
  CHECK(
      FakeContext().errors({"--host", "a", "--launcher", "daemon", "--wrapper", "docker exec -i x",
                            "--daemon-port", "0", "w"}) ==
      Texts{
          "ddplaunch: --daemon-port 0: give a whole number from 1 to 65535",
          "ddplaunch: a daemon starts no wrapper (host a): run ddplaunchd --listen inside the container, or "
          "use --launcher ssh"});
}

TEST_CASE("An SSH key of a hostfile is reported as unused") {
  FakeContext world;
  world.files["hosts"] = "ann@a slots=2\nb slots=2\n";
  CHECK(world.job({"--hostfile", "hosts", "--launcher", "daemon", "w"}).notes ==
        Texts{"ddplaunch: user, identity and jump of the hosts have no effect with --launcher daemon"});
}
