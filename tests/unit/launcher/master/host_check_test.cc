#include "launcher/master/host_check.h"

#include <csignal>
#include <memory>

#include "rendezvous/protocol/codec.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Reach = CheckedNode::Reach;

/// A check of some nodes, driven by hand. `did` holds the orders after the last event: "0 NodeCheck, 1 drop".
struct CheckedJob {
  JobSpec spec;
  asio::io_context loop{1};
  std::unique_ptr<HostCheck> check;
  bool finished = false;
  std::string did;
  std::uint16_t asked_port = 0;
  std::vector<std::string> store_guests;
  bool two_networks = false;
  bool cleans = false;

  explicit CheckedJob(int nodes, CheckScope scope = {}, std::chrono::milliseconds start_timeout = 40s,
                      const std::string& last_setup = "") {
    for (int i = 0; i < nodes; ++i)
      spec.hosts.emplace_back().name = "n" + std::to_string(i);
    spec.hosts.back().setup = last_setup;
    spec.start_timeout = start_timeout;
    const HostCheck::Nodes orders{
        [this](std::size_t node, const rendezvous::Message& message) { note(node, message); },
        [this](std::size_t node) { note(std::to_string(node) + " drop"); }};
    check = std::make_unique<HostCheck>(loop.get_executor(), spec, scope, orders);
    asio::co_spawn(loop, check->run(), [this](const std::exception_ptr&) { finished = true; });
    after([] {});
  }

  void note(const std::string& order) { did += (did.empty() ? "" : ", ") + order; }
  void note(std::size_t node, const rendezvous::Message& message) {
    note(std::to_string(node) + ' ' + std::string(message_name(message)));
    if (const auto* asked = std::get_if<rendezvous::NodeCheck>(&message)) cleans = asked->clean;
    if (const auto* open = std::get_if<rendezvous::OpenStore>(&message)) store_guests = open->allow;
    if (const auto* probe = std::get_if<rendezvous::Probe>(&message)) asked_port = probe->port;
  }
  template <class Event>
  void after(Event event) {
    did.clear();
    event();
    loop.restart();
    loop.poll();
  }
  void up(std::size_t node) {
    rendezvous::Hello hello;
    hello.machine_id = "m" + std::to_string(node);
    hello.cpus = 4;
    const std::string address = "10.0.0." + std::to_string(node + 1);
    hello.interfaces = {{"lo", "127.0.0.1", 8, true, true}, {"eth0", address, 24, true, false}};
    if (two_networks)
      hello.interfaces.push_back({"eth1", "10.9.0." + std::to_string(node + 1), 24, true, false});
    after([&] { check->node_up(node, hello, address); });
  }
  void receive(std::size_t node, const rendezvous::Message& message) {
    after([&] { check->on_message(node, message); });
  }
  void checked(std::size_t node) { receive(node, rendezvous::NodeChecked{}); }
  void check_all() {
    for (std::size_t node = 0; node < spec.hosts.size(); ++node)
      up(node);
    for (std::size_t node = 0; node < spec.hosts.size(); ++node)
      checked(node);
  }
  void opened() {
    rendezvous::StoreOpened message;
    message.port = 4000;
    receive(0, message);
  }
  void probed(std::size_t node, const std::string& address, const std::string& text = "") {
    rendezvous::ProbeResult message;
    message.address = address;
    message.text = text;
    receive(node, message);
  }
  void failed(std::size_t node, Error error) {
    after([&] { check->node_failed(node, std::move(error)); });
  }
  void gone(std::size_t node) { failed(node, Error{ErrorCode::kLinkLost, "gone"}); }
  void interrupt() {
    after([&] { check->interrupt(SIGINT); });
  }
  /// Lets the time pass until the check acts or ends.
  void tick() {
    did.clear();
    loop.restart();
    while (did.empty() && !finished)
      loop.run_one();
    loop.poll();
  }
};

}  // namespace

TEST_CASE("a host that is cleaned answers and leaves, and no network is tried") {
  CheckedJob job(2, {.clean = true});
  job.up(0);
  CHECK(job.cleans);
  job.up(1);
  job.checked(0);
  job.checked(1);
  CHECK(job.did == "0 Leave, 1 Leave");
  job.gone(0);
  job.gone(1);
  CHECK(job.finished);
}

TEST_CASE("all hosts pass") {
  CheckedJob job(3);
  job.up(1);
  CHECK(job.did == "1 NodeCheck");
  job.up(0);
  job.up(2);
  job.checked(1);
  job.checked(0);
  CHECK(job.did.empty());
  job.checked(2);
  CHECK(job.did == "0 OpenStore");
  job.opened();
  CHECK(job.did == "1 Probe, 2 Probe");
  CHECK(job.asked_port == 4000);
  job.probed(2, "10.0.0.1");
  job.probed(1, "10.0.0.1");
  CHECK(job.did == "0 Leave, 1 Leave, 2 Leave");
  for (const std::size_t node : {0, 1, 2})
    job.gone(node);
  CHECK(job.finished);
  const CheckResult result = job.check->take_result();
  CHECK(result.master_addr == "10.0.0.1");
  CHECK(result.store_port == 4000);
  REQUIRE((result.plan && *result.plan));
  CHECK((*result.plan)->world_size == 3);
  for (const CheckedNode& node : result.nodes) {
    CHECK_FALSE(node.error);
    CHECK(node.reach == Reach::kReached);
  }
}

TEST_CASE("a network that some nodes do not reach is skipped, and the nodes are named") {
  CheckedJob job(4, {.inspect = false});
  job.two_networks = true;
  for (const std::size_t node : {0, 1, 2, 3})
    job.up(node);
  job.opened();
  job.probed(1, "10.0.0.1");
  job.probed(2, "10.9.0.1");
  job.probed(3, "10.9.0.1");
  job.probed(1, "10.9.0.1");  // asked once more
  CHECK(job.did == "0 Leave, 1 Leave, 2 Leave, 3 Leave");
  const CheckResult result = job.check->take_result();
  CHECK(result.master_addr == "10.9.0.1");
  REQUIRE(result.rejected_networks.size() == 1);
  CHECK(result.rejected_networks[0].master_addr == "10.0.0.1");
  CHECK(result.rejected_networks[0].network == "10.0.0.0/24");
  CHECK(result.rejected_networks[0].nodes == std::vector<std::size_t>{2, 3});
}

TEST_CASE("ddplaunch hosts asks a node for nothing beyond its hello") {
  CheckedJob job(2, {.inspect = false});
  job.up(0);
  CHECK(job.did.empty());
  job.up(1);
  CHECK(job.did == "0 OpenStore");
}

TEST_CASE("the store answers the nodes and --store-allow, as that of a job") {
  CheckedJob job(2);
  job.spec.store_allow = {"203.0.113.0/24"};
  job.check_all();
  CHECK(job.did == "0 OpenStore");
  CHECK(job.store_guests == std::vector<std::string>{"10.0.0.1", "10.0.0.2", "127.0.0.1", "203.0.113.0/24"});
}

TEST_CASE("a failing host ends nothing for the others") {
  CheckedJob job(3);
  job.up(0);
  job.up(2);
  job.checked(0);
  job.checked(2);
  job.failed(1, Error{ErrorCode::kUnreachable, "refused"});
  CHECK(job.did == "0 OpenStore");
  job.opened();
  CHECK(job.did == "2 Probe");
  job.probed(2, "", "10.0.0.1:4000: no answer");
  CHECK(job.did == "0 Leave, 2 Leave");
  job.gone(0);
  job.gone(2);
  REQUIRE(job.finished);
  const CheckResult result = job.check->take_result();
  CHECK_FALSE(result.plan);
  REQUIRE(result.nodes[1].error);
  CHECK(result.nodes[1].error->text == "refused");
  CHECK(result.nodes[2].reach == Reach::kFailed);
  CHECK(result.nodes[2].reach_text == "10.0.0.1:4000: no answer");
}

TEST_CASE("without node 0 no network is tried") {
  CheckedJob job(2);
  job.up(1);
  job.checked(1);
  job.failed(0, Error{ErrorCode::kUnreachable, "refused"});
  CHECK(job.did == "1 Leave");
  job.gone(1);
  CHECK(job.finished);
}

TEST_CASE("a host that does not answer in time is given up, and the others continue") {
  CheckedJob job(3, {}, 1200ms);
  job.up(0);
  job.checked(0);
  job.up(1);  // its check hangs
  job.tick();
  CHECK(job.did == "1 drop, 2 drop, 0 OpenStore");
  job.opened();
  CHECK(job.did == "0 Leave");
  job.gone(0);
  REQUIRE(job.finished);
  const CheckResult result = job.check->take_result();
  CHECK(result.nodes[1].error->code == ErrorCode::kTimeout);
  CHECK(result.nodes[1].error->text.starts_with(
      "its agent answered, but did not finish its check within 900 ms"));
  CHECK(result.nodes[2].error->text == "no agent answered within 900 ms");
}

TEST_CASE("a setup that does not end is named, and a short limit is shown exactly") {
  CheckedJob job(2, {}, 500ms, "sleep 100");
  job.up(1);
  job.tick();
  REQUIRE(job.finished);
  const CheckResult result = job.check->take_result();
  CHECK(result.nodes[0].error->text == "no agent answered within 375 ms");
  CHECK(result.nodes[1].error->text ==
        "its agent answered, but did not finish its check within 375 ms, including --setup; --verbose shows "
        "the output of --setup");
}

TEST_CASE("a route that no node reports in time counts as closed") {
  CheckedJob job(2, {}, 1s);
  job.check_all();
  job.opened();
  job.tick();
  CHECK(job.did == "0 Leave, 1 Leave");
  job.tick();
  CHECK(job.did == "0 drop, 1 drop");
  REQUIRE(job.finished);
  CHECK(job.check->take_result().nodes[1].reach == Reach::kFailed);
}

TEST_CASE("a port that cannot be opened") {
  CheckedJob job(2);
  job.check_all();
  rendezvous::Refused refused;
  refused.text = "port 29500 is in use";
  job.receive(0, refused);
  CHECK(job.did == "0 Leave, 1 Leave");
  job.gone(0);
  job.gone(1);
  CHECK(job.check->take_result().nodes[0].reach_text == "port 29500 is in use");
}

TEST_CASE("a check says which hosts it waits for") {
  CheckedJob job(3);
  job.check->set_start_step(1, "SSH greeting");
  CHECK(job.check->awaited_text() == "3 of 3 nodes: n1 (SSH greeting), n[0,2] (connecting)");
  for (const std::size_t node : {0, 1, 2})
    job.up(node);
  job.spec.hosts[1].setup = "module load cuda";
  CHECK(job.check->awaited_text() == "3 of 3 nodes: n1 (running --setup), n[0,2] (running its check)");
  job.checked(1);
  CHECK(job.check->awaited_text() == "2 of 3 nodes: n[0,2] (running its check)");
  job.checked(0);
  job.checked(2);
  CHECK(job.check->awaited_text() == "1 of 3 nodes: n0 (opening the store)");
  job.opened();
  job.probed(2, "10.0.0.1");
  CHECK(job.check->awaited_text() == "1 of 3 nodes: n1 (trying to reach the store on n0)");
  job.interrupt();
  CHECK(job.check->awaited_text().empty());
  CHECK(job.check->take_result().awaited == "1 of 3 nodes: n1 (trying to reach the store on n0)");
}

TEST_CASE("a second interrupt drops all links") {
  CheckedJob job(2);
  job.up(0);
  job.interrupt();
  CHECK(job.did == "1 drop, 0 Leave");
  CHECK_FALSE(job.finished);
  job.interrupt();
  CHECK(job.did == "0 drop");
  REQUIRE(job.finished);
  const CheckResult result = job.check->take_result();
  CHECK(result.stop_signal == SIGINT);
  REQUIRE(result.nodes[0].error);  // its check was still running
  CHECK(result.nodes[0].error->text == "stopped by the user before its check had ended");
  CHECK(result.nodes[1].error->text == "stopped by the user");
}

TEST_CASE("a host that answered before the user's interrupt has no error") {
  CheckedJob job(2);
  job.up(0);
  job.checked(0);
  job.up(1);
  job.interrupt();
  job.gone(0);
  job.gone(1);
  REQUIRE(job.finished);
  const CheckResult result = job.check->take_result();
  CHECK_FALSE(result.nodes[0].error);
  CHECK(result.nodes[1].error->code == ErrorCode::kCancelled);
}

TEST_CASE("messages that come late or from the wrong node change nothing") {
  CheckedJob job(2);
  job.checked(0);
  job.opened();
  job.probed(1, "10.0.0.1");
  CHECK(job.did.empty());
  job.up(0);
  job.up(0);
  CHECK(job.did.empty());
  CHECK_FALSE(job.finished);
}

}  // namespace ddp::launcher
