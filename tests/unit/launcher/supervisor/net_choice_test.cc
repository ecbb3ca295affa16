#include "launcher/supervisor/net_choice.h"

#include <deque>
#include <random>
#include <set>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using rendezvous::Interface;

// Parses "eth0 10.0.0.1/24", with an optional " down" or " loopback" at the end.
Interface net(const std::string& text) {
  Interface made;
  const std::size_t blank = text.find(' ');
  const std::size_t slash = text.find('/');
  made.name = text.substr(0, blank);
  made.address = text.substr(blank + 1, slash - blank - 1);
  made.prefix_length = static_cast<std::uint8_t>(std::stoi(text.substr(slash + 1)));
  made.up = text.find("down") == std::string::npos;
  made.loopback = text.find("loopback") != std::string::npos;
  return made;
}

NodeNetwork node(const std::string& name, const std::string& connected,
                 const std::vector<std::string>& interfaces, const std::string& machine = "") {
  NodeNetwork made{
      name, machine.empty() ? "m-" + name : machine, connected, {net("lo 127.0.0.1/8 loopback")}};
  for (const std::string& text : interfaces)
    made.interfaces.push_back(net(text));
  return made;
}

using Texts = std::vector<std::string>;

TEST_CASE("all nodes on one machine use loopback") {
  const auto choice = choose_network({node("127.0.0.2", "127.0.0.2", {"eth0 10.0.0.1/24"}, "m"),
                                      node("127.0.0.3", "127.0.0.3", {"eth0 10.0.0.1/24"}, "m")},
                                     "");
  REQUIRE(choice.has_value());
  CHECK(choice->one_machine);
  CHECK(choice->master_addrs() == Texts{"127.0.0.1"});
  CHECK(choice->routes[0].interfaces == Texts{"lo", "lo"});
  CHECK(choice->reason == "all nodes are on one machine: 127.0.0.1");
  CHECK(choose_network({node("laptop", "192.168.0.7", {"tun0 10.8.0.2/24"})}, "")->reason ==
        "one node: 127.0.0.1");
}

TEST_CASE("a loopback that is down is one error, before the start") {
  NodeNetwork a = node("a", "10.0.0.1", {"eth0 10.0.0.1/24"}, "m");
  const NodeNetwork twin = node("twin", "10.0.0.1", {"eth0 10.0.0.1/24"}, "m");
  const NodeNetwork other = node("b", "10.0.0.2", {"eth0 10.0.0.2/24"});
  struct Case {
    std::vector<std::string> loopback;
    std::string alone;
    std::string with_others;
  };
  const std::string down = "lo is down on a; ip link set lo up";
  for (const auto& [loopback, alone, with_others] :
       {Case{{}, down, down}, Case{{"lo 127.0.0.1/8 loopback down", "lo ::1/128 loopback down"}, down, down},
        Case{{"lo ::1/128 loopback"}, "lo has no address 127.0.0.1 on a; ip addr add 127.0.0.1/8 dev lo", ""},
        Case{{"lo ::1/128 loopback", "lo 127.0.0.1/8 loopback"}, "", ""},
        Case{{"lo 127.0.0.53/8 loopback"}, "", ""}}) {
    a.interfaces = {net("eth0 10.0.0.1/24")};
    for (const std::string& text : loopback)
      a.interfaces.push_back(net(text));
    const auto text_of = [](const Result<NetChoice>& choice) { return choice ? "" : choice.error().text; };
    CHECK(text_of(choose_network({a}, "")) == alone);
    CHECK(text_of(choose_network({twin, a}, "")) == alone);
    CHECK(text_of(choose_network({other, a}, "")) == with_others);
    CHECK(text_of(choose_network({twin, a}, "eth0")) == with_others);
  }
}

TEST_CASE("one machine under several names is found, unless the user wants it") {
  using Places = std::vector<std::size_t>;
  const auto found = [](std::string_view first, std::string_view second, const remote::Host& host,
                        LauncherKind launcher = LauncherKind::kSsh, const std::string& other = "m") {
    JobSpec spec;
    spec.launcher = launcher;
    remote::Host twin = host;
    twin.name = "twin";
    const auto hello = [](const std::string& machine) {
      rendezvous::Hello made;
      made.machine_id = machine;
      return made;
    };
    return repeated_machine({node_network(spec, host, hello("m"), std::string(first)),
                             node_network(spec, twin, hello(other), std::string(second))});
  };
  remote::Host host;
  host.name = "nodea";
  CHECK(found("10.0.0.1", "10.0.0.1", host) == Places{0, 1});
  CHECK(found("10.0.0.1", "127.0.0.1", host) == Places{0, 1});
  CHECK(found("", "", host) == Places{0, 1});
  CHECK(found("127.0.0.2", "127.0.0.3", host).empty());
  CHECK(found("127.0.0.1", "::1", host).empty());
  CHECK(found("10.0.0.1", "10.0.0.1", host, LauncherKind::kSsh, "other").empty());
  CHECK(found("10.0.0.1", "10.0.0.1", host, LauncherKind::kSsh, "").empty());
  CHECK(found("10.0.0.1", "10.0.0.1", host, LauncherKind::kDaemon) == Places{0, 1});
  for (const auto launcher : {LauncherKind::kLocal, LauncherKind::kSlurm, LauncherKind::kJoin})
    CHECK(found("10.0.0.1", "10.0.0.1", host, launcher).empty());
  remote::Host wrapped = host;
  wrapped.wrapper = {"docker", "exec"};
  CHECK(found("10.0.0.1", "10.0.0.1", wrapped).empty());
  remote::Host shared = host;
  shared.devices = {"0"};
  CHECK(found("10.0.0.1", "10.0.0.1", shared).empty());
}

TEST_CASE("nodes without a machine ID never count as one machine") {
  NodeNetwork a = node("a", "10.0.0.1", {"eth0 10.0.0.1/24"});
  NodeNetwork b = node("b", "10.0.0.2", {"eth0 10.0.0.2/24"});
  a.machine_id = b.machine_id = "";
  CHECK_FALSE(choose_network({a, b}, "")->one_machine);
}

struct NetworkRow {
  const char* name;
  std::vector<NodeNetwork> nodes;
  Texts master_addrs;
  Texts interfaces;         ///< of the first route, of each node; not checked if empty
  std::string reason = "";  ///< not checked if empty
};

TEST_CASE("the network of nodes on several machines") {
  const Texts vpn_a{"wg0 10.8.0.1/24", "eth0 10.0.0.1/24"}, vpn_b{"wg0 10.8.0.2/24", "eth0 10.0.0.2/24"};
  const std::vector<NetworkRow> rows{
      {"the shared network of the resolved names is taken",
       {node("a", "10.1.0.1", {"eth0 192.168.0.1/24", "ib0 10.1.0.1/16"}),
        node("b", "10.1.0.2", {"eth0 192.168.0.2/24", "ib1 10.1.0.2/16"})},
       {"10.1.0.1", "192.168.0.1"},
       {"ib0", "ib1"},
       "10.1.0.0/16, shared by all 2 nodes, where their names resolve to: 10.1.0.1"},
      {"localhost as node 0 of remote nodes gets its address on their network",
       {node("localhost", "127.0.0.1", {"wlan0 192.168.7.9/24", "eth0 10.0.0.9/24"}),
        node("gpu01", "10.0.0.1", {"eth0 10.0.0.1/24"})},
       {"10.0.0.9"},
       {"eth0", "eth0"},
       "10.0.0.0/24, shared by all 2 nodes, where 1 of their names resolve to: 10.0.0.9"},
      {"host-local bridges and inactive interfaces do not count",
       {node("a", "10.0.0.1", {"docker0 172.17.0.1/16", "eth1 10.5.0.1/24 down", "eth0 10.0.0.1/24"}),
        node("b", "10.0.0.2", {"docker0 172.17.0.1/16", "eth1 10.5.0.2/24 down", "eth0 10.0.0.2/24"})},
       {"10.0.0.1"},
       {"eth0", "eth0"}},
      {"a bridge of another name is recognized by its address, which is the same on both nodes",
       {node("a", "", {"usb0 192.168.55.1/24", "eth0 10.0.0.1/24"}),
        node("b", "", {"usb0 192.168.55.1/24", "eth0 10.0.0.2/24"})},
       {"10.0.0.1"},
       {"eth0", "eth0"},
       "10.0.0.0/24, shared by all 2 nodes: 10.0.0.1"},
      {"a bridge counts if a node was reached through it",
       {node("localhost", "127.0.0.1", {"docker0 172.17.0.1/16", "eth0 10.0.0.1/24"}),
        node("box", "172.17.0.2", {"eth0 172.17.0.2/16"})},
       {"172.17.0.1"},
       {"docker0", "eth0"}},
      {"a VPN comes last", {node("a", "", vpn_a), node("b", "", vpn_b)}, {"10.0.0.1", "10.8.0.1"}, {}},
      {"a VPN comes first if the names resolve to it",
       {node("a", "10.8.0.1", vpn_a), node("b", "10.8.0.2", vpn_b)},
       {"10.8.0.1", "10.0.0.1"},
       {}},
      {"IPv6 is used, but never link-local",
       {node("a", "fd00::1", {"eth0 fe80::1/64", "eth0 fd00::1/64"}),
        node("b", "fd00::2", {"eth0 fe80::2/64", "eth0 fd00::2/64"})},
       {"fd00::1"},
       {},
       "fd00::/64, shared by all 2 nodes, where their names resolve to: fd00::1"},
      {"other IPv6",
       {node("a", "", {"eth0 fd80::1/64"}), node("b", "", {"eth0 fd80::2/64"})},
       {"fd80::1"},
       {}},
      {"IPv4 comes first when both are shared",
       {node("a", "", {"eth0 fd00::1/64", "eth0 10.0.0.1/24"}),
        node("b", "", {"eth0 fd00::2/64", "eth0 10.0.0.2/24"})},
       {"10.0.0.1", "fd00::1"},
       {}},
      {"a routed pod network",
       {node("pod-0", "10.244.1.7", {"eth0 10.244.1.7/24"}),
        node("pod-1", "10.244.2.7", {"net1 10.244.2.7/24"})},
       {"10.244.1.7"},
       {"eth0", "net1"},
       "no network is shared by all nodes; taking the address at which pod-0 was reached: 10.244.1.7"},
      {"a cloud that gives /32",
       {node("front", "203.0.113.5", {"eth0 10.128.0.2/32"}),
        node("b", "203.0.113.6", {"eth0 10.128.0.3/32"})},
       {"203.0.113.5", "10.128.0.2"},
       {"", ""}},
      {"such a cloud, with node 0 here",
       {node("localhost", "127.0.0.1", {"eth0 10.128.0.2/32"}),
        node("b", "10.128.0.3", {"eth0 10.128.0.3/32"})},
       {"10.128.0.2"},
       {},
       "no network is shared by all nodes; taking the only address of localhost: 10.128.0.2"},
      {"containers that are reached through forwarded ports of this machine",
       {node("localhost", "127.0.0.1", {"eth0 172.20.0.2/16"}, "box1"),
        node("localhost", "127.0.0.1", {"eth0 172.20.0.3/16"}, "box2")},
       {"172.20.0.2"},
       {"eth0", "eth0"}},
      {"the same over IPv6",
       {node("localhost", "::1", {"eth0 172.20.0.2/16"}, "box1"),
        node("localhost", "::1", {"eth0 172.20.0.3/16"}, "box2")},
       {"172.20.0.2"},
       {}},
      {"two nodes on one machine beside a third elsewhere share its network",
       {node("a", "10.0.0.1", {"eth0 10.0.0.1/24"}, "m"), node("a2", "10.0.0.1", {"eth0 10.0.0.1/24"}, "m"),
        node("b", "10.0.0.2", {"eth0 10.0.0.2/24"})},
       {"10.0.0.1"},
       {"eth0", "eth0", "eth0"}},
  };
  for (const NetworkRow& row : rows) {
    INFO(row.name);
    const auto choice = choose_network(row.nodes, "");
    REQUIRE(choice.has_value());
    CHECK_FALSE(choice->one_machine);
    CHECK(choice->master_addrs() == row.master_addrs);
    if (!row.interfaces.empty()) CHECK(choice->routes[0].interfaces == row.interfaces);
    if (!row.reason.empty()) CHECK(choice->reason == row.reason);
  }
  // A mapped address is IPv4.
  CHECK(choose_network({node("a", "::ffff:10.0.0.1", {"eth9 10.9.0.1/24", "eth0 10.0.0.1/24"}),
                        node("b", "::ffff:10.0.0.2", {"eth9 10.9.0.2/24", "eth0 10.0.0.2/24"})},
                       "")
            ->master_addrs()
            .front() == "10.0.0.1");
}

TEST_CASE("without a shared network and with node 0 on loopback the error lists each node's networks") {
  const auto choice = choose_network(
      {node("localhost", "127.0.0.1", {"eth0 10.0.0.1/24", "eth1 10.1.0.1/24"}),
       node("gpu01", "10.2.0.1", {"eth0 10.2.0.1/24", "ib0 10.3.0.1/24 down"}), node("bare", "", {})},
      "");
  REQUIRE_FALSE(choice.has_value());
  CHECK(choice.error().code == ErrorCode::kUnreachable);
  CHECK(choice.error().text ==
        "no network is shared by all nodes, and localhost was reached by loopback only; name its network "
        "with --network\n"
        "the addresses of the nodes:\n"
        "  localhost: eth0 10.0.0.1/24, eth1 10.1.0.1/24\n"
        "  gpu01: eth0 10.2.0.1/24, ib0 10.3.0.1/24 (down)\n"
        "  bare: no address but loopback");
}

TEST_CASE("an error lists the addresses of 16 nodes and counts the others") {
  std::vector<NodeNetwork> nodes;
  for (int i = 0; i < 16; ++i)
    nodes.push_back(node("n" + std::to_string(i), "", {"eth0 10.0.0.1/24"}));
  const auto ends_with = [&](const std::string& last) {
    return choose_network(nodes, "lo").error().text.ends_with(last);
  };
  CHECK(ends_with("\n  n15: eth0 10.0.0.1/24"));
  nodes.push_back(nodes[0]);
  CHECK(ends_with("\n  n15: eth0 10.0.0.1/24\n  and 1 more nodes"));
}

TEST_CASE("--network as CIDR or interface name") {
  const std::vector<NodeNetwork> nodes{node("a", "192.168.0.1", {"eth0 192.168.0.1/24", "ib0 10.1.0.1/24"}),
                                       node("b", "192.168.0.2", {"eth0 192.168.0.2/24", "ib1 10.1.3.2/24"})};
  const auto cidr = choose_network(nodes, "10.1.0.0/16");
  REQUIRE(cidr.has_value());
  CHECK(cidr->master_addrs() == Texts{"10.1.0.1"});
  CHECK(cidr->routes[0].interfaces == Texts{"ib0", "ib1"});
  CHECK(cidr->reason == "--network 10.1.0.0/16: 10.1.0.1");
  CHECK(cidr->routes[0].addresses == Texts{"10.1.0.1", "10.1.3.2"});
  CHECK(choose_network(nodes, "eth0")->master_addrs() == Texts{"192.168.0.1"});

  const auto missing = choose_network(nodes, "ib0");
  REQUIRE_FALSE(missing.has_value());
  CHECK(missing.error().code == ErrorCode::kUsage);
  CHECK(missing.error().text ==
        "--network ib0: no interface has that name on b\n"
        "the addresses of the nodes:\n"
        "  a: eth0 192.168.0.1/24, ib0 10.1.0.1/24\n"
        "  b: eth0 192.168.0.2/24, ib1 10.1.3.2/24");
  CHECK(choose_network({nodes[0], node("b", "192.168.0.2", {"eth0 192.168.0.2/24", "ib0 fe80::2/64"})}, "ib0")
            .error()
            .text.find("--network ib0: no usable address on that interface on b\n") == 0);
  CHECK(choose_network(nodes, "10.9.0.0/16")
            .error()
            .text.find("--network 10.9.0.0/16: no usable address in it on a, b\n") == 0);
  for (const std::string bad : {"10.1.0.0/33", "x/8", "10.1.0.0/", "10.1.0.0/8x", "fd00::/129"}) {
    const auto choice = choose_network(nodes, bad);
    REQUIRE_FALSE(choice.has_value());
    CHECK(choice.error().code == ErrorCode::kUsage);
    CHECK(choice.error().text ==
          "--network " + bad + ": neither a network such as 10.1.0.0/16 nor an interface name");
  }
  for (const std::string loop : {"lo", "127.0.0.0/8"})
    CHECK(choose_network(nodes, loop).error().code == ErrorCode::kUsage);
}

TEST_CASE("--network where machines have the same address") {
  const std::vector<NodeNetwork> nodes{node("a", "10.0.0.1", {"docker0 172.17.0.1/16", "eth0 10.0.0.1/24"}),
                                       node("b", "10.0.0.2", {"docker0 172.17.0.1/16", "eth0 10.0.0.2/24"}),
                                       node("c", "10.0.0.3", {"docker0 172.17.0.3/16", "eth0 10.0.0.3/24"})};
  for (const std::string wanted : {"docker0", "172.17.0.0/16"}) {
    const auto same = choose_network(nodes, wanted);
    REQUIRE_FALSE(same.has_value());
    CHECK(same.error().code == ErrorCode::kUsage);
    CHECK(same.error().text ==
          "--network " + wanted +
              ": a and b have the same address on it, 172.17.0.1, so this network does "
              "not connect them; choose another with --network\nthe addresses of the nodes:\n"
              "  a: docker0 172.17.0.1/16, eth0 10.0.0.1/24\n"
              "  b: docker0 172.17.0.1/16, eth0 10.0.0.2/24\n"
              "  c: docker0 172.17.0.3/16, eth0 10.0.0.3/24");
  }
  // If node 0 has another address in that network, that address is used.
  for (const char* connected : {"10.0.0.1", "172.17.0.1"}) {
    CHECK(choose_network(
              {node("a", connected, {"docker0 172.17.0.1/16", "eth0 10.0.0.1/24"}), nodes[1], nodes[2]},
              "0.0.0.0/0")
              ->master_addrs() == Texts{"10.0.0.1"});
  }
}

TEST_CASE("--network on one machine") {
  const std::vector<NodeNetwork> nodes{node("a", "", {"eth0 10.0.0.1/24"}, "m"),
                                       node("b", "", {"eth0 10.0.0.1/24"}, "m")};
  CHECK(choose_network(nodes, "eth0")->master_addrs() == Texts{"10.0.0.1"});
  CHECK(choose_network(nodes, "lo")->master_addrs() == Texts{"127.0.0.1"});
  CHECK_FALSE(choose_network(nodes, "eth0")->one_machine);  // true: the store on loopback only
  CHECK(choose_network(nodes, "lo")->one_machine);
}

TEST_CASE("malformed addresses of a node are ignored") {
  NodeNetwork a = node("a", "not an address", {"eth0 10.0.0.1/24"});
  Interface wild = net("eth1 10.0.0.1/24");
  wild.address = "10.0.0.999";
  a.interfaces.push_back(wild);
  wild.address = "10.0.0.7";
  wild.prefix_length = 255;
  a.interfaces.push_back(wild);
  const auto choice = choose_network({a, node("b", "", {"eth0 10.0.0.2/24"})}, "");
  REQUIRE(choice.has_value());
  CHECK(choice->master_addrs() == Texts{"10.0.0.1"});
}

/// Answers like a node that reaches `open`: with the first address in it, or with none.
std::vector<MasterAddress::AddressProbe> answer(MasterAddress& master,
                                                const MasterAddress::AddressProbe& probe,
                                                const std::set<std::string>& open) {
  for (const std::string& address : probe.addresses) {
    if (open.count(address) > 0) return master.reached(probe.node, address);
  }
  return master.failed(probe.node);
}

TEST_CASE("an answer without a question changes nothing") {
  MasterAddress master;
  (void)master.begin({"A", "B"}, 2);
  CHECK(master.reached(1, "A").empty());
  CHECK(master.failed(1).empty());
  CHECK(master.settled());
}

TEST_CASE("any order of answers gives the best address that all nodes reach, or none") {
  std::mt19937 random(7);
  MasterAddress master;  // each round is another attempt
  for (int round = 0; round < 1000; ++round) {
    const Texts candidates{"A", "B", "C", "D"};
    const std::size_t nodes = 2 + random() % 5;
    std::vector<std::set<std::string>> open(nodes);
    for (auto& reachable : open) {
      for (const std::string& candidate : candidates) {
        if (random() % 4 != 0) reachable.insert(candidate);
      }
    }
    std::string best;
    for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {
      bool all = true;
      for (std::size_t i = 1; i < nodes; ++i)
        all = all && open[i].count(*candidate) > 0;
      if (all) best = *candidate;
    }

    auto asked = master.begin(candidates, nodes);
    while (!asked.empty()) {
      const std::size_t pick = random() % asked.size();
      const MasterAddress::AddressProbe probe = asked[pick];
      asked.erase(asked.begin() + static_cast<std::ptrdiff_t>(pick));
      for (auto& more : answer(master, probe, open[probe.node]))
        asked.push_back(std::move(more));
    }
    REQUIRE(master.settled() == !best.empty());
    REQUIRE(master.is_exhausted() == best.empty());
    if (!best.empty()) REQUIRE(master.chosen() == best);
  }
}

}  // namespace
}  // namespace ddp::launcher
