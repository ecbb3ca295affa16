#include "apps/ddplaunch/options/options.h"

#include "apps/ddplaunch/options/job_options.h"
#include "apps/ddplaunch/options/option_readers.h"
#include "base/program.h"
#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::absolute_path;
using ddp::is_job_id;
using ddp::is_network;
using ddp::read_port_range;
using ddp::launcher::FenceMode;
using ddp::launcher::JobSpec;
using ddp::launcher::LauncherKind;
using ddp::launcher::StoreMode;
using ddp::launcher::WorkerCommand;
using ddp::rendezvous::ProcsRule;
using ddp::test::Env;
using ddp::test::FakeContext;
using ddp::test::Texts;
using ddp::test::words;
using std::chrono::milliseconds;
using Kind = WorkerCommand::Kind;

TEST_CASE("Without any option: one node, this machine, the defaults") {
  const JobSpec spec = FakeContext().spec({"./prog", "x"});
  REQUIRE(spec.hosts.size() == 1);
  CHECK(spec.hosts[0].name == "localhost");
  CHECK_FALSE(spec.hosts[0].slots);
  CHECK(spec.launcher == LauncherKind::kLocal);
  CHECK(spec.max_nodes == 0);
  CHECK(spec.nproc.rule == ProcsRule::kUnset);
  CHECK(spec.command.kind == Kind::kProgram);
  CHECK(spec.command.argv == Texts{"./prog", "x"});
  CHECK(spec.job_id == "20261121-034500-ab12cd");
  CHECK(spec.job_dir == "/home/ann/.local/state/ddplaunch/jobs/20261121-034500-ab12cd");
  CHECK(spec.chdir == "/data/run");
  CHECK_FALSE(spec.chdir_given);
  CHECK(spec.start_timeout == milliseconds(120'000));
  CHECK(spec.stop_grace == milliseconds(25'000));
  CHECK(spec.failure_grace == milliseconds(15'000));
  CHECK(spec.node_timeout == milliseconds(15'000));
  CHECK(node_lease(spec) == milliseconds(35'000));
  CHECK(spec.output.label == "[{host}:{rank}] ");
  CHECK(spec.store == StoreMode::kAgent);
  CHECK_FALSE(spec.stdin_to_rank0);
}

TEST_CASE("The worker's name decides how the worker is run") {
  FakeContext world;
  auto command = [&](const Texts& args) { return world.spec(args).command; };
  CHECK(command({"train", "--lr", "0.1"}).kind == Kind::kTrain);
  CHECK(command({"train", "--lr", "0.1"}).argv == Texts{"--lr", "0.1"});
  CHECK(command({"train.py", "a"}).kind == Kind::kPython);
  CHECK(command({"train.py", "a"}).argv == Texts{"train.py", "a"});
  CHECK(command({"--no-python", "train.py"}).kind == Kind::kProgram);
  CHECK(command({"-m", "pkg.mod", "a"}).kind == Kind::kModule);
  CHECK(command({"--module", "pkg.mod", "a"}).argv == Texts{"pkg.mod", "a"});
  CHECK(command({"-m", "train"}).kind == Kind::kModule);
  CHECK(command({"./train"}).kind == Kind::kProgram);
  CHECK(command({"python", "train.py"}).kind == Kind::kProgram);
  CHECK(command({"--python", "/venv/bin/python", "train.py"}).python == "/venv/bin/python");
  CHECK(world.job({"--python", "python3.11", "./prog"}).notes ==
        Texts{"ddplaunch: --python has no effect: ./prog is started as it is"});
}

TEST_CASE("All arguments after the worker reach the worker byte for byte") {
  FakeContext world;
  const Texts tail = {"w",  "--nproc-per-node",   "9", "--",     "--hostfile=x",
                      "-h", "--nproc_per_node=2", "",  "\xff\n", "--bad"};
  CHECK(world.spec(tail).command.argv == tail);
  Texts with_options = tail;
  with_options.insert(with_options.begin(), {"--nproc_per_node", "2"});
  CHECK(world.spec(with_options).command.argv == tail);
  CHECK(world.spec({"--quiet", "--", "--help", "x"}).command.argv == Texts{"--help", "x"});
  CHECK(world.spec({"-", "x"}).command.argv == Texts{"-", "x"});
}

TEST_CASE("A note says that options of ddplaunch behind the worker belong to the worker") {
  FakeContext world;
  auto notes = [&](const Texts& args) { return world.job(args).notes; };
  CHECK(notes({"hello.py", "--nproc-per-node", "2"}) ==
        Texts{"ddplaunch: --nproc-per-node goes to hello.py: all words behind the worker belong to it; put "
              "options of ddplaunch before hello.py"});
  CHECK(notes({"python", "hello.py", "--lr", "1", "--nproc_per_node=2", "--nnodes", "2"}) ==
        Texts{"ddplaunch: --nproc-per-node, --nnodes go to python: all words behind the worker belong to "
              "it; put options of ddplaunch before python"});
  CHECK(notes({"-m", "pkg.train", "--nnodes=2"}).size() == 1);
  CHECK(notes({"./prog", "--hostfile", "h"}).size() == 1);
  // Options that programs have, too; given to both; meant for the worker.
  CHECK(notes({"hello.py", "--epochs", "2", "-n", "2", "--help", "--network", "resnet50"}).empty());
  CHECK(notes({"--max-restarts", "1", "hello.py", "--max-restarts", "2"}).empty());
  CHECK(notes({"--", "hello.py", "--nnodes", "2"}).empty());
  CHECK(notes({"hello.py", "--", "--nnodes", "2"}).empty());
}

TEST_CASE("A verb behind options is an error that says where it belongs") {
  FakeContext world;
  for (const std::string verb : {"run", "check", "hosts", "logs", "dashboard"}) {
    CHECK(world.errors({"-n", "2", verb}) ==
          Texts{"ddplaunch: a verb comes first: ddplaunch " + verb +
                " [options]; a program of this name runs with `ddplaunch [options] -- " + verb + '`'});
    CHECK(world.spec({"-n", "2", "--", verb}).command.argv == Texts{verb});
    CHECK(world.spec({"-m", verb}).command.argv == Texts{verb});
  }
}

TEST_CASE("A dash that only looks like the - of options is named") {
  FakeContext world;
  for (const std::string word : {"\u2013n", "\u2014nproc-per-node", "\u2212n"}) {
    CHECK(world.errors({"-n", "2", word, "3", "w"}) ==
          Texts{"ddplaunch: the worker " + word +
                " begins with a dash that is not the - of options; type it again, or write -- before a "
                "program of this name"});
    CHECK(world.spec({"--", word}).command.argv == Texts{word});
  }
  CHECK(world.errors({"\u00a0train.py"}) ==
        Texts{"ddplaunch: the worker \u00a0train.py: type it again, or write -- before a program of this "
              "name; the text has a no-break space (U+00A0)"});
}

TEST_CASE("Several programs in one command line are an error, as there is one worker") {
  FakeContext world;
  for (const Texts& words :
       {Texts{"-n", "2", "a", ":", "-n", "2", "b"}, Texts{"-n", "2", "a", ":", "b"},
        Texts{"a", "x", ":", "./b", "--lr", "1"}, Texts{"a", "--sep", ":", "-n", "2", "b"},
        Texts{"a", "-d", ":", "x", ":", "b"}, Texts{"a", ":", "b", "--", "c"}}) {
    CHECK(
        world.errors(words) ==
        Texts{"ddplaunch: the word : begins another program in mpirun, and ddplaunch has one worker for all "
              "ranks; start a script that chooses by RANK; if the : belongs to a, write -- before a"});
  }
  CHECK(world.spec({"cut", "-d", ":", "-f", "1"}).command.argv == Texts{"cut", "-d", ":", "-f", "1"});
  CHECK(world.spec({"a", "--sep", ":", "b"}).command.argv == Texts{"a", "--sep", ":", "b"});
  CHECK(world.spec({"-n", "2", "--", "a", ":", "b"}).command.argv == Texts{"a", ":", "b"});
  CHECK(world.spec({"a", "--", ":", "b"}).command.argv == Texts{"a", "--", ":", "b"});
  CHECK(world.spec({"sh", "-c", ":"}).command.argv == Texts{"sh", "-c", ":"});
  CHECK(world.spec({"a", "x:y", "b"}).command.argv == Texts{"a", "x:y", "b"});
}

TEST_CASE("Dashes equal underscores, and = equals a blank") {
  FakeContext world;
  for (const Texts& spelling : {Texts{"--nproc-per-node", "3"}, Texts{"--nproc_per_node", "3"},
                                Texts{"--nproc_per_node=3"}, Texts{"--nproc-per_node=3"}}) {
    Texts args = spelling;
    args.emplace_back("w");
    CHECK(world.spec(args).nproc.number == 3);
  }
  CHECK(world.spec({"--env", "A_B=c-d_e", "w"}).explicit_env == Env{{"A_B", "c-d_e"}});
  CHECK(world.spec({"--env=A=b=c", "w"}).explicit_env == Env{{"A", "b=c"}});
}

TEST_CASE("The last value of an option counts, and lists add up") {
  FakeContext world;
  CHECK(world.spec({"--nproc-per-node", "3", "--nproc-per-node", "4", "w"}).nproc.number == 4);
  CHECK(world.spec({"--host", "a", "--host", "[::1],c", "w"}).hosts.size() == 3);
  CHECK(world.spec({"--host", "[::1]", "w"}).hosts[0].name == "::1");
}

TEST_CASE("A command line without a worker is an error") {
  CHECK(FakeContext().errors({"--nproc-per-node", "4"}) ==
        Texts{"ddplaunch: no worker given; usage: ddplaunch [options] WORKER [arguments of the worker]"});
  CHECK(
      FakeContext().errors({}) ==
      Texts{"ddplaunch: no worker given; usage: ddplaunch [options] WORKER [arguments of the worker]",
            "ddplaunch: example: ddplaunch --nproc-per-node 2 train (the bundled trainer; or your train.py)",
            "ddplaunch: ddplaunch --help shows what it can do"});
  CHECK(FakeContext().errors({"--"}).size() == 1);
  CHECK(FakeContext().errors({""}) == Texts{"ddplaunch: the worker's name is empty"});
}

TEST_CASE("Help and version") {
  FakeContext world;
  CHECK(world.text({"--version"}).starts_with("ddplaunch " + std::string(ddp::version()) + "\ncommit: "));
  CHECK(world.text({"-V", "--bad"}) == world.text({"--version"}));
  const std::string brief = world.text({"-h"});
  CHECK(brief == world.text({"--hostfile", "x", "--help"}));
  CHECK(std::ranges::count(brief, '\n') <= 40);
  for (const ddp::VerbRow& verb : ddp::verbs()) {
    CHECK(brief.find("\n  " + std::string(verb.name) + ' ') != std::string::npos);
    CHECK(ddp::verb_name(verb.verb) == verb.name);
  }
  for (const char* option : {"--hostfile FILE ", "--nproc-per-node N", "--detach "})
    CHECK(brief.find(std::string("\n  ") + option) != std::string::npos);
  for (const char* verb : {"run", "check", "hosts"}) {
    const std::string own = world.text({verb, "--help"});
    CHECK(own.starts_with(std::string("usage: ddplaunch ") + verb + ' '));
    CHECK((own.find("--json") == std::string::npos) == (std::string(verb) == "run"));
  }
  CHECK(world.text({"check", "-h"}).find("--collectives") != std::string::npos);
  CHECK(world.text({"check", "--help"}).find("only with --collectives") != std::string::npos);
  const std::string help = world.text({"--help", "all"});
  for (const char* group :
       {"\nHosts:\n", "\nStart:\n", "\nWorker:\n", "\nFailure:\n", "\nOutput:\n", "\nJob:\n"}) {
    CHECK(help.find(group) != std::string::npos);
  }
  std::size_t examples = 0;
  for (std::size_t at = 0; (at = help.find("  Example: ddplaunch ", at)) != std::string::npos; ++at)
    ++examples;
  CHECK(examples == 6);
  CHECK(help.find("  --nproc-per-node N|auto|gpu|cpu\n") != std::string::npos);
}

TEST_CASE("Sizes") {
  FakeContext world;
  auto procs = [&](const std::string& text) { return world.spec({"--nproc-per-node", text, "w"}).nproc; };
  CHECK(procs("auto").rule == ProcsRule::kAuto);
  CHECK(procs("gpu").rule == ProcsRule::kGpu);
  CHECK(procs("cpu").rule == ProcsRule::kCpu);
  CHECK(procs("65535").number == 65535);
  for (const char* bad : {"0", "-1", "4x", "65536", "xpu"}) {
    CHECK(world.errors({"--nproc-per-node", bad, "w"}) ==
          Texts{"ddplaunch: --nproc-per-node " + std::string(bad) +
                ": give a whole number from 1 to 65535, or auto, gpu or cpu"});
  }
  CHECK(world.spec({"--host", "a,b,c", "--nnodes", "2", "w"}).max_nodes == 2);
  CHECK(world.spec({"--nnodes", "1:1", "w"}).max_nodes == 1);
  Texts many;
  for (int i = 0; i < 1001; ++i)
    many.insert(many.end(), {"--store-allow", "10.0.0.1"});
  many.emplace_back("w");
  CHECK(world.errors(many) ==
        Texts{"ddplaunch: --store-allow is given 1001 times; at most 1000 are possible; name networks "
              "(10.1.0.0/16)"});
  CHECK(world.spec({"--store-allow", "10.1.0.0/16", "--store-allow", "fd00::1", "w"}).store_allow ==
        Texts{"10.1.0.0/16", "fd00::1"});
  CHECK(
      world.errors({"--store-allow", "eth0", "w"}) ==
      Texts{"ddplaunch: --store-allow eth0: give an address or a network (10.1.0.7, 10.1.0.0/16, fd00::/8)"});
  // The store's filter parses none of these texts, and an empty filter would admit every address.
  for (const char* text : {"010.1.0.1", "10.1.0.00/16", "fe80::1%", "10.1.0.1%eth0", "::ffff:010.0.0.1"}) {
    INFO(text);
    CHECK(world.errors({"--store-allow", text, "w"}).size() == 1);
  }
  CHECK(world.spec({"--nnodes", "1:4", "w"}).min_nodes == 1);
  const JobSpec elastic = world.spec({"--host", "a,b,c", "--nnodes", "2:3", "--scale-up", "now", "w"});
  CHECK(elastic.min_nodes == 2);
  CHECK(elastic.max_nodes == 3);
  CHECK(elastic.max_restarts == 3);
  CHECK(elastic.scale_up_now);
  CHECK(world.spec({"--host", "a,b,c", "--spares", "1", "--max-restarts", "0", "w"}).max_nodes == 2);
  CHECK(world.spec({"--host", "a,b,c", "--spares", "1", "--max-restarts", "0", "w"}).max_restarts == 0);
  CHECK(world.spec({"--host", "a,b,c", "--spares", "1", "w"}).spares == 1);
  CHECK(world.errors({"--host", "a,b", "--nnodes", "2", "--spares", "1", "w"}) ==
        Texts{"ddplaunch: --spares 1: with 2 nodes there must be 3 hosts, and there are only 2"});
  CHECK(world.errors({"--scale-up", "soon", "w"}) ==
        Texts{"ddplaunch: unknown --scale-up \"soon\" (next, now)"});
  CHECK(world.spec({"w"}).fence == FenceMode::kRank0);
  CHECK(world.spec({"--fence", "rank0", "w"}).fence == FenceMode::kRank0);
  CHECK(world.spec({"--fence", "all", "w"}).fence == FenceMode::kAll);
  CHECK(world.spec({"--fence", "off", "w"}).fence == FenceMode::kOff);
  CHECK(world.errors({"--fence", "5s", "w"}) == Texts{"ddplaunch: unknown --fence \"5s\" (rank0, all, off)"});
  CHECK(world.errors({"--nnodes", "4:1", "w"}) ==
        Texts{"ddplaunch: --nnodes 4:1: give a number of nodes, or MIN:MAX with MIN at most MAX"});
  CHECK(world.errors({"--nnodes", "two", "w"}) ==
        Texts{"ddplaunch: --nnodes two: give a number of nodes, or MIN:MAX with MIN at most MAX"});
  CHECK(world.errors({"--nnodes", "0", "w"}) ==
        Texts{"ddplaunch: --nnodes 0: give a number of nodes, or MIN:MAX with MIN at most MAX"});
  CHECK(world.errors({"--host", "a,b", "--nnodes", "3", "w"}) ==
        Texts{"ddplaunch: --nnodes 3: there are only 2 hosts in --host"});
  CHECK(world.errors({"--nnodes", "2", "w"}) ==
        Texts{"ddplaunch: --nnodes 2 needs hosts: --hostfile FILE or --host LIST names them; without, there "
              "is only this "
              "machine; or start one ddplaunch on each node, with --node-rank and --master-addr "
              "(docs/users/per_node.md)"});
}

TEST_CASE("Options about the start of the job") {
  FakeContext world;
  world.files["ssh.conf"] = "";
  Texts args = words(
      "--host a --launcher ssh --ssh-config ssh.conf --ssh-localhost --accept-new-host-keys --agent "
      "bin/ddplaunchd "
      "--start-timeout 2m --network 10.1.0.0/16 --master-port 29500 --port-range 29000-29999 --store worker");
  args.insert(args.end(), {"--ssh-command", "ssh -o 'X Y'", "w"});
  const JobSpec spec = world.spec(args);
  CHECK(spec.launcher == LauncherKind::kSsh);
  CHECK(spec.ssh_config == "ssh.conf");
  CHECK(spec.ssh_command == Texts{"ssh", "-o", "X Y"});
  CHECK(spec.ssh_localhost);
  CHECK(spec.accept_new_host_keys);
  CHECK(spec.agent_path == "/data/run/bin/ddplaunchd");
  CHECK(spec.start_timeout == milliseconds(120'000));
  CHECK(spec.network == "10.1.0.0/16");
  CHECK(spec.master_port == 29500);
  CHECK(spec.port_range == std::pair<std::uint16_t, std::uint16_t>{29000, 29999});
  CHECK(spec.store == StoreMode::kWorker);
  CHECK(world.spec({"--agent", "ddplaunchd", "w"}).agent_path == "ddplaunchd");
  CHECK(world.spec({"w"}).push);
  CHECK_FALSE(world.spec({"--no-push", "w"}).push);
  CHECK(world.spec({"--ssh-config", "none", "w"}).ssh_config == "none");
  CHECK(world.spec({"--store", "agent", "w"}).store == StoreMode::kAgent);
  CHECK(world.spec({"--ssh-localhost", "w"}).launcher == LauncherKind::kSsh);
}

TEST_CASE("A port outside the valid range is an error") {
  for (const char* port : {"19999", "20101", "1", "65535"}) {
    CHECK(FakeContext().errors({"--master-port", port, "--port-range", "20000-20100", "w"}) ==
          Texts{"ddplaunch: --master-port " + std::string(port) +
                " is not in --port-range 20000-20100; omit one of them, or use matching values"});
  }
  for (const char* port : {"20000", "20100", "0"})
    CHECK(FakeContext().spec({"--master-port", port, "--port-range", "20000-20100", "w"}).port_range);
}

TEST_CASE("A word with line feeds or control characters is reported on one line") {
  FakeContext world;
  world.files["c\n.yaml"] = "distributed_type: \"a\\nb\"\n";
  const Texts reported = world.errors(
      {"--host", "a\nb", "--launcher", "x\ny", "--network", "e\nth", "--stdin", "\x1b[2J", "--env", "A\nB",
       "--job-id", "a\tb", "--hostfile", "no\nfile", "--nope\r=1", "--accelerate-config", "c\n.yaml", "w"});
  CHECK(reported.size() == 9);
  for (const std::string& line : reported) {
    CAPTURE(line);
    CHECK(line.find_first_of("\n\r\t\x1b") == std::string::npos);
  }
  CHECK(world.errors({"--stdin", "a\nddplaunch: exit 0: \x1b[2J", "w"}) ==
        Texts{"ddplaunch: unknown --stdin \"a\\nddplaunch: exit 0: \\x1b[2J\" (0, none)"});
  CHECK(world.errors({"--env", "A\nB", "w"}) ==
        Texts{"ddplaunch: --env A\\nB: A\\nB is not set here; write --env A\\nB=VALUE"});
}

TEST_CASE("An error names an invisible character in the user's words") {
  FakeContext world;
  CHECK(world.errors({"--nproc-per-node", "2\xC2\xA0", "w"}) ==
        Texts{"ddplaunch: --nproc-per-node 2\xC2\xA0: give a whole number from 1 to 65535, or auto, gpu or "
              "cpu; the text "
              "has a no-break space (U+00A0)"});
  CHECK(world.errors({"--nnodes\xE2\x80\x8B=2", "w"})
            .front()
            .ends_with("; the text has an invisible character U+200B"));
  CHECK(world.errors({"--nproc\xC2\xA0-per-node=2", "w"})
            .front()
            .ends_with("; the text has a no-break space (U+00A0)"));
}

TEST_CASE("--wrapper applies to all hosts without a wrapper of their own") {
  FakeContext world;
  world.files["hosts"] = "a\nb wrapper=\"enter b\"\n";
  const JobSpec spec = world.spec({"--hostfile", "hosts", "--wrapper", "docker exec -i 'my box'", "w"});
  CHECK(spec.hosts[0].wrapper == Texts{"docker", "exec", "-i", "my box"});
  CHECK(spec.hosts[1].wrapper == Texts{"enter", "b"});
  CHECK(world.spec({"--wrapper", "enter", "w"}).hosts[0].wrapper == Texts{"enter"});
  CHECK(world.errors({"--wrapper", " ", "w"}) == Texts{"ddplaunch: --wrapper  : it names no program"});
  CHECK(world.errors({"--wrapper", "a 'b", "w"}) ==
        Texts{"ddplaunch: --wrapper a 'b: the quote ' is not closed"});
}

TEST_CASE("Wrong values of the start options are errors") {
  CHECK(FakeContext().errors({"--host", "a", "--launcher", "rsh", "--ssh-config", "nowhere", "--ssh-command",
                              "ssh 'x", "--start-timeout", "soon", "--network", "10.1.0.0", "--master-port",
                              "http", "--port-range", "200-100", "--store", "redis", "w"}) ==
        Texts{"ddplaunch: unknown --launcher \"rsh\" (ssh, slurm, daemon, local, pdsh)",
              "ddplaunch: --ssh-command ssh 'x: the quote ' is not closed",
              "ddplaunch: --start-timeout soon: give a time like 500ms, 15s, 2m or 1h",
              "ddplaunch: --network 10.1.0.0: give a network like 10.1.0.0/16, or the name of an interface",
              "ddplaunch: --master-port http: give a whole number from 0 to 65535",
              "ddplaunch: --port-range 200-100: give two ports from 1 to 65535, lower one first: 30000-30100",
              "ddplaunch: unknown --store \"redis\" (agent, worker)",
              "ddplaunch: --ssh-config nowhere: No such file or directory"});
  CHECK(FakeContext().errors({"--ssh-command", " ", "w"}) ==
        Texts{"ddplaunch: --ssh-command  : it names no program"});
  CHECK(FakeContext().errors({"--launcher", "ssh", "w"}) ==
        Texts{"ddplaunch: --launcher ssh (or pdsh) needs hosts: --hostfile FILE or --host LIST"});
  CHECK(FakeContext().errors({"--launcher", "pdsh", "w"}) ==
        Texts{"ddplaunch: --launcher ssh (or pdsh) needs hosts: --hostfile FILE or --host LIST"});
  CHECK(FakeContext().spec({"--host", "a env:X=1", "--host", "b", "w"}).hosts.size() == 2);
}

TEST_CASE("--launcher local is only for this machine") {
  FakeContext world;
  world.files["hosts"] = "localhost slots=2\ngpu01 slots=8\ngpu02 slots=8\n";
  CHECK(world.errors({"--launcher", "local", "--hostfile", "hosts", "w"}) ==
        Texts{"ddplaunch: --launcher local (or --standalone) starts on this machine only, not on gpu01 "
              "(hosts:2), gpu02 "
              "(hosts:3); omit it, or omit the hosts"});
  CHECK(world.spec({"--launcher", "local", "--host", "localhost,127.0.0.2:2", "w"}).launcher ==
        LauncherKind::kLocal);
}

TEST_CASE("Each rule between options is checked") {
  struct Row {
    Texts args;
    std::string error;
  };
  const std::string slurm = "--launcher slurm, which starts the nodes with srun";
  const std::string daemon = " cannot be used with --launcher daemon, which reaches the nodes without SSH";
  const std::string node = " cannot be used with one ddplaunch per node; ";
  const std::string list = "; --include selects hosts of a hostfile";
  const Row rows[] = {
      {{"--hostfile", "hosts", "--host", "a"}, "--host cannot be used with --hostfile" + list},
      {{"--hostfile", "hosts", "--hosts-from", "hosts"},
       "--hosts-from cannot be used with --hostfile" + list},
      {{"--host", "a", "--hosts-from", "hosts"}, "--hosts-from cannot be used with --host" + list},
      {{"--include", "a", "--exclude", "b", "--hostfile", "hosts"},
       "--exclude cannot be used with --include; use one of them"},
      {{"-np", "4", "--nproc-per-node", "2"},
       "--ntasks cannot be used with --nproc-per-node: -n counts the workers of all hosts, --nproc-per-node "
       "those of each host; omit one of them"},
      {{"--host", "a", "--daemon-port", "5000"},
       "--daemon-port is only for --launcher daemon, which reaches nodes where ddplaunchd --listen runs"},
      {{"--host", "a", "--launcher", "slurm", "--ssh-command", "ssh"},
       "--ssh-command cannot be used with " + slurm},
      {{"--host", "a", "--launcher", "daemon", "--ssh-command", "ssh"}, "--ssh-command" + daemon},
      {{"--host", "a", "--launcher", "daemon", "--ssh-config", "hosts"}, "--ssh-config" + daemon},
      {{"--host", "a", "--launcher", "daemon", "--accept-new-host-keys"}, "--accept-new-host-keys" + daemon},
      {{"--host", "a", "--launcher", "daemon", "--agent", "/opt/ddplaunchd"},
       "--agent cannot be used with --launcher daemon: each daemon starts the ddplaunchd beside it; install "
       "this "
       "version on the nodes"},
      {{"--standalone", "--ssh-localhost"},
       "--ssh-localhost cannot be used with --launcher local (or --standalone), which starts each node as a "
       "process here"},
      {{"-m", "--no-python"}, "--no-python cannot be used with --module: a module is run by python"},
      {{"--quiet", "-v"}, "--verbose cannot be used with --quiet"},
      {{"--nnodes", "2", "--node-rank", "0", "--master-addr", "n0", "--detach"},
       "--detach" + node + "use nohup"},
      {{"--nnodes", "2", "--node-rank", "0", "--master-addr", "n0", "--wrapper", "x"},
       "--wrapper" + node + "start each ddplaunch inside the wrapper instead"},
      {{"--nnodes", "2", "--node-rank", "0", "--master-addr", "n0", "--include", "a"},
       "--include" + node + "do not start it on the excluded nodes"},
      {{"--nnodes", "2", "--node-rank", "0", "--master-addr", "n0", "--exclude", "a"},
       "--exclude" + node + "do not start it on the excluded nodes"},
      {{"--nnodes", "2", "--node-rank", "0", "--master-addr", "n0", "--avoid-bad-hosts"},
       "--avoid-bad-hosts cannot be used with one ddplaunch per node, whose nodes come by themselves"},
      {{"--detach", "--stdin", "0"},
       "--detach cannot be used with --stdin 0: a detached job leaves standard input"},
      {{"--detach", "--report", "-"}, "--detach cannot be used with --report -; name a file"},
      {{"check", "--detach"}, "--detach cannot be used with ddplaunch check, which starts no job"},
      {{"hosts", "--dry-run"},
       "--dry-run cannot be used with ddplaunch hosts, which starts no worker; omit --dry-run, or omit the "
       "verb for "
       "a plan that contacts no host"},
      {{"--json"},
       "--json is only for ddplaunch check or ddplaunch hosts; --jsonl writes the workers' lines as JSON, "
       "--report "
       "the end of the job"},
      {{"--metrics-linger", "1m"}, "--metrics-linger needs --metrics-listen"},
      {{"hosts", "--deep"}, "--deep is only for ddplaunch check; to run it as a job use train health"},
      {{"--collectives"}, "--collectives is only for ddplaunch check; to run it as a job use train bench"},
      {{"--history"}, "--history is only for ddplaunch hosts; ddplaunch hosts --history prints them"},
      {{"check", "--forget", "gpu07"},
       "--forget is only for ddplaunch hosts; ddplaunch hosts --forget HOST does it"},
      {{"check", "--min-busbw", "9"},
       "--min-busbw needs --collectives; to measure in a job use train bench"},
  };
  FakeContext world;
  world.files["hosts"] = "a\nb\n";
  world.env.insert(world.env.end(), {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[1-3]"}});
  for (const Row& row : rows) {
    Texts args = row.args;
    args.emplace_back("w");
    const Texts errors = world.errors(args);
    CAPTURE(row.error, errors);
    REQUIRE_FALSE(errors.empty());
    CHECK(errors.front() == "ddplaunch: " + row.error);
  }
  std::size_t rules = 0;
  for (const auto& group : ddp::ddplaunch_option_groups()) {
    for (const ddp::Option& option : group.options)
      rules += option.not_with.size() + (option.only_with.others.empty() ? 0 : 1);
  }
  CHECK(rules == std::size(rows) - 1);  // one row for each, and one more for the two of --hosts-from
  const ddp::JobOptions options("/");
  CHECK(options.table.find("--hosts-from")->rules_text() == "Not with `--hostfile` or `--host`.");
  CHECK(options.table.find("--deep")->rules_text() == "Only with `ddplaunch check`.");
}

TEST_CASE("The place of the metrics is a numeric address and a port") {
  const FakeContext world;
  CHECK(world.job({"w"}).registration.metrics.address.empty());
  const auto metrics =
      world.job({"--metrics-listen", "[::1]:9400", "--metrics-linger", "1m", "w"}).registration.metrics;
  CHECK(metrics.address == "::1");
  CHECK(metrics.port == 9400);
  CHECK(metrics.linger == std::chrono::minutes(1));
  for (const char* const text : {"127.0.0.1", "::1:80", ":80", "127.0.0.1:99999", "127.0.0.1:"}) {
    CHECK(world.errors({"--metrics-listen", text, "w"}) ==
          Texts{"ddplaunch: --metrics-listen " + std::string(text) +
                ": give ADDRESS:PORT, such as 127.0.0.1:8080 or [::1]:8080"});
  }
}

TEST_CASE("Settings for all jobs may hold options without an effect on this one") {
  FakeContext world;
  const std::string settings = "/home/ann/.config/ddplaunch/config.yaml";
  world.env = {{"HOME", "/home/ann"}};
  world.files[settings] = "ssh-command: ssh -v\ndaemon-port: 5000\nverbose: true\n";
  CHECK(world.spec({"--host", "a", "--launcher", "daemon", "w"}).verbose);
  CHECK(world.spec({"--host", "a", "w"}).daemon_port == 5000);
  CHECK_FALSE(world.spec({"--quiet", "w"}).verbose);
  world.files[settings] = "agent: /opt/ddplaunchd\n";
  CHECK(world.errors({"--host", "a", "--launcher", "daemon", "w"}).size() == 2);
}

TEST_CASE("Options about failure and output") {
  FakeContext world;
  const JobSpec spec = world.spec({"--stop-grace", "500ms", "--node-timeout", "30", "--master-timeout", "1h",
                                   "--label", "{rank}: ", "--quiet", "w"});
  CHECK(spec.stop_grace == milliseconds(500));
  CHECK(spec.failure_grace == milliseconds(500));
  CHECK(spec.node_timeout == milliseconds(30'000));
  CHECK(spec.master_timeout == milliseconds(3'600'000));
  CHECK(spec.output.label == "{rank}: ");
  CHECK(spec.quiet);
  CHECK(world.spec({"--label", "", "w"}).output.label.empty());
  CHECK(world.spec({"--label=", "w"}).output.label.empty());
  CHECK(world.spec({"--label=none", "w"}).output.label.empty());
  CHECK(world.spec({"--stop-grace", "0", "w"}).stop_grace == milliseconds(0));
  CHECK(world.job({"-v", "w"}).spec.verbose);
  CHECK(world.job({"--verbose", "w"}).spec.verbose);
  CHECK_FALSE(world.job({"w"}).spec.verbose);
  CHECK(world.errors({"--node-timeout", "1s", "w"}) ==
        Texts{"ddplaunch: --node-timeout 1s is too short; at least 2000ms"});
  CHECK(world.errors({"--start-timeout", "0", "w"}) ==
        Texts{"ddplaunch: --start-timeout 0 is too short; at least 1ms"});
  const Texts label = world.errors({"--label", "{hots}", "w"});
  REQUIRE(label.size() == 1);
  CHECK(label[0].starts_with("ddplaunch: --label, column 1: "));
}

TEST_CASE("Options about restarts, hangs and the report") {
  FakeContext world;
  const JobSpec plain = world.spec({"w"});
  CHECK(plain.max_restarts == 0);
  CHECK(plain.restart_backoff == milliseconds(1'000));
  CHECK(plain.hang_timeout == milliseconds(0));
  CHECK(plain.report_stalls == milliseconds(600'000));
  CHECK(world.spec({"--report-stalls", "0", "w"}).report_stalls == milliseconds(0));
  CHECK(world.spec({"--stdin", "0", "w"}).report_stalls == milliseconds(0));  // somebody types there
  CHECK(plain.report_path.empty());
  world.directories = {"/var/out"};
  const JobSpec spec = world.spec({"--max-restarts", "3", "--restart-backoff", "250ms", "--hang-timeout",
                                   "10m", "--report", "/var/out/end.json", "w"});
  CHECK(spec.max_restarts == 3);
  CHECK(spec.restart_backoff == milliseconds(250));
  CHECK(spec.hang_timeout == milliseconds(600'000));
  CHECK(!spec.hang_by_steps);
  for (const auto& elastic :
       {world.spec({"--max-restarts", "1", "w"}), world.spec({"--scale-up", "now", "w"})}) {
    CHECK(elastic.hang_timeout == milliseconds(600'000));
    CHECK(elastic.hang_by_steps);
  }
  CHECK(world.spec({"--max-restarts", "1", "--hang-timeout", "0", "w"}).hang_timeout == milliseconds(0));
  CHECK(spec.report_path == "/var/out/end.json");
  CHECK(world.spec({"--report", "end.json", "w"}).report_path == "/data/run/end.json");
  CHECK(world.spec({"--report", "-", "w"}).report_path == "-");
  CHECK_FALSE(spec.no_diagnosis);
  CHECK(world.spec({"--no-diagnosis", "w"}).no_diagnosis);
  const auto watch = world.spec({"--watch", "a=b=fail", "--watch", "c=report", "w"}).watch;
  REQUIRE(watch.size() == 2);
  CHECK(watch[0].pattern == "a=b");
  CHECK(watch[0].action == ddp::launcher::WatchRule::Action::kFail);
  CHECK(watch[1].action == ddp::launcher::WatchRule::Action::kReport);
  CHECK(world.errors({"--watch", "a=kill", "w"}) ==
        Texts{"ddplaunch: --watch a=kill: give REGEX=ACTION, and as ACTION report, hang or fail"});
  CHECK(world.errors({"--watch", "(a=hang", "w"}) ==
        Texts{"ddplaunch: --watch (a=hang: position 1: this ( is not closed"});
  CHECK(world.spec({"--hang-timeout", "0", "--restart-backoff", "0", "w"}).hang_timeout == milliseconds(0));
  for (const char* bad : {"-1", "some", "1.5", "1000001", "3x"}) {
    CHECK(world.errors({"--max-restarts", bad, "w"}) ==
          Texts{"ddplaunch: --max-restarts " + std::string(bad) + ": give a whole number from 0 to 1000000"});
  }
  CHECK(world.errors({"--restart-backoff", "soon", "w"}) ==
        Texts{"ddplaunch: --restart-backoff soon: give a time like 500ms, 15s, 2m or 1h"});
  CHECK(world.errors({"--hang-timeout", "10ms", "w"}) ==
        Texts{"ddplaunch: --hang-timeout 10ms is too short; at least 1000ms"});
  CHECK(world.errors({"--report", "none/end.json", "w"}) ==
        Texts{"ddplaunch: --report none/end.json cannot be written: /data/run/none: No such file or "
              "directory"});
}

TEST_CASE("Standard input goes to rank 0 when it is a pipe or a file") {
  FakeContext world;
  CHECK(world.spec({"--stdin", "0", "w"}).stdin_to_rank0);
  world.stdin_has_data = true;
  CHECK(world.spec({"w"}).stdin_to_rank0);
  CHECK_FALSE(world.spec({"--stdin", "none", "w"}).stdin_to_rank0);
  CHECK(world.errors({"--stdin", "all", "w"}) == Texts{"ddplaunch: unknown --stdin \"all\" (0, none)"});
}

TEST_CASE("Directories") {
  FakeContext world;
  CHECK(world.spec({"--chdir", "/data", "w"}).chdir == "/data");
  CHECK(world.spec({"--chdir", "sub/./x/", "w"}).chdir == "/data/run/sub/x");
  CHECK(world.spec({"--chdir", "sub", "w"}).chdir_given);
  CHECK(world.spec({"--job-dir", "out", "w"}).job_dir == "/data/run/out");
  CHECK(world.spec({"--job-id", "run7", "w"}).job_id == "run7");
  world.env.emplace_back("XDG_STATE_HOME", "/var/state");
  CHECK(world.spec({"w"}).job_dir == "/var/state/ddplaunch/jobs/20261121-034500-ab12cd");
  world.env.back().second = "relative";
  // The same line works again: each run has its own directory.
  CHECK(world.spec({"--job-id", "run7", "w"}).job_dir ==
        "/home/ann/.local/state/ddplaunch/jobs/run7.20261121-034500-ab12cd");
  CHECK(world.spec({"--rdzv_id", "run7", "--log-dir", "logs", "w"}).output.log_dir ==
        "/data/run/logs/run7.20261121-034500-ab12cd");
  CHECK(world.spec({"--job-id", "run7", "--job-dir", "out", "--log-dir", "logs", "w"}).output.log_dir ==
        "/data/run/logs/run7");
  world.env.clear();
  CHECK(world.spec({"check", "w"}).job_dir.empty());  // check writes no files
  CHECK(world.spec({"--job-dir", "/x", "w"}).fallback_job_dir.empty());
  world.user_id = 1000;
  const std::string name = "/ddplaunch-1000/jobs/20261121-034500-ab12cd";
  const auto notes = [&world] { return world.job({"w"}).notes; };
  CHECK(notes() == Texts{"ddplaunch: HOME is not set; the job's files are in /tmp" + name});
  CHECK(world.spec({"w"}).job_dir == "/tmp" + name);
  world.env = {{"HOME", "ann"}, {"TMPDIR", "/scratch/"}};
  CHECK(notes() == Texts{"ddplaunch: HOME is not an absolute path; the job's files are in /scratch" + name});
  world.env[0].second = "/home/ann";
  CHECK(notes().empty());
  CHECK(world.spec({"w"}).fallback_job_dir == "/scratch" + name);
  world.env.clear();
  CHECK(world.errors({"--job-dir", "/x", "--job-id", "a/b", "w"}) ==
        Texts{"ddplaunch: --job-id a/b: give 1 to 64 letters, digits, '.', '_' and '-', starting with a "
              "letter or digit"});
  world.cwd = "";
  CHECK(world.errors({"--job-dir", "/x", "w"}) ==
        Texts{"ddplaunch: the current directory is unknown (was it deleted?); change to another one, or give "
              "--chdir /DIR"});
}

TEST_CASE("All errors of a command line are reported at once") {
  FakeContext world;
  world.files["hosts"] = "a slots=4x\na\nb slot=2\n";
  CHECK(
      world.errors(
          {"--hostfile", "hosts", "--nproc_per_nod", "4", "--stop-grace", "x", "--env", "MISSING"}) ==
      Texts{
          "ddplaunch: unknown option --nproc_per_nod; did you mean --nproc-per-node?",
          "ddplaunch: --stop-grace x: give a time like 500ms, 15s, 2m or 1h",
          "ddplaunch: hosts:1:9: slots=4x: \"4x\" is not a number of slots (a whole number from 1 to 65535)",
          "ddplaunch: hosts:3:3: unknown key slot; did you mean slots?",
          "ddplaunch: no worker given; usage: ddplaunch [options] WORKER [arguments of the worker]",
          "ddplaunch: --env MISSING: MISSING is not set here; write --env MISSING=VALUE"});
}

TEST_CASE("Ports, networks, IDs and paths are validated") {
  CHECK(read_port_range("1-65535"));
  for (const char* bad : {"", "1", "0-5", "5-4", "1-65536", "a-b", "1-2-3"}) {
    CAPTURE(bad);
    CHECK_FALSE(read_port_range(bad));
  }
  for (const char* yes : {"10.0.0.0/8", "fd00::/8", "eth0", "bond0.7", "ib0"}) {
    CAPTURE(yes);
    CHECK(is_network(yes));
  }
  for (const char* no :
       {"", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "fd00::1", "10.0.0.1", "a b", "longer-than-15-chars"}) {
    CAPTURE(no);
    CHECK_FALSE(is_network(no));
  }
  CHECK(is_job_id("a.b_c-1"));
  for (const char* no : {"", ".", "..", "-a", "a/b", "a b"})
    CHECK_FALSE(is_job_id(no));
  CHECK_FALSE(is_job_id(std::string(65, 'a')));
  CHECK(absolute_path("x", "/a") == "/a/x");
  CHECK(absolute_path("x", "/") == "/x");
  CHECK(absolute_path(".", "/a") == "/a");
  CHECK(absolute_path("../x//y/", "/a") == "/a/../x/y");
  CHECK(absolute_path("/", "/a") == "/");
}
