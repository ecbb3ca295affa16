// Facts of nodes → diagnostics, as a table of injected faults. Each row starts from two healthy nodes.
#include "launcher/check/check_diagnosis.h"

#include <functional>

#include "base/text.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using rendezvous::NodeChecked;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

struct Case {
  JobSpec spec;
  CheckResult result;

  NodeChecked& facts(std::size_t i) { return *result.nodes[i].facts; }
  void plan(int workers) {
    rendezvous::RankPlan plan;
    for (std::size_t i = 0; i < result.nodes.size(); ++i)
      plan.assignments.push_back({0, static_cast<int>(i), static_cast<int>(i) * workers, workers});
    plan.reasons.resize(result.nodes.size(), "slots");
    plan.world_size = workers * static_cast<int>(result.nodes.size());
    result.plan = plan;
  }
};

NodeChecked healthy() {
  NodeChecked facts;
  facts.os = "Debian";
  facts.directory = "/data";
  facts.program = "/usr/bin/python3";
  facts.versions = {{"NCCL", "2.20.5"}, {"driver", "550.54"}};
  facts.gpus = {{"H100", 80 * kGiB, 80 * kGiB, 0, ""}, {"H100", 80 * kGiB, 80 * kGiB, 0, ""}};
  facts.nofile = 1024;
  facts.most_files = 1048576;
  facts.memlock = 8 << 20;
  facts.processes = ~std::uint64_t{0};
  facts.shm_size = facts.shm_free = 64 * kGiB;
  facts.disks = {{"/data", 100 * kGiB, 50 * kGiB, true, ""}};
  return facts;
}

void no_program(NodeChecked& facts, const char* why) {
  facts.program.clear();
  facts.program_trouble = why;
}

Case healthy_nodes(std::size_t count) {
  Case made;
  NetChoice network;
  network.reason = "10.0.0.0/8, which all nodes share";
  NetRoute route{"10.0.0.1", "10.0.0.0/8", {}};
  for (std::size_t i = 0; i < count; ++i) {
    made.spec.hosts.emplace_back().name = "gpu0" + std::to_string(i + 1);
    CheckedNode& node = made.result.nodes.emplace_back();
    node.up = true;
    node.hello.gpus = 2;
    node.hello.cpus = 16;
    node.hello.interfaces = {{"eth0", "10.0.0." + std::to_string(i + 1), 8, true, false}};
    node.facts = healthy();
    node.wall_ahead = std::chrono::milliseconds(1);
    node.reach = CheckedNode::Reach::kReached;
    made.result.networked.push_back(i);
    route.interfaces.emplace_back("eth0");
  }
  network.routes.push_back(route);
  made.result.network = network;
  made.result.master_addr = "10.0.0.1";
  made.plan(2);
  return made;
}

/// Returns a line like "error gpus 0,1: text; advice" for each diagnostic.
std::string found(const Case& made) {
  std::string text;
  for (const CheckDiagnostic& diagnostic : diagnose_nodes(made.spec, made.result)) {
    text += diagnostic.level == CheckDiagnostic::Severity::kError ? "error " : "warning ";
    text += diagnostic.item;
    for (std::size_t k = 0; k < diagnostic.nodes.size(); ++k)
      text += (k == 0 ? " " : ",") + std::to_string(diagnostic.nodes[k]);
    text += ": " + diagnostic.text + '\n';
  }
  return text;
}

struct Row {
  const char* name;
  std::function<void(Case&)> fault;
  std::string expected;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"nothing", [](Case&) {}, ""},
      {"no directory, alike on two",
       [](Case& c) {
         for (std::size_t i : {0, 2})
           c.facts(i).directory_trouble =
               "the working directory /x: No such file or directory; create it there";
       },
       "error directory 0,2: the working directory /x: No such file or directory\n"},
      {"no program", [](Case& c) { no_program(c.facts(1), "w: not found in PATH"); },
       "error program 1: w: not found in PATH\n"},
      {"too few GPUs", [](Case& c) { c.result.nodes[1].hello.gpus = 1; },
       "error gpus 1: 2 workers, but 1 GPU\n"},
      {"too few GPUs, as wished",
       [](Case& c) {
         c.result.nodes[1].hello.gpus = 1;
         c.spec.nproc.oversubscribe = true;
       },
       "warning gpus 1: 2 workers, but 1 GPU\n"},
      {"no GPU anywhere is no fault",
       [](Case& c) {
         for (std::size_t i : {0, 1, 2}) {
           c.result.nodes[i].hello.gpus = 0;
           c.facts(i).gpus.clear();
         }
       },
       ""},
      {"a GPU that is not there",
       [](Case& c) {
         c.spec.hosts[0].devices = {"0", "7"};
       },
       "error gpus 0: gpus= names GPU 7, but it has 2 GPUs, numbered from 0\n"},
      {"GPUs on a node without any",
       [](Case& c) {
         c.plan(1);
         for (std::size_t i : {0, 1, 2}) {
           c.result.nodes[i].hello.gpus = 0;
           c.facts(i).gpus.clear();
         }
         c.spec.hosts[0].devices = {"0"};
         c.spec.hosts[1].devices = {"GPU-5e", "GPU-6f"};
       },
       "warning gpus 0: gpus= or --include names 1 GPU, but it has none\n"
       "warning gpus 1: gpus= or --include names 2 GPUs, but it has none\n"},
      {"GPUs on a node without any, where others have some",
       [](Case& c) {
         c.plan(1);
         c.result.nodes[1].hello.gpus = 0;
         c.facts(1).gpus.clear();
         c.spec.hosts[1].devices = {"0"};
       },
       "error gpus 1: gpus= or --include names 1 GPU, but it has none\n"},
      {"names of interfaces that a node lacks",
       [](Case& c) {
         c.spec.explicit_env = {{"NCCL_SOCKET_IFNAME", "foo"}, {"GLOO_SOCKET_IFNAME", "eth0,eth1"}};
         c.spec.hosts[1].env = {{"NCCL_SOCKET_IFNAME", "eth"}, {"GLOO_SOCKET_IFNAME", "eth0"}};
       },
       "warning network 0,2: NCCL_SOCKET_IFNAME=foo matches no interface of this host\n"
       "warning network 0,2: GLOO_SOCKET_IFNAME=eth0,eth1, but there is no interface eth1\n"},
      {"a Python that does not answer",
       [](Case& c) { c.facts(1).program_trouble = "python did not report in time; check it"; },
       "warning program 1: python did not report in time\n"},
      {"a port in use",
       [](Case& c) {
         c.result.nodes[0].reach = CheckedNode::Reach::kFailed;
         c.result.nodes[0].reach_text =
             "store: cannot listen on port 4000: Address already in use; name another --master-port";
       },
       "error port 0: the store could not be opened there: cannot listen on port 4000: Address already in "
       "use\n"},
      {"chosen slots of a job on CPUs",
       [](Case& c) {
         c.plan(1);
         for (std::size_t i : {0, 1, 2}) {
           c.result.nodes[i].hello.gpus = 0;
           c.facts(i).gpus.clear();
         }
         c.spec.hosts[0].devices = {"0"};
         c.spec.nproc.rule = rendezvous::ProcsRule::kCpu;
       },
       ""},
      {"somebody is there already",
       [](Case& c) {
         c.facts(1).gpus[1].processes = 1;
         c.facts(1).gpus[1].holders = "python 4711 (alice)";
         c.facts(1).gpus[1].memory_free = 40 * kGiB;
       },
       "warning gpu_memory 1: GPU 1 is in use by python 4711 (alice); 40.0 GiB of 80.0 GiB are free\n"},
      {"but on another GPU",
       [](Case& c) {
         c.plan(1);
         c.spec.hosts[1].devices = {"0"};
         c.facts(1).gpus[1].processes = 1;
       },
       ""},
      {"memory that nobody holds", [](Case& c) { c.facts(2).gpus[0].memory_free = 8 * kGiB; },
       "warning gpu_memory 2: GPU 0: only 8.0 GiB of 80.0 GiB are free, although no process is visible on "
       "it\n"},
      {"the minority is named", [](Case& c) { c.facts(1).versions[0].second = "2.18.1"; },
       "error versions 1: NCCL 2.18.1, but 2.20.5 on gpu[01,03]\n"},
      {"driver", [](Case& c) { c.facts(0).versions[1].second = "535.1"; },
       "warning versions 0: driver 535.1, but 550.54 on gpu[02-03]\n"},
      {"models of GPUs",
       [](Case& c) {
         for (auto& gpu : c.facts(2).gpus)
           gpu.name = "A100";
       },
       "warning versions 2: GPU model A100, but H100 on gpu[01-02]\n"},
      {"few files", [](Case& c) { c.facts(0).nofile = 256; },
       "warning limits 0: a worker may have only 256 files open (ulimit -n)\n"},
      {"too few files", [](Case& c) { c.facts(0).nofile = 64; },
       "error limits 0: a worker may have only 64 files open (ulimit -n), and needs about 76\n"},
      {"too few files for the agent", [](Case& c) { c.facts(0).most_files = 41; },
       "error limits 0: the agent needs 42 open files for 2 workers, but the hard limit is 41\n"},
      {"just enough files for the agent", [](Case& c) { c.facts(0).most_files = 42; }, ""},
      {"few processes", [](Case& c) { c.facts(0).processes = 100; },
       "warning limits 0: the user may have only 100 processes and threads (ulimit -u)\n"},
      {"locked memory counts with InfiniBand only", [](Case& c) { c.facts(0).infiniband = {"mlx5_0"}; },
       "warning limits 0: workers may lock only 8.0 MiB (ulimit -l), which InfiniBand needs for its "
       "buffers\n"},
      {"small shm", [](Case& c) { c.facts(0).shm_size = c.facts(0).shm_free = 64 << 20; },
       "warning shm 0: /dev/shm has only 64.0 MiB\n"},
      {"full shm", [](Case& c) { c.facts(0).shm_free = 0; }, "error shm 0: /dev/shm is full (64.0 GiB)\n"},
      {"full disk", [](Case& c) { c.facts(1).disks[0].free = 1 << 20; },
       "warning disk 1: /data has only 1.0 MiB free\n"},
      {"dead disk",
       [](Case& c) {
         c.facts(1).disks[0] = {"/data", 0, 0, false, "Stale file handle"};
       },
       "warning disk 1: /data: Stale file handle\n"},
      {"clocks apart", [](Case& c) { c.result.nodes[1].wall_ahead = std::chrono::milliseconds(-2500); },
       "warning clock 1: its clock is 2.5 s behind the master's\n"},
      {"clocks apart by less than is known",
       [](Case& c) {
         c.result.nodes[1].wall_ahead = std::chrono::seconds(2);
         c.result.nodes[1].wall_error = std::chrono::seconds(2);
       },
       ""},
      {"a closed port",
       [](Case& c) {
         c.result.nodes[2].reach = CheckedNode::Reach::kFailed;
         c.result.nodes[2].reach_text = "10.0.0.1:4000: no answer";
       },
       "error port 2: it cannot reach gpu01 (10.0.0.1:4000: no answer)\n"},
      {"unreachable, and an old agent",
       [](Case& c) {
         c.result.nodes[0].error = Error{ErrorCode::kUnreachable, "gpu01: connection refused"};
         c.result.nodes[1].error = Error{ErrorCode::kAgentMismatch, "version 0.0.1"};
         for (std::size_t i : {0, 1})
           c.result.nodes[i].facts.reset();
       },
       "error reach 0: connection refused\nerror agent 1: version 0.0.1\n"},
      {"hosts with one error",
       [](Case& c) {
         for (std::size_t i : {0, 2}) {
           const std::string number = std::to_string(i + 1);
           c.result.nodes[i].error = Error{
               ErrorCode::kUnreachable, "gpu0" + number + ": no answer from 10.0.0." + number + ":22; check"};
           c.result.nodes[i].facts.reset();
         }
       },
       "error reach 0,2: no answer from 10.0.0.…:22; check\n"},
      {"errors come first, by item",
       [](Case& c) {
         c.facts(0).nofile = 256;
         no_program(c.facts(1), "p");
         c.facts(2).directory_trouble = "d";
       },
       "error directory 2: d\nerror program 1: p\n"
       "warning limits 0: a worker may have only 256 files open (ulimit -n)\n"},
  };
  return table;
}

}  // namespace

TEST_CASE("injected faults and their diagnostics") {
  for (const Row& row : rows()) {
    CAPTURE(row.name);
    Case made = healthy_nodes(3);
    row.fault(made);
    CHECK(found(made) == row.expected);
  }
}

TEST_CASE("the exit code of a check") {
  Case made = healthy_nodes(3);
  auto code = [&] { return check_exit_code(made.result, diagnose_nodes(made.spec, made.result)); };
  CHECK(code() == 0);
  made.facts(0).nofile = 256;  // a warning
  CHECK(code() == 0);
  no_program(made.facts(1), "p");
  CHECK(code() == 115);
  made.result.nodes[2].error = Error{ErrorCode::kUnreachable, "x"};
  CHECK(code() == 111);
  made.result.nodes[1].error = Error{ErrorCode::kAgentMissing, "x"};
  CHECK(code() == 114);
  made.result.stop_signal = 2;
  CHECK(code() == 130);
}

TEST_CASE("the last line gives the reason of the exit code") {
  Case made = healthy_nodes(3);
  auto line = [&] {
    const auto diagnostics = diagnose_nodes(made.spec, made.result);
    return check_last_line(check_exit_code(made.result, diagnostics), made.result, made.spec, diagnostics);
  };
  CHECK(line().empty());
  no_program(made.facts(1), "p");
  CHECK(line() == "exit 115: a job would fail, 1 error found");
  made.result.nodes[1].error = made.result.nodes[2].error = Error{ErrorCode::kUnreachable, "x"};
  CHECK(line() == "exit 111: 2 hosts of 3 could not be checked: gpu[02-03]");
  made.result.stop_signal = 15;
  CHECK(line() == "exit 143: stopped by the user");
  made.result.awaited = "1 of 3 nodes: gpu03 (SSH greeting)";
  CHECK(line() == "exit 143: stopped by the user while waiting for 1 of 3 nodes: gpu03 (SSH greeting)");
}

TEST_CASE("the table omits empty columns, and has colors only on request") {
  Case made = healthy_nodes(2);
  for (std::size_t i : {0, 1}) {
    made.result.nodes[i].hello.gpus = 0;
    made.facts(i).gpus.clear();
    made.facts(i).program.clear();
  }
  const auto diagnostics = diagnose_nodes(made.spec, made.result);
  const std::string plain = check_text(made.spec, made.result, diagnostics, false);
  CHECK(plain ==
        "host   answer  system  CPUs  directory  address   port  clock    files  shm       disk      result\n"
        "gpu01  0.00 s  Debian  16    ok         10.0.0.1  ok    +1.0 ms  1024   64.0 GiB  50.0 GiB  ok\n"
        "gpu02  0.00 s  Debian  16    ok         10.0.0.2  ok    +1.0 ms  1024   64.0 GiB  50.0 GiB  ok\n"
        "\n"
        "network: 10.0.0.0/8, which all nodes share\n"
        "no problems found\n");
  CHECK(check_text(made.spec, made.result, diagnostics, true).find("\x1b[32mok\x1b[0m") != std::string::npos);
}

TEST_CASE("a machine that is checked alone is described") {
  Case made = healthy_nodes(1);
  NodeChecked& facts = made.facts(0);
  facts.system = "Linux 4.18 x86_64";
  facts.features = {{"clone3", "not in this kernel"}, {"ssh", ""}};
  facts.gpus.resize(1);
  facts.gpus[0].memory_free = kGiB;
  const std::string text = check_text(made.spec, made.result, {}, false);
  CHECK(text.substr(text.find("kernel:")) ==
        "kernel: Linux 4.18 x86_64\n"
        "used by jobs: clone3: no (not in this kernel), ssh\n"
        "GPUs: H100 (1.0 GiB of 80.0 GiB free)\n"
        "libraries: NCCL 2.20.5, driver 550.54\n"
        "InfiniBand: none\n"
        "limits: 1024 open files, any number of processes, 8.0 MiB of locked memory\n"
        "network: 10.0.0.0/8, which all nodes share\n"
        "no problems found\n");
  facts.gpus.clear();
  facts.memlock = ~std::uint64_t{0};
  const std::string other = check_text(made.spec, made.result, {}, false);
  CHECK(other.find("GPUs: 2\n") != std::string::npos);
  CHECK(other.find("any amount of locked memory\n") != std::string::npos);
}

TEST_CASE("the chosen network, its addresses, and the node that decided the choice") {
  Case made = healthy_nodes(3);
  NetRoute other{"fd55::1", "fd55::/64", {"eth0", "eth0", "eth0"}, {"fd55::1", "fd55::2", "fd55::3"}};
  made.result.network->value().routes.push_back(other);
  made.result.master_addr = "fd55::1";
  made.result.rejected_networks = {{"10.0.0.1", "10.0.0.0/8", {2}}};
  CHECK(chosen_address(made.result, 1) == "fd55::2");
  CHECK(found(made) ==
        "warning network 2: it cannot reach gpu01 at 10.0.0.1 (10.0.0.0/8), so all nodes use fd55::1\n");
  const std::string text = hosts_text(made.spec, made.result, {});
  CHECK(text.find("MASTER_ADDR fd55::1\nnetwork: fd55::/64: fd55::1, which all nodes reach\n") !=
        std::string::npos);
  CHECK(check_json(made.spec, made.result, {})
            .find("\"reason\": \"fd55::/64: fd55::1, which all nodes reach\"") != std::string::npos);
}

TEST_CASE("when only one of several hosts answers, no network is reported") {
  Case made = healthy_nodes(2);
  made.result.nodes[1].error = Error{ErrorCode::kUnreachable, "x"};
  made.result.nodes[0].connected = "10.0.0.1";
  made.result.networked = {0};
  const std::string text = check_text(made.spec, made.result, {}, false);
  CHECK(text.find("network:") == std::string::npos);
  CHECK(text.find("10.0.0.1") != std::string::npos);
  CHECK(check_json(made.spec, made.result, {}).find("\"network\": null") != std::string::npos);
}

TEST_CASE("hosts that could not be asked for the same reason are one line") {
  Case made = healthy_nodes(3);
  const std::string keys[] = {"SHA256:q1Ab", "SHA256:Zz9x", "SHA256:77mN"};
  for (const std::size_t i : {0, 1, 2}) {
    made.result.nodes[i] = {};
    const std::string host = "gpu0" + std::to_string(i + 1);
    made.result.nodes[i].error =
        Error{ErrorCode::kUnreachable,
              i < 2 ? "ssh: unknown host key " + keys[i] + " of " + host + "; accept it with ssh " + host
                    : "ssh: connection refused on port 22"};
  }
  const std::string text = check_text(made.spec, made.result, diagnose_nodes(made.spec, made.result), false);
  CHECK(text.substr(text.find("error: ")) ==
        "error: gpu[01-02]: ssh: unknown host key SHA256:… of gpu…; accept it with ssh gpu…\n"
        "error: gpu03: ssh: connection refused on port 22\n");
}

TEST_CASE("a check that the user interrupted is no success") {
  Case made = healthy_nodes(2);
  made.result.stop_signal = 2;
  made.result.nodes[1].error = Error{ErrorCode::kCancelled, "stopped by the user before its check had ended"};
  made.result.nodes[1].facts.reset();
  const std::string text = check_text(made.spec, made.result, diagnose_nodes(made.spec, made.result), false);
  CHECK(text.find("not finished\n") != std::string::npos);
  made.result.nodes[1].up = false;
  CHECK(check_text(made.spec, made.result, {}, false).find("not asked\n") != std::string::npos);
}

TEST_CASE("the plan of hosts") {
  Case made = healthy_nodes(2);
  made.spec.hosts[1].devices = {"0", "1"};
  made.spec.hosts[1].env = {{"TOKEN", "secret"}};
  const std::string text = hosts_text(made.spec, made.result, {});
  CHECK(text ==
        "node  host   ranks  workers    slots  CPUs  GPUs  address   interface  variables of its own\n"
        "0     gpu01  0-1    2 (slots)  any    16    2     10.0.0.1  eth0       NCCL_SOCKET_IFNAME==eth0 "
        "GLOO_SOCKET_IFNAME=eth0\n"
        "1     gpu02  2-3    2 (slots)  any    16    2     10.0.0.2  eth0       NCCL_SOCKET_IFNAME==eth0 "
        "GLOO_SOCKET_IFNAME=eth0 CUDA_VISIBLE_DEVICES=0,1 TOKEN\n"
        "\n"
        "world size 4\n"
        "MASTER_ADDR 10.0.0.1\n"
        "network: 10.0.0.0/8, which all nodes share\n");
  CHECK(hosts_json(made.spec, made.result, {}).find("secret") == std::string::npos);
}

TEST_CASE("an open interface of the plan is that of the chosen route, and the user's own is kept") {
  Case made = healthy_nodes(3);
  made.result.network->value().routes[0].interfaces = {"", "", ""};
  made.result.nodes[1].local = "10.0.0.2";
  made.spec.explicit_env = {{"NCCL_SOCKET_IFNAME", "eth"}};
  made.spec.hosts[1].env = {{"GLOO_SOCKET_IFNAME", "eth0"}};
  CHECK(chosen_interface(made.result, 0) == "eth0");
  CHECK(chosen_interface(made.result, 1) == "eth0");
  CHECK(chosen_interface(made.result, 2).empty());
  using Names = std::vector<std::string>;
  CHECK(node_variables(made.spec, made.result, 0) == Names{"GLOO_SOCKET_IFNAME=eth0"});
  CHECK(node_variables(made.spec, made.result, 1) == Names{"GLOO_SOCKET_IFNAME"});
  CHECK(found(made) == "warning network 2: the workers' interface is ambiguous\n");
}

TEST_CASE("hosts that failed lately are warnings, with advice for bad ones") {
  Case made = healthy_nodes(3);
  HostRecord once, bad, unused;
  once.host = "gpu01";
  once.failures = 1;
  once.causes = "lost";
  bad.host = "gpu03";
  bad.failures = bad.hardware = 1;
  bad.causes = "Xid 79";
  unused.host = "gpu09";
  const auto found = history_diagnostics(made.spec, made.result, {once, bad, unused});
  REQUIRE(found.size() == 2);
  CHECK(
      found[0] ==
      CheckDiagnostic{CheckDiagnostic::Severity::kWarning, "history", {0}, "1 failure in 7 days (lost)", ""});
  CHECK(found[1].nodes == std::vector<std::size_t>{2});
  CHECK(found[1].advice ==
        "leave it to the spares with --avoid-bad-hosts, or after a repair forget them (ddplaunch hosts "
        "--forget)");
}

}  // namespace ddp::launcher

namespace ddp::launcher {
namespace {

using Words = std::vector<std::string>;

CheckResult two_nodes() {
  CheckResult result;
  result.nodes.resize(2);
  rendezvous::RankPlan plan;
  plan.assignments = {{0, 0, 0, 2}, {1, 1, 2, 2}};
  plan.reasons = {"slots=2", "slots=2"};
  plan.world_size = 4;
  result.plan = plan;
  return result;
}

DeepRun health(const std::string& diagnostics, bool passed, int exit_code) {
  return {DeepTest::kHealth, exit_code,
          "# a table\n{\"schema\":\"ddp-train-record/1\",\"kind\":\"health\",\"findings\":[" + diagnostics +
              "],\"passed\":" + (passed ? "true" : "false") + "}\n# more\n",
          "train: rank 1 …\nddplaunch: exit 1: rank 2 failed\n"};
}

TEST_CASE("A diagnostic of a rank is reported for its host") {
  const auto found = deep_diagnostics(
      two_nodes(), health("{\"level\":\"error\",\"rank\":2,\"host\":\"x\",\"device\":\"CPU\","
                          "\"item\":\"memory\",\"text\":\"3 wrong words\"},"
                          "{\"level\":\"warning\",\"rank\":1,\"host\":\"x\",\"device\":\"CPU\","
                          "\"item\":\"slow\",\"text\":\"slow\"}",
                          false, 1));
  REQUIRE(found.size() == 2);
  CHECK(found[0] == CheckDiagnostic{CheckDiagnostic::Severity::kError,
                                    "health",
                                    {1},
                                    "rank 2, CPU: 3 wrong words",
                                    "exclude the host with --exclude, and have its memory tested"});
  CHECK(found[1].level == CheckDiagnostic::Severity::kWarning);
  CHECK(found[1].nodes == std::vector<std::size_t>{0});
}

TEST_CASE("Each kind of diagnostic of a rank has an advice, unless its text has it") {
  for (const char* item :
       {"gemm", "gradient", "memory", "ecc", "xid", "pair", "sum", "slow", "pause", "link", "throttle"}) {
    const auto found = deep_diagnostics(
        two_nodes(), health(std::string("{\"level\":\"warning\",\"rank\":2,\"host\":\"x\",\"device\":"
                                        "\"CPU\",\"text\":\"x\",\"item\":\"") +
                                item + "\"}",
                            true, 0));
    CAPTURE(item);
    REQUIRE(found.size() == 1);
    CHECK(!found[0].advice.empty());
  }
}

TEST_CASE("A diagnostic without a rank is one of the job") {
  const auto found = deep_diagnostics(
      two_nodes(), health("{\"level\":\"error\",\"item\":\"sum\",\"text\":\"sums are wrong\"}", false, 1));
  REQUIRE(found.size() == 1);
  CHECK(found[0] == CheckDiagnostic{CheckDiagnostic::Severity::kError, "health", {}, "sums are wrong", ""});
}

TEST_CASE("A passed test has no diagnostics, a test that reported nothing or failed otherwise has one") {
  CHECK(deep_diagnostics(two_nodes(), health("", true, 0)).empty());
  CHECK(deep_diagnostics(two_nodes(), health("", true, 137)).front().text ==
        "train health ended with exit code 137: ddplaunch: exit 1: rank 2 failed; "
        "train: rank 1 …");
  DeepRun silent = health("", true, 127);
  silent.output = "{\"some\":\"json\"}\n{\n";
  CHECK_FALSE(deep_has_result(silent));
  const auto found = deep_diagnostics(two_nodes(), silent);
  REQUIRE(found.size() == 1);
  CHECK(found[0].text ==
        "train health gave no result and ended with exit code 127: ddplaunch: exit 1: rank 2 failed; "
        "train: rank 1 …");
  silent.errors =
      "train: NCCL failed\nddplaunch: the job failed\n  root cause: x\n    | train: NCCL failed\nddplaunch: "
      "exit 1: x\n";
  CHECK(deep_diagnostics(two_nodes(), silent)[0].text ==
        "train health gave no result and ended with exit code 127: ddplaunch: exit 1: x; train: NCCL failed");
}

TEST_CASE("The table of a test is what the trainer printed beside its record") {
  CHECK(deep_table(health("", true, 0)) == "# a table\n# more\n");
  CHECK(deep_table({DeepTest::kCollectives, 0, "{}\n\nno end", ""}) == "\nno end\n");
  CHECK(deep_table({}).empty());
}

TEST_CASE("A slow all-reduce is reported in the trainer's words") {
  const DeepRun run{
      DeepTest::kCollectives, 1,
      "{\"schema\":\"ddp-train-record/1\",\"kind\":\"bench\",\"passed\":false,\"fault\":\"too slow\"}\n", ""};
  const auto found = deep_diagnostics(two_nodes(), run);
  REQUIRE(found.size() == 1);
  CHECK(found[0].item == "collectives");
  CHECK(found[0].text == "too slow");
}

TEST_CASE("The job of a deep check has the hosts of the check, and no files of the user") {
  JobSpec spec;
  spec.hosts.resize(3);
  spec.max_nodes = 1;
  spec.spares = 1;
  spec.max_restarts = 3;
  spec.report_path = "/r.json";
  spec.stdin_to_rank0 = true;
  spec.command.argv = {"python", "x"};
  spec.host_history = "/home/ann/.local/state/ddplaunch/hosts";
  const JobSpec job = deep_job(spec, two_nodes(), DeepTest::kHealth, "/tmp/job", "");
  CHECK(job.hosts.size() == 1);
  CHECK((job.spares == 0 && job.max_restarts == 0 && job.report_path.empty() && !job.stdin_to_rank0));
  CHECK(job.host_history.empty());  // a test of the hosts is no failed job
  CHECK(job.command.kind == WorkerCommand::Kind::kTrain);
  CHECK(job.command.argv == Words{"health", "--json", "/dev/stdout"});
  spec.command = {WorkerCommand::Kind::kTrain, {"health", "--threads", "2"}, ""};
  CHECK(deep_job(spec, two_nodes(), DeepTest::kHealth, "/tmp/job", "").command.argv ==
        Words{"health", "--threads", "2", "--json", "/dev/stdout"});
  const Words bench = deep_job(spec, two_nodes(), DeepTest::kCollectives, "/tmp/job", "9.5").command.argv;
  CHECK(bench.front() == "bench");
  CHECK((bench[bench.size() - 2] == "--min-busbw" && bench.back() == "9.5"));
  // The device that other words of train ask for is that of each test.
  for (const Words& words :
       {Words{"--device", "cpu"}, Words{"health", "--device", "cpu"}, Words{"--epochs=1", "--device=cpu"}}) {
    spec.command.argv = words;
    const Words asked = deep_job(spec, two_nodes(), DeepTest::kCollectives, "/tmp/job", "").command.argv;
    CHECK(join(asked, " ").find("-e 16M ") != std::string::npos);
    CHECK((join(asked, " ") + " ").find(words.back().starts_with("--") ? "--device=cpu " : "--device cpu ") !=
          std::string::npos);
  }
}

TEST_CASE("Between GPUs a deep check sends messages up to 1 GiB") {
  CheckResult result = two_nodes();
  JobSpec two_hosts;
  two_hosts.hosts.resize(2);
  const auto most = [&] {
    const Words words = deep_job(two_hosts, result, DeepTest::kCollectives, "/tmp/job", "").command.argv;
    return *(std::ranges::find(words, "-e") + 1);
  };
  CHECK(most() == "16M");
  result.nodes[1].up = true;
  result.nodes[1].hello.gpus = 8;
  CHECK(most() == "1G");
}

TEST_CASE("A deep check says what was tested on what") {
  DeepRun run;
  run.test = DeepTest::kCollectives;
  CHECK(deep_tested(run).empty());
  run.output = R"({"schema":"ddp-train-record/1","passed":true,"tested":"tested: 8 × H100, NCCL 2.28.9"})";
  CHECK(deep_tested(run) == "train bench: 8 × H100, NCCL 2.28.9");
  CheckResult result = two_nodes();
  result.tested = {deep_tested(run)};
  JobSpec spec;
  spec.hosts.resize(2);
  CHECK(check_text(spec, result, {}, false).ends_with("\ntested: train bench: 8 × H100, NCCL 2.28.9\n"));
}

}  // namespace
}  // namespace ddp::launcher

namespace ddp::launcher {

TEST_CASE("interface names match as in NCCL and Gloo") {
  const std::vector<rendezvous::Interface> has{{"lo", "127.0.0.1", 8, true, true},
                                               {"eth01", "10.0.0.1", 24, true, false},
                                               {"ib0", "10.1.0.1", 24, true, false}};
  for (const char* value :
       {"eth", "eth01", "=eth01", "foo,ib", "=foo,ib0", "^docker", "^eth,lo", "^=eth", "", "ib0:4000"}) {
    CAPTURE(value);
    CHECK(nccl_finds(has, value));
  }
  for (const char* value : {"foo", "=eth", "eth02", "foo,=ib0", "^eth,lo,ib", "^=eth01,lo,ib0"}) {
    CAPTURE(value);
    CHECK_FALSE(nccl_finds(has, value));
  }
  CHECK(gloo_lacks(has, "eth01,ib0").empty());
  CHECK(gloo_lacks(has, "eth0,ib0,x") == "eth0, x");
  CHECK(gloo_lacks(has, "").empty());
}

}  // namespace ddp::launcher
