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

TEST_CASE("attempt start: a single node needs no probe") {
  AttemptStart start;
  REQUIRE(start.begin(0, nodes(1), "").has_value());
  const auto step = start.opened(0, opened(0));
  CHECK(step.ready);
  CHECK(step.probes.empty());
  CHECK(is_empty(start.opened(0, opened(0))));
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

TEST_CASE("attempt start: a node that reaches no address fails it") {
  AttemptStart start = probing(2);
  const auto step = start.probed(1, {3, "", "10.0.0.1: connection refused"});
  REQUIRE(step.failure);
  CHECK(step.failure->code == ErrorCode::kUnreachable);
  CHECK(
      step.failure->text ==
      "it cannot reach the store on n0 (10.0.0.1: connection refused); open port 4711 between the nodes, or "
      "choose a network with --network");
  CHECK_FALSE(step.ready);
}

TEST_CASE("attempt start: the other nodes that cut off an address are named") {
  AttemptStart start = probing(3, 2);
  CHECK(start.probed(2, {3, "10.1.0.1", "10.0.0.1: no route"}).detail ==
        "n2 cannot reach n0 at every address: 10.0.0.1: no route");
  REQUIRE(start.probed(1, {3, "10.0.0.1", ""}).probes.size() == 1);  // now for the second address
  const auto step = start.probed(1, {3, "", "no route"});
  REQUIRE(step.failure);
  CHECK(step.failure->text ==
        "it cannot reach the store on n0 (no route), and n2 does not reach 10.0.0.1; open port 4711 between "
        "the nodes, or choose a network with --network");
}

TEST_CASE("attempt start: all take the best address that all reach") {
  AttemptStart start = probing(3, 2);
  CHECK(start.probed(1, {3, "10.0.0.1", ""}).detail.empty());
  const auto again = start.probed(2, {3, "10.1.0.1", ""});
  REQUIRE(again.probes.size() == 1);  // node 1 has not tried the second address
  CHECK(again.probes[0].participant == 1);
  CHECK(again.probes[0].message.addresses == Texts{"10.1.0.1"});
  CHECK_FALSE(again.ready);
  CHECK(start.probed(1, {3, "10.1.0.1", ""}).ready);
  const Texts lines = start.network_lines({});
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "network 10.1.0.0/24: MASTER_ADDR=10.1.0.1 (eth1)");
  CHECK(lines[1] == "n2 cannot reach n0 at 10.0.0.1 (10.0.0.0/24); trying the next address");
}

TEST_CASE("attempt start: InfiniBand that is not used is a warning") {
  AttemptStart start = probing(2);
  REQUIRE(start.probed(1, {3, "10.0.0.1", ""}).ready);
  CHECK(start.network_lines({{"n0", 8, {"mlx5_0"}, ""}, {"n1", 8, {"mlx5_0"}, ""}}).size() == 1);
  const Texts lines = start.network_lines({{"n0", 8, {"mlx5_0"}, "no memlock"}, {"n1", 8, {"mlx5_0"}, ""}});
  REQUIRE(lines.size() == 2);
  CHECK(lines[1] == "warning: NCCL will use TCP sockets although InfiniBand exists: no memlock (n0)");
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
  CHECK(order.mode == static_cast<std::uint8_t>(StoreMode::kWorker));
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
  std::vector<NodeNetwork> many = nodes(2000);
  for (std::size_t i = 0; i < many.size(); ++i) {
    const std::string low = std::to_string(i / 250) + "." + std::to_string(i % 250 + 1);
    many[i].connected = "10.0." + low;
    many[i].interfaces = {kLoopback};
    for (int net = 0; net < 40; ++net)
      many[i].interfaces.push_back(
          {"eth" + std::to_string(net), "10." + std::to_string(net) + "." + low, 16, true, false});
  }
  AttemptStart start;
  REQUIRE(start.begin(3, many, "").has_value());
  const Texts allow = start.store_order(JobSpec()).allow;
  CHECK(allow.size() <= rendezvous::kMaxListElements);
  CHECK(allow.size() >= 2000);
  CHECK(std::ranges::count(allow, "10.0.7.250") == 1);
}

}  // namespace
}  // namespace ddp::launcher
