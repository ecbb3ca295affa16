#include "launcher/supervisor/attempt_start.h"

#include <algorithm>

#include "rendezvous/protocol/codec.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Texts = std::vector<std::string>;

const rendezvous::Interface kLoopback{"lo", "127.0.0.1", 8, true, true};

/// Node i of `count` nodes on machines of their own. They share eth0 (10.0.0.x) and, if `networks` is 2, eth1
/// (10.1.0.x).
std::vector<NodeNetwork> nodes(std::size_t count, int networks = 1) {
  std::vector<NodeNetwork> made;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i + 1);
    NodeNetwork node{"n" + std::to_string(i), "m" + number, "10.0.0." + number, {kLoopback}};
    for (int net = 0; net < networks; ++net)
      node.interfaces.push_back(
          {"eth" + std::to_string(net), "10." + std::to_string(net) + ".0." + number, 24, true, false});
    made.push_back(std::move(node));
  }
  return made;
}

rendezvous::StoreOpened opened(std::uint32_t attempt) {
  return {attempt, 4711, "token"};
}

/// A start of attempt 3 whose nodes probe the store.
AttemptStart probing(std::size_t count, int networks = 1) {
  AttemptStart start;
  REQUIRE(start.begin(3, nodes(count, networks), "").has_value());
  REQUIRE(start.opened(0, opened(3)).probes.size() == count - 1);
  return start;
}

bool is_empty(const AttemptStart::Step& step) {
  return step.detail.empty() && step.probes.empty() && !step.failure && !step.ready;
}

TEST_CASE("attempt start: the store is opened, then all others probe it, then the ranks can be spawned") {
  AttemptStart start;
  REQUIRE(start.begin(3, nodes(3), "").has_value());
  CHECK(start.awaited_step(0) == "opening the store");
  CHECK(start.awaited_step(1).empty());
  const auto order = start.opened(0, opened(3));
  REQUIRE(order.probes.size() == 2);
  CHECK(order.probes[0].participant == 1);
  CHECK(order.probes[1].participant == 2);
  CHECK(order.probes[0].message.attempt == 3);
  CHECK(order.probes[0].message.addresses == Texts{"10.0.0.1"});
  CHECK(order.probes[0].message.port == 4711);
  CHECK(order.probes[0].message.token == "token");
  CHECK_FALSE(order.ready);
  CHECK(start.awaited_step(0).empty());
  CHECK(start.awaited_step(2) == "trying to reach the store on n0");
  CHECK(is_empty(start.probed(2, {3, "10.0.0.1", ""})));
  CHECK(start.awaited_step(2).empty());
  CHECK(start.awaited_step(1) == "trying to reach the store on n0");
  CHECK(start.probed(1, {3, "10.0.0.1", ""}).ready);
  CHECK(start.awaited_step(1).empty());
  rendezvous::Spawn spawn;
  start.complete(spawn, 1);
  CHECK(spawn.attempt == 3);
  CHECK(spawn.master_addr == "10.0.0.1");
  CHECK(spawn.master_port == 4711);
  CHECK(spawn.interface_name == "eth0");
}

TEST_CASE("attempt start: late, repeated and foreign answers change nothing") {
  AttemptStart start;
  REQUIRE(start.begin(3, nodes(2), "").has_value());
  CHECK(is_empty(start.probed(1, {3, "10.0.0.1", ""})));  // before the store is open
  CHECK(is_empty(start.opened(1, opened(3))));            // not of participant 0
  CHECK(is_empty(start.opened(0, opened(2))));            // of another attempt
  CHECK(start.opened(0, opened(3)).probes.size() == 1);
  CHECK(is_empty(start.opened(0, opened(3))));
  CHECK(is_empty(start.probed(0, {3, "10.0.0.1", ""})));  // the store's own node
  CHECK(is_empty(start.probed(1, {2, "10.0.0.1", ""})));
  CHECK(start.probed(1, {3, "10.0.0.1", ""}).ready);
  CHECK(is_empty(start.probed(1, {3, "10.0.0.1", ""})));  // a second order to spawn would be fatal
}

TEST_CASE("attempt start: nodes without a common network fail it") {
  AttemptStart start;
  const Result<> begun = start.begin(0, nodes(2), "eth7");
  REQUIRE(begun.has_error());
  CHECK(begun.error().code == ErrorCode::kUsage);
}

TEST_CASE("attempt start: an address that was not probed fails it") {
  AttemptStart start = probing(2);
  const auto step = start.probed(1, {3, "10.9.9.9", ""});
  REQUIRE(step.failure);
  CHECK(step.failure->code == ErrorCode::kProtocol);
  CHECK(step.failure->text == "it reported an address that was not probed");
  CHECK_FALSE(step.ready);
}

TEST_CASE("attempt start: the interface of the probe counts where the route names none") {
  std::vector<NodeNetwork> apart = nodes(2);
  apart[1].interfaces = {
      kLoopback, {"wg0", "192.168.5.2", 24, true, false}, {"eth0", "172.16.0.2", 24, true, false}};
  AttemptStart start;
  REQUIRE(start.begin(3, apart, "").has_value());
  REQUIRE(start.opened(0, opened(3)).probes.size() == 1);
  REQUIRE(start.probed(1, {3, "10.0.0.1", "", "192.168.5.2"}).ready);
  rendezvous::Spawn spawn;
  start.complete(spawn, 1);
  CHECK(spawn.interface_name == "wg0");
  start.complete(spawn, 0);
  CHECK(spawn.interface_name == "eth0");
}

TEST_CASE("attempt start: a new attempt starts over") {
  AttemptStart start = probing(2);
  REQUIRE(start.begin(4, nodes(3), "").has_value());
  CHECK(start.awaited_step(0) == "opening the store");
  CHECK(is_empty(start.opened(0, opened(3))));
  CHECK(start.opened(0, {4, 4712, "other"}).probes.size() == 2);
  CHECK(is_empty(start.probed(1, {3, "10.0.0.1", ""})));
}

TEST_CASE("attempt start: the store is ordered as the user wants it, for the nodes' addresses only") {
  AttemptStart start;
  REQUIRE(start.begin(3, nodes(2), "").has_value());
  JobSpec spec;
  spec.master_port = 29500;
  spec.store = StoreMode::kWorker;
  spec.store_allow = {"10.0.0.2", "192.0.2.0/24"};
  rendezvous::OpenStore order = start.store_order(spec);
  CHECK(order.attempt == 3);
  CHECK(order.port == 29500);
  CHECK(order.mode == StoreMode::kWorker);
  CHECK_FALSE(order.loopback_only);
  CHECK(order.first_port == 0);
  CHECK(order.allow == Texts{"10.0.0.1", "10.0.0.2", "127.0.0.1", "192.0.2.0/24"});  // each once
  spec.port_range = {30000, 30010};
  order = start.store_order(spec);
  CHECK(order.first_port == 30000);
  CHECK(order.last_port == 30010);
  std::vector<NodeNetwork> one_machine = nodes(2);
  one_machine[1].machine_id = one_machine[0].machine_id;
  REQUIRE(start.begin(3, one_machine, "").has_value());
  CHECK(start.store_order(spec).loopback_only);
}

TEST_CASE("attempt start: of very many addresses the store gets those that are on a route") {
  std::vector<NodeNetwork> many = nodes(10'000);
  for (std::size_t i = 0; i < many.size(); ++i) {
    const std::string low = std::to_string(i / 250) + "." + std::to_string(i % 250 + 1);
    many[i].connected = "10.0." + low;
    many[i].interfaces = {kLoopback};
    for (int net = 0; net < 9; ++net)
      many[i].interfaces.push_back(
          {"eth" + std::to_string(net), "10." + std::to_string(net) + "." + low, 16, true, false});
  }
  AttemptStart start;
  REQUIRE(start.begin(3, many, "").has_value());
  const Texts allow = start.store_order(JobSpec()).allow;
  CHECK(allow.size() <= rendezvous::kMaxListElements);
  CHECK(allow.size() >= 10'000);
  CHECK(std::ranges::count(allow, "10.0.39.250") == 1);
  CHECK(std::ranges::count(allow, "10.1.39.250") == 1);  // on another route
}

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
  CHECK(other.command.argv.empty());
  CHECK(other.command.python.empty());
  CHECK(other.chdir.empty());
  CHECK(other.env.empty());
  CHECK(other.explicit_env.empty());
  CHECK(other.setup.empty());
  const rendezvous::JobStart own = job_start(spec, spec.hosts[0], 2);
  CHECK(own.local);
  CHECK(own.command.argv == std::vector<std::string>{"train.py"});
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
  CHECK(plain.command.python == "/venv/bin/python");
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

using State = NodeRecords::State;

JobSpec spec_of(const std::vector<std::string>& hosts) {
  JobSpec spec;
  spec.start_timeout = 90s;
  spec.max_nodes = static_cast<int>(hosts.size());
  for (const std::string& name : hosts)
    spec.hosts.emplace_back().name = name;
  return spec;
}

/// Attempt 0 of nodes 0 and 1, whose store is not open yet.
AttemptStart opening(NodeRecords& nodes) {
  nodes.begin_attempt(0, {{{0, 0, 0, 1}, {1, 1, 1, 1}}, 2});
  AttemptStart start;
  const rendezvous::Interface lo{"lo", "127.0.0.1", 8, true, true};
  REQUIRE(start.begin(0, {{"a", "m", "", {lo}}, {"b", "m", "", {lo}}}, "").has_value());
  return start;
}

TEST_CASE("start notice: a terminal sees a long start every second, a log at growing intervals") {
  StartNotice notice;
  CHECK_FALSE(notice.deadline());
  CHECK_FALSE(notice.is_due(1h));
  notice.begin(10s);
  CHECK(*notice.deadline() == 13s);
  CHECK_FALSE(notice.is_due(13s - 1ns));
  CHECK(notice.is_due(13s));
  std::vector<int> logged;
  for (auto now = 13s; now <= 200s; ++now) {
    REQUIRE(notice.is_due(now));
    const auto shown = notice.show("gpu07 (connecting)", now);
    REQUIRE(shown);
    CHECK(shown->text == "waiting for gpu07 (connecting)");
    CHECK(*notice.deadline() == now + 1s);
    if (shown->due) logged.push_back(static_cast<int>((now - 10s).count()));
  }
  CHECK(logged == std::vector<int>{3, 9, 27, 81, 141});
}

TEST_CASE("start notice: a late call catches up with one line") {
  StartNotice notice;
  notice.begin(0s);
  CHECK(notice.show("x", 100s)->due);
  CHECK_FALSE(notice.show("x", 140s)->due);
  CHECK(notice.show("x", 141s)->due);
}

TEST_CASE("start notice: what was shown is removed at the end, once") {
  StartNotice notice;
  notice.begin(0s);
  CHECK_FALSE(notice.show("", 3s));
  CHECK(*notice.deadline() == 4s);
  SECTION("nothing was shown") {
    CHECK_FALSE(notice.end());
  }
  SECTION("something was shown") {
    REQUIRE(notice.show("x", 4s));
    const auto removal = notice.end();
    REQUIRE(removal);
    CHECK(removal->text.empty());
    CHECK_FALSE(notice.end());
  }
  CHECK_FALSE(notice.deadline());
  CHECK_FALSE(notice.is_due(1h));
}

TEST_CASE("missing step: each state of a node has its step") {
  JobSpec spec = spec_of({"a", "b", "c"});
  NodeRecords nodes(spec);
  CHECK(missing_step(spec, nodes, nullptr, 0) == "waiting for the agent's hello");
  nodes.enter(0, State::kUp);
  CHECK(missing_step(spec, nodes, nullptr, 0) == "checking the job");
  spec.hosts[0].setup = "module load cuda";
  CHECK(missing_step(spec, nodes, nullptr, 0) == "running --setup");
  spec.hosts[0].setup.clear();
  spec.setup = {"module load cuda"};
  CHECK(missing_step(spec, nodes, nullptr, 0) == "running --setup");
  nodes.enter(0, State::kAccepted);
  nodes.enter(1, State::kAccepted);
  nodes.enter(2, State::kAccepted);
  const AttemptStart start = opening(nodes);
  CHECK(missing_step(spec, nodes, nullptr, 0).empty());
  CHECK(missing_step(spec, nodes, &start, 0) == "opening the store");
  CHECK(missing_step(spec, nodes, &start, 1).empty());
  CHECK(missing_step(spec, nodes, &start, 2).empty());  // a spare
}

TEST_CASE("awaited text: only the nodes that hold up the start are named, by their steps") {
  const JobSpec spec = spec_of({"gpu01", "gpu02", "gpu03", "gpu04"});
  NodeRecords nodes(spec);
  nodes.enter(0, State::kAccepted);
  nodes[1].start_step = "authenticating";
  nodes.enter(3, State::kUp);
  CHECK(awaited_text(spec, nodes, nullptr) ==
        "3 of 4 nodes: gpu02 (authenticating), gpu04 (checking the job), gpu03 (connecting)");
  nodes.enter(1, State::kAccepted);
  nodes.enter(2, State::kAccepted);
  nodes.enter(3, State::kAccepted);
  CHECK(awaited_text(spec, nodes, nullptr).empty());
  const AttemptStart start = opening(nodes);
  CHECK(awaited_text(spec, nodes, &start) == "1 of 4 nodes: gpu01 (opening the store)");
}

TEST_CASE("awaited text: very many names are not listed") {
  std::vector<std::string> names;
  for (int i = 0; i < 8; ++i)
    names.push_back("node-" + std::string(1, static_cast<char>('a' + i)));
  JobSpec spec = spec_of(names);
  CHECK(awaited_text(spec, NodeRecords(spec), nullptr) ==
        "8 of 8 nodes: node-a,node-b,node-c,node-d,node-e,node-f,node-g,node-h (connecting)");  // 55 bytes
  spec.hosts[7].name = "node-hhhhhh";                                                           // 60 bytes
  CHECK(awaited_text(spec, NodeRecords(spec), nullptr).find("node-hhhhhh") != std::string::npos);
  spec.hosts[7].name = "node-hhhhhhh";  // 61 bytes
  CHECK(awaited_text(spec, NodeRecords(spec), nullptr) == "8 of 8 nodes: node-a and 7 more (connecting)");
}

TEST_CASE("missing nodes: a job that cannot start names the absent ones in the order of their failures") {
  const JobSpec spec = spec_of({"a", "b", "c", "d"});
  NodeRecords nodes(spec);
  nodes.enter(0, State::kAccepted);
  nodes.enter(1, State::kGone);
  nodes.enter(2, State::kGone);
  nodes[1].trouble = {Error{ErrorCode::kUnreachable, "no route", 0}, 7s};
  nodes[2].trouble = {Error{ErrorCode::kRefused, "no such directory", 0}, 5s};
  auto missing = missing_nodes(spec, nodes, true, false);
  REQUIRE(missing.size() == 2);  // node d had no time to come
  CHECK(missing[0].first == "c");
  CHECK(missing[0].second.code == ErrorCode::kRefused);
  CHECK(missing[0].second.text == "no such directory");
  CHECK(missing[1].first == "b");
  missing = missing_nodes(spec, nodes, true, true);
  REQUIRE(missing.size() == 3);
  CHECK(missing[2].first == "d");
  CHECK(missing[2].second.code == ErrorCode::kTimeout);
  CHECK(missing[2].second.text ==
        "it was still waiting for the agent's hello when the start limit of 90 s ran out (--start-timeout)");
}

TEST_CASE("missing nodes: a node is missing though it accepted, if it was lost or sent away") {
  const JobSpec spec = spec_of({"a"});
  NodeRecords nodes(spec);
  nodes.enter(0, State::kAccepted);
  CHECK(missing_nodes(spec, nodes, true, true).empty());
  nodes.lose(0, Error{ErrorCode::kLinkLost, "the link was closed", 0}, 20s, false, 5s);
  CHECK(missing_nodes(spec, nodes, true, false).size() == 1);
  nodes[0].lost = false;
  nodes.enter(0, State::kLeaving);
  CHECK(missing_nodes(spec, nodes, true, false).size() == 1);
}

TEST_CASE("missing nodes: after a loss only nodes of the attempt count") {
  const JobSpec spec = spec_of({"a", "b", "c"});
  NodeRecords nodes(spec);
  nodes.enter(0, State::kAccepted);
  nodes.enter(1, State::kAccepted);
  const AttemptStart start = opening(nodes);
  nodes.lose(1, Error{ErrorCode::kUnreachable, "no route", 0}, 20s, false, 5s);
  const auto missing = missing_nodes(spec, nodes, false, true);
  REQUIRE(missing.size() == 1);
  CHECK(missing[0].first == "b");
  CHECK(missing[0].second.code == ErrorCode::kLinkLost);
  CHECK(missing[0].second.text == "no route; no node replaced it within 90 s (--start-timeout)");
}

TEST_CASE("the size of a job is short if its nodes are equal") {
  CHECK(size_text({{{0, 0, 0, 8}, {1, 1, 8, 8}}, 16}) == "2 nodes × 8 workers");
  CHECK(size_text({{{0, 0, 0, 8}, {1, 1, 8, 4}}, 12}) == "2 nodes, 12 workers");
  CHECK(size_text({{{0, 0, 0, 1}}, 1}) == "1 node × 1 worker");
}

}  // namespace
}  // namespace ddp::launcher
