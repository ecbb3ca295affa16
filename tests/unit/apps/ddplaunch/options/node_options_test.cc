#include "apps/ddplaunch/options/job_options.h"

#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::launcher::LauncherKind;
using ddp::launcher::PerNode;
using ddp::test::Env;
using ddp::test::FakeContext;
using ddp::test::Texts;

namespace {

FakeContext with(const Env& more) {
  FakeContext world;
  world.env.insert(world.env.end(), more.begin(), more.end());
  return world;
}

/// Returns this node's place as "RANK of NODES at ADDR:PORT, job LINK"; "none" if it is no such node.
std::string node_text(const FakeContext& world, const Texts& args) {
  const auto spec = world.spec(args);
  if (!spec.per_node) return "none";
  CHECK(spec.launcher == LauncherKind::kJoin);
  CHECK(spec.master_port == 0);  // 0: the store's port
  CHECK(spec.hosts.size() == static_cast<std::size_t>(spec.per_node->nodes));
  CHECK(spec.env.empty());  // each node has its own environment
  const PerNode& node = *spec.per_node;
  return (node.rank ? std::to_string(*node.rank) : "?") + " of " + std::to_string(node.nodes) + " at " +
         node.master_addr + ":" + std::to_string(node.port) + ", job " + node.link_job;
}

/// Returns node `id` of a step of three nodes in a job of four, as srun sets its variables. `more` overrides
/// them.
FakeContext slurm_node(const char* id, const Env& more = {}) {
  FakeContext world;
  world.env = more;  // the first one of a name counts
  world.env.insert(world.env.end(),
                   {{"HOME", "/home/ann"},
                    {"SLURM_JOB_ID", "7"},
                    {"SLURM_JOB_NODELIST", "n[00-03]"},
                    {"SLURM_STEP_ID", "3"},
                    {"SLURM_STEP_NODELIST", "n[01-03]"},
                    {"SLURM_STEP_NUM_TASKS", "3"},
                    {"SLURM_STEP_NUM_NODES", "3"},
                    {"SLURM_TASKS_PER_NODE", "1(x3)"},
                    {"SLURM_NODEID", id},
                    {"SLURMD_NODENAME", std::string("n0") + std::to_string(std::stoi(id) + 1)}});
  return world;
}

const Texts kNode1 = {"--nnodes", "2", "--node-rank", "1", "--master-addr", "gpu00", "w"};

}  // namespace

TEST_CASE("With --node-rank one ddplaunch runs on each node") {
  CHECK(node_text(FakeContext(), kNode1) == "1 of 2 at gpu00:29500, job default");
  CHECK(node_text(FakeContext(), {"--nnodes=4", "--node_rank=0", "--master_addr=10.0.0.1",
                                  "--master_port=1234", "--job-id", "run7", "w"}) ==
        "0 of 4 at 10.0.0.1:1234, job run7");
  CHECK(node_text(FakeContext(), {"--nnodes", "2", "--master-addr", "gpu00", "w"}) ==
        "? of 2 at gpu00:29500, job default");
  const auto spec = FakeContext().spec(kNode1);
  CHECK(spec.hosts[0].name == "head");
  CHECK(is_localhost(spec.hosts[0]));
  CHECK(spec.hosts[1].name == "node1");
  CHECK(!spec.push);
  CHECK(spec.job_dir == "/home/ann/.local/state/ddplaunch/jobs/20261121-034500-ab12cd");
  // A restart by a scheduler has the same name, but its own files.
  CHECK(FakeContext()
            .spec({"--nnodes", "2", "--node-rank", "0", "--master-addr", "a", "--job-id", "run7", "w"})
            .job_dir == "/home/ann/.local/state/ddplaunch/jobs/run7.20261121-034500-ab12cd");
}

TEST_CASE("torchrun's and accelerate's names of the node options are accepted") {
  CHECK(node_text(FakeContext(), {"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=gpu00:1234",
                                  "--rdzv-id=run7", "w"}) == "? of 2 at gpu00:1234, job run7");
  CHECK(node_text(FakeContext(), {"--nnodes=2", "--rdzv-endpoint=gpu00", "w"}) ==
        "? of 2 at gpu00:29400, job default");
  CHECK(node_text(FakeContext(), {"--nnodes=2", "--rdzv-endpoint=[fd00::1]:1234", "w"}) ==
        "? of 2 at fd00::1:1234, job default");
  CHECK(node_text(FakeContext(), {"--num-machines=2", "--machine-rank=1", "--main-process-ip=gpu00",
                                  "--main-process-port=1234", "w"}) == "1 of 2 at gpu00:1234, job default");
}

TEST_CASE("--rdzv-endpoint names a host and a port") {
  const auto good = [](const char* text) {
    const auto node = FakeContext().spec({"--nnodes=2", "--rdzv-endpoint", text, "w"}).per_node;
    return node->master_addr + " " + std::to_string(node->port);
  };
  CHECK(good("fd00::1") == "fd00::1 29400");
  CHECK(good("[fe80::1%eth0]") == "fe80::1%eth0 29400");
  CHECK(good("gpu00:65535") == "gpu00 65535");
  const std::pair<const char*, const char*> wrong[] = {
      {"[::1]:99999", "99999 is no port; ports are from 1 to 65535"},
      {"a:b", "b is no port; ports are from 1 to 65535"},
      {"a:-1", "-1 is no port; ports are from 1 to 65535"},
      {"http://host:29400", "this is a URL; omit http://: host:29400"},
      {"tcp://[::1]:29400/x", "this is a URL; omit tcp://: [::1]:29400"},
      {"host:", "the port behind the : is missing; without the : it is 29400"},
      {"[::1]:", "the port behind the : is missing; without the : it is 29400"},
      {":29400", "the host before the : is missing; give the name or address of node 0"},
      {"a b:1", "give the name or address of node 0"},
      {"[]:80", "write an IPv6 address and a port as [fd09::1]:29400"},
      {"[::1]29400", "write an IPv6 address and a port as [fd09::1]:29400"},
      {"[::1", "write an IPv6 address and a port as [fd09::1]:29400"},
      {"fd09::1:29400:x", "give HOST:PORT of node 0, with an IPv6 address in brackets: [fd09::1]:29400"},
      {"1:2:3", "give HOST:PORT of node 0, with an IPv6 address in brackets: [fd09::1]:29400"}};
  for (const auto& [text, problem] : wrong) {
    const Texts expected{std::string("ddplaunch: --rdzv-endpoint ") + text + ": " + problem};
    CHECK(FakeContext().errors({"--rdzv-endpoint", text, "w"}) == expected);
    CHECK(FakeContext().errors({"--nnodes=2", "--rdzv-endpoint", text, "w"}) == expected);
    CHECK(FakeContext().errors({"--nnodes=2", "--node-rank=1", "--rdzv-endpoint", text, "w"}) == expected);
  }
  CHECK(
      FakeContext().job({"--standalone", "--rdzv-endpoint=localhost:0", "w"}).notes ==
      Texts{"ddplaunch: --rdzv-endpoint has no effect with --standalone: nodes join over the connection that "
            "starts them"});
  CHECK(FakeContext().job({"--nnodes=1", "--rdzv-endpoint=localhost:0", "w"}).notes ==
        Texts{"ddplaunch: --rdzv-endpoint has no effect with a single node"});
  CHECK(
      FakeContext().errors({"--nnodes=2", "--rdzv-endpoint=gpu00:0", "w"}).front() ==
      "ddplaunch: --rdzv-endpoint gpu00:0: give a port from 1 to 65535, the same on all nodes, because they "
      "connect to it");
}

TEST_CASE("Options of per-node mode that have no effect are noted") {
  CHECK(FakeContext().job({"--nnodes=1", "--node-rank=0", "--master-addr=gpu00", "w"}).notes ==
        Texts{"ddplaunch: --master-addr has no effect with a single node"});
  CHECK(FakeContext().job({"--host=a,b", "--node-rank=0", "w"}).notes ==
        Texts{"ddplaunch: --node-rank 0 has no effect with --host: one ddplaunch starts all nodes"});
}

TEST_CASE("A rank of a pod that is no number is an error") {
  const Env pods = {{"RANK", "x"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "1"}};
  CHECK(with(pods).errors({"w"}) == Texts{"ddplaunch: RANK=x: give the rank of this node, a whole number"});
}

TEST_CASE("An elastic size and spares count as nodes that may join") {
  CHECK(node_text(FakeContext(), {"--nnodes=2:4", "--spares=1", "--node-rank=4", "--master-addr=gpu00",
                                  "w"}) == "4 of 5 at gpu00:29500, job default");
}

TEST_CASE("A scheduler's environment is enough to join") {
  const Env torchrun = {{"PET_NNODES", "4"},
                        {"PET_NPROC_PER_NODE", "2"},
                        {"PET_NODE_RANK", "1"},
                        {"PET_MASTER_ADDR", "job-master-0"},
                        {"PET_MASTER_PORT", "23456"}};
  CHECK(node_text(with(torchrun), {"w"}) == "1 of 4 at job-master-0:23456, job default");
  CHECK(with(torchrun).spec({"w"}).nproc.number == 2);
  const Env pods = {
      {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}};
  CHECK(node_text(with(pods), {"w"}) == "1 of 4 at job-master-0:23456, job default");
  CHECK(with(pods).job({"w"}).notes ==
        Texts{"ddplaunch: RANK=1 and WORLD_SIZE=4 are set here: this is one of 4 nodes, each with its own "
              "ddplaunch; --launcher local runs on this machine only"});
  FakeContext both = with(pods);
  both.env.insert(both.env.end(), torchrun.begin(), torchrun.end());
  CHECK(node_text(both, {"w"}) == "1 of 4 at job-master-0:23456, job default");
  CHECK(node_text(with({{"MASTER_ADDR", "gpu00"}, {"NODE_RANK", "1"}}), {"--nnodes", "2", "w"}) ==
        "1 of 2 at gpu00:29500, job default");
  CHECK(node_text(with({{"PET_NNODES", "2"}, {"PET_RDZV_ENDPOINT", "gpu00:1234"}}), {"w"}) ==
        "? of 2 at gpu00:1234, job default");
}

TEST_CASE("srun may start one ddplaunch per node") {
  const FakeContext world = slurm_node("2");
  CHECK(node_text(world, {"w"}) == "2 of 3 at n01:22604, job slurm-7.3");
  CHECK(world.spec({"w"}).per_node->in_slurm);
  CHECK(world.job({"w"}).notes == Texts{});
  CHECK(slurm_node("0").job({"w"}).notes ==
        Texts{"ddplaunch: in Slurm step 7.3: each of its 3 nodes has its own ddplaunch, and they meet at n01 "
              "port 22604; --launcher local runs on this machine only"});
  CHECK(node_text(world, {"--launcher", "local", "w"}) == "none");
  CHECK(node_text(world, {"--host", "a,b", "w"}) == "none");
}

TEST_CASE("Options and variables override those of a Slurm step") {
  const FakeContext world = slurm_node("2");
  CHECK(node_text(world, {"--master-port", "1234", "w"}) == "2 of 3 at n01:1234, job slurm-7.3");
  CHECK(node_text(world, {"--job-id", "run7", "w"}) == "2 of 3 at n01:22604, job run7");
  CHECK(node_text(world, {"--rdzv-endpoint", "login", "w"}) == "2 of 3 at login:29400, job slurm-7.3");
  CHECK(node_text(world, {"--master-addr", "login", "w"}) == "2 of 3 at login:22604, job slurm-7.3");
  CHECK(node_text(slurm_node("2", {{"MASTER_ADDR", "login"}, {"MASTER_PORT", "9"}}), {"w"}) ==
        "2 of 3 at login:9, job slurm-7.3");
  CHECK(node_text(slurm_node("2", {{"PET_MASTER_PORT", "9"}}), {"w"}) == "2 of 3 at n01:9, job slurm-7.3");
  CHECK(node_text(world, {"--nnodes", "2", "--spares", "1", "w"}) == "2 of 3 at n01:22604, job slurm-7.3");
  CHECK(world.spec({"--spares", "1", "w"}).max_nodes == 2);
  CHECK(node_text(world, {"--nnodes", "1:4", "w"}) == "2 of 4 at n01:22604, job slurm-7.3");
}

TEST_CASE("A rank beside that of the Slurm step needs an address beside that of the step") {
  // In a batch script SLURM_NODEID is 0, so this export of the script is the same on all nodes.
  const Env exported = {{"NODE_RANK", "0"}};
  CHECK(slurm_node("2", exported).errors({"w"}) ==
        Texts{"ddplaunch: NODE_RANK=0 is given, but this is node 2 of Slurm step 7.3 (SLURM_NODEID), whose "
              "node 0 "
              "is the master; omit it, or give --master-addr as well"});
  CHECK(slurm_node("2")
            .errors({"--node-rank", "1", "w"})
            .front()
            .starts_with("ddplaunch: --node-rank 1 is given, but this is node 2 of Slurm step 7.3"));
  CHECK(node_text(slurm_node("0", exported), {"w"}) == "0 of 3 at n01:22604, job slurm-7.3");
  const auto both = slurm_node("2", exported).job({"--master-addr", "n03", "w"});
  CHECK(both.spec.per_node->rank == 0);
  CHECK(both.notes.front() ==
        "ddplaunch: NODE_RANK=0 is given, but this is node 2 of Slurm step 7.3 (SLURM_NODEID); the given "
        "rank is "
        "used");
}

TEST_CASE("A Slurm step of another size than the job is an error") {
  const FakeContext world = slurm_node("2");
  const std::string end =
      ": srun has started this program on 3 nodes; omit the option, or start as many nodes with srun "
      "--nodes; "
      "--launcher local runs on this machine only";
  CHECK(world.errors({"--nnodes", "2", "w"}) == Texts{"ddplaunch: --nnodes 2" + end});
  CHECK(world.errors({"--nnodes", "1", "w"}) == Texts{"ddplaunch: --nnodes 1" + end});
  CHECK(world.errors({"--nnodes", "4:6", "w"}) == Texts{"ddplaunch: --nnodes 4:6" + end});
  CHECK(world.errors({"--nnodes", "1", "--spares", "1", "w"}) ==
        Texts{"ddplaunch: --nnodes 1 with --spares 1" + end});
  CHECK(world.errors({"--spares", "3", "w"}) == Texts{"ddplaunch: --spares 3" + end});
}

TEST_CASE("Slurm's variables that do not fit together are an error") {
  const std::string advice = "; set MASTER_ADDR to name node 0 yourself";
  const std::string other =
      "; the variables belong to different jobs or steps. Unset SLURM_STEP_NUM_TASKS if srun has not started "
      "this program";
  const auto error = [](const Env& more) { return slurm_node("2", more).errors({"w"}); };
  CHECK(error({{"SLURM_NODEID", "3"}}) ==
        Texts{"ddplaunch: SLURM_NODEID=3 is not one of the 3 nodes of this Slurm step; give --node-rank N, a "
              "different one on each node"});
  CHECK(error({{"SLURM_NODEID", ""}}) ==
        Texts{"ddplaunch: SLURM_NODEID is not set; give --node-rank N, a different one on each node"});
  CHECK(error({{"SLURM_STEP_NODELIST", "n[01-04]"}}) ==
        Texts{"ddplaunch: SLURM_STEP_NODELIST=n[01-04] names 4 nodes, but SLURM_STEP_NUM_NODES is 3" + other +
              advice});
  CHECK(
      error({{"SLURMD_NODENAME", "n02"}}) ==
      Texts{"ddplaunch: SLURMD_NODENAME=n02 is not node 2 of SLURM_STEP_NODELIST=n[01-03]" + other + advice});
  CHECK(error({{"SLURM_STEP_NODELIST", "n[01-"}})
            .front()
            .starts_with("ddplaunch: SLURM_STEP_NODELIST, column "));
  CHECK(error({{"SLURM_STEP_NODELIST", "n[01-"}}).front().ends_with(advice));
  CHECK(error({{"SLURM_STEP_NODELIST", ""}, {"SLURM_JOB_NODELIST", ""}}) ==
        Texts{"ddplaunch: SLURM_STEP_NODELIST is not set" + advice});
  CHECK(
      error({{"SLURM_STEP_ID", "x"}}) ==
      Texts{
          "ddplaunch: SLURM_JOB_ID=7, SLURM_STEP_ID=x: these are not numbers, so no port follows from them; "
          "give --master-port PORT, the same on all nodes"});
  CHECK(node_text(slurm_node("2", {{"SLURM_STEP_NODELIST", "n[01-"}, {"MASTER_ADDR", "n01"}}), {"w"}) ==
        "2 of 3 at n01:22604, job slurm-7.3");
}

TEST_CASE("ddplaunch check and hosts are not started by srun on each node") {
  CHECK(slurm_node("2").errors({"check"}) ==
        Texts{"ddplaunch: ddplaunch check connects to the nodes itself: start it once, without srun"});
}

TEST_CASE("Options override variables") {
  const FakeContext world = with({{"NODE_RANK", "3"},
                                  {"MASTER_ADDR", "other"},
                                  {"MASTER_PORT", "9"},
                                  {"PET_NNODES", "8"},
                                  {"PET_NODE_RANK", "7"},
                                  {"PET_MASTER_ADDR", "third"},
                                  {"PET_MASTER_PORT", "8"}});
  CHECK(node_text(world, {"--nnodes", "2", "--node-rank", "1", "--master-addr", "gpu00", "--master-port",
                          "1234", "w"}) == "1 of 2 at gpu00:1234, job default");
  CHECK(node_text(world, {"--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "gpu00:1",
                          "--master-port=1", "w"}) == "1 of 2 at gpu00:1, job default");
}

TEST_CASE("A command line that chooses another launcher ignores the variables of a join") {
  const Env pods = {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "1"}};
  CHECK(node_text(with(pods), {"--launcher", "local", "w"}) == "none");
  CHECK(node_text(with(pods), {"--standalone", "w"}) == "none");
  CHECK(node_text(with(pods), {"--host", "a,b", "w"}) == "none");
  CHECK(node_text(with(pods), {"--nnodes", "1", "w"}) == "none");
  FakeContext worker = with(pods);
  worker.env.emplace_back("LOCAL_RANK", "0");  // stale value of another launcher
  CHECK(node_text(worker, {"w"}) == "none");
  CHECK(node_text(FakeContext(), {"--nnodes=1", "--node-rank=0", "--master-addr=gpu00", "--master-port=1234",
                                  "x"}) == "none");
  CHECK(FakeContext().spec({"--nnodes=1", "--node-rank=0", "--master-port=1234", "w"}).master_port == 1234);
  CHECK(node_text(FakeContext(), {"--host", "a,b", "--node-rank", "0", "w"}) == "none");
  CHECK(FakeContext().job({"--host", "a,b", "--master-addr", "a", "w"}).notes ==
        Texts{"ddplaunch: --master-addr has no effect with --host: one ddplaunch starts all nodes; --network "
              "chooses the address"});
}

TEST_CASE("An impossible combination is reported once, with the intended use") {
  const FakeContext world;
  CHECK(world.errors({"--node-rank", "1", "w"}) ==
        Texts{"ddplaunch: --node-rank 1 needs --nnodes N, the number of nodes"});
  CHECK(world.errors({"--nnodes", "1", "--node-rank", "1", "w"}) ==
        Texts{"ddplaunch: --node-rank 1: with --nnodes 1 there is only node 0"});
  CHECK(world.errors({"--host", "a,b", "--node-rank", "1", "w"}) ==
        Texts{"ddplaunch: --node-rank 1 and --host contradict each other: with hosts one ddplaunch starts "
              "all nodes, with --node-rank each node has its own; omit one of them"});
  CHECK(world.errors({"--nnodes=2", "--node-rank=2", "--master-addr=a", "w"}) ==
        Texts{"ddplaunch: --node-rank 2: give a whole number from 0 to 1, a different one on each of the 2 "
              "nodes"});
  CHECK(world.errors({"--nnodes=2", "--node-rank=0", "--master-addr=a b", "w"}).front() ==
        "ddplaunch: --master-addr a b: give the name or address of node 0");
  CHECK(world.errors({"--nnodes=2", "--node-rank=0", "--master-addr=a:29500", "w"}).front() ==
        "ddplaunch: --master-addr a:29500: give the address alone, without port: --master-addr a "
        "--master-port 29500");
  CHECK(world.errors({"--nnodes=2", "--node-rank=0", "--master-addr=[fd09::1]:6000", "w"}).front() ==
        "ddplaunch: --master-addr [fd09::1]:6000: give the address alone, without port: --master-addr "
        "fd09::1 --master-port 6000");
  CHECK(world.errors({"--nnodes=2", "--node-rank=0", "--master-addr=[fd09::1]", "w"}).front() ==
        "ddplaunch: --master-addr [fd09::1]: give the address alone, without port and brackets");
  CHECK(
      world.errors({"--nnodes=2", "--node-rank=0", "--master-addr=a:99999", "w"}) ==
      Texts{
          "ddplaunch: --master-addr a:99999: give the address alone, without port and brackets; 99999 is no "
          "port; ports are from 1 to 65535"});
  CHECK(world.errors({"--nnodes=2", "--node-rank=0", "--master-addr=http://a", "w"}) ==
        Texts{"ddplaunch: --master-addr http://a: this is a URL; omit http://: a"});
  CHECK(
      with({{"MASTER_ADDR", ":80"}}).errors({"--nnodes=2", "--node-rank=0", "w"}) ==
      Texts{"ddplaunch: MASTER_ADDR :80: give the address alone, without port and brackets; the host before "
            "the : is missing; give the name or address of node 0"});
  CHECK(world.errors({"--nnodes=2", "--node-rank=0", "--master-addr=a", "--master-port=x", "w"}) ==
        Texts{"ddplaunch: --master-port x: give a whole number from 0 to 65535"});
  CHECK(world.errors({"--nnodes=2", "--node-rank=0", "--master-addr=a", "--master-port=0", "w"}).front() ==
        "ddplaunch: --master-port 0: give a port from 1 to 65535, the same on all nodes, because they "
        "connect to it");
  CHECK(world.errors({"--nnodes=2", "--master-addr=a", "--rdzv-endpoint=b:1", "w"}).front() ==
        "ddplaunch: --master-addr a and --rdzv-endpoint b:1 name different hosts; both give the address of "
        "node 0, so omit one of them");
  CHECK(world.errors({"--nnodes=2", "--master-port=2", "--rdzv-endpoint=b:1", "w"}).front() ==
        "ddplaunch: --master-port 2 and --rdzv-endpoint b:1 name different ports; omit one of them");
  CHECK(world.errors({"check", "--nnodes=2", "--node-rank=0", "--master-addr=a"}).size() == 1);
  Texts wrapped = kNode1;
  wrapped.insert(wrapped.begin(), {"--wrapper", "docker exec -i x"});
  CHECK(world.errors(wrapped).size() == 1);
}

TEST_CASE("A node that joins keeps no files, so it needs no home directory") {
  FakeContext world;
  world.env = {{"PATH", "/usr/bin"}};
  CHECK(node_text(world, kNode1) == "1 of 2 at gpu00:29500, job default");
  CHECK(world.job({"--nnodes", "2", "--node-rank", "0", "--master-addr", "gpu00", "w"}).notes.size() == 1);
}
