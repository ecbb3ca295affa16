#include "launcher/check/check_run.h"

#include <csignal>
#include <memory>

#include "rendezvous/protocol/codec.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Reach = CheckedNode::Reach;

/// A check of some nodes, by hand; `did` is what the last step ordered: "0 NodeCheck, 1 drop".
struct Play {
  JobSpec spec;
  std::unique_ptr<CheckRun> run;
  CheckRun::Time now{0};
  std::string did;
  std::uint16_t asked_port = 0;
  bool two_networks = false;

  explicit Play(int nodes, bool inspect = true) {
    for (int i = 0; i < nodes; ++i)
      spec.hosts.emplace_back().name = "n" + std::to_string(i);
    spec.start_timeout = 40s;
    run = std::make_unique<CheckRun>(spec, CheckRun::Wishes{inspect, false});
    note(run->start(now));
  }

  void note(const CheckRun::Actions& actions) {
    did.clear();
    for (const auto& action : actions) {
      if (!did.empty()) did += ", ";
      if (const auto* message = std::get_if<CheckRun::ToNode>(&action)) {
        did += std::to_string(message->node) + ' ' + std::string(message_name(message->message));
        if (const auto* probe = std::get_if<rendezvous::Probe>(&message->message)) asked_port = probe->port;
      } else {
        did += std::to_string(std::get<CheckRun::Disconnect>(action).node) + " drop";
      }
    }
  }
  void step(const CheckRun::Event& event) { note(run->step(event, now)); }
  void up(std::size_t node) {
    rendezvous::Hello hello;
    hello.machine_id = "m" + std::to_string(node);
    hello.cpus = 4;
    const std::string address = "10.0.0." + std::to_string(node + 1);
    hello.interfaces = {{"eth0", address, 24, true, false}};
    if (two_networks)
      hello.interfaces.push_back({"eth1", "10.9.0." + std::to_string(node + 1), 24, true, false});
    step(CheckRun::NodeUp{node, hello, address});
  }
  void checked(std::size_t node) { step(CheckRun::FromNode{node, rendezvous::NodeChecked{}}); }
  void opened() {
    rendezvous::StoreOpened message;
    message.port = 4000;
    step(CheckRun::FromNode{0, message});
  }
  void probed(std::size_t node, const std::string& address, const std::string& text = "") {
    rendezvous::ProbeResult message;
    message.address = address;
    message.text = text;
    step(CheckRun::FromNode{node, message});
  }
  void gone(std::size_t node) { step(CheckRun::NodeFailed{node, Error{ErrorCode::kLinkLost, "gone"}}); }
  void tick() {
    REQUIRE(run->deadline());
    now = *run->deadline();
    step(CheckRun::Tick{});
  }
};

}  // namespace

TEST_CASE("all well") {
  Play play(3);
  play.up(1);
  CHECK(play.did == "1 NodeCheck");
  play.up(0);
  play.up(2);
  play.checked(1);
  play.checked(0);
  CHECK(play.did.empty());
  play.checked(2);
  CHECK(play.did == "0 OpenStore");
  play.opened();
  CHECK(play.did == "1 Probe, 2 Probe");
  CHECK(play.asked_port == 4000);
  play.probed(2, "10.0.0.1");
  play.probed(1, "10.0.0.1");
  CHECK(play.did == "0 Leave, 1 Leave, 2 Leave");
  for (const std::size_t node : {0, 1, 2})
    play.gone(node);
  CHECK(play.run->finished());
  const CheckResult result = play.run->take_result();
  CHECK(result.master_addr == "10.0.0.1");
  CHECK(result.store_port == 4000);
  REQUIRE((result.plan && *result.plan));
  CHECK((*result.plan)->world_size == 3);
  for (const CheckedNode& node : result.nodes) {
    CHECK_FALSE(node.error);
    CHECK(node.reach == Reach::kReached);
  }
}

TEST_CASE("a network that some nodes do not reach is passed over, and they are named") {
  Play play(4, false);
  play.two_networks = true;
  for (const std::size_t node : {0, 1, 2, 3})
    play.up(node);
  play.opened();
  play.probed(1, "10.0.0.1");
  play.probed(2, "10.9.0.1");
  play.probed(3, "10.9.0.1");
  play.probed(1, "10.9.0.1");  // asked once more
  CHECK(play.did == "0 Leave, 1 Leave, 2 Leave, 3 Leave");
  const CheckResult result = play.run->take_result();
  CHECK(result.master_addr == "10.9.0.1");
  REQUIRE(result.passed_over.size() == 1);
  CHECK(result.passed_over[0].master_addr == "10.0.0.1");
  CHECK(result.passed_over[0].network == "10.0.0.0/24");
  CHECK(result.passed_over[0].nodes == std::vector<std::size_t>{2, 3});
}

TEST_CASE("hosts asks no node beyond its hello") {
  Play play(2, false);
  play.up(0);
  CHECK(play.did.empty());
  play.up(1);
  CHECK(play.did == "0 OpenStore");
}

TEST_CASE("a host that fails ends nothing for the others") {
  Play play(3);
  play.up(0);
  play.up(2);
  play.checked(0);
  play.checked(2);
  play.step(CheckRun::NodeFailed{1, Error{ErrorCode::kUnreachable, "refused"}});
  CHECK(play.did == "0 OpenStore");
  play.opened();
  CHECK(play.did == "2 Probe");
  play.probed(2, "", "10.0.0.1:4000: no answer");
  CHECK(play.did == "0 Leave, 2 Leave");
  play.gone(0);
  play.gone(2);
  REQUIRE(play.run->finished());
  const CheckResult result = play.run->take_result();
  CHECK_FALSE(result.plan);
  REQUIRE(result.nodes[1].error);
  CHECK(result.nodes[1].error->text == "refused");
  CHECK(result.nodes[2].reach == Reach::kFailed);
  CHECK(result.nodes[2].reach_text == "10.0.0.1:4000: no answer");
}

TEST_CASE("without node 0 there is no way to try") {
  Play play(2);
  play.up(1);
  play.checked(1);
  play.step(CheckRun::NodeFailed{0, Error{ErrorCode::kUnreachable, "refused"}});
  CHECK(play.did == "1 Leave");
  play.gone(1);
  CHECK(play.run->finished());
}

TEST_CASE("who does not answer in time is given up, and the rest goes on") {
  Play play(3);
  play.up(0);
  play.checked(0);
  play.up(1);  // its check hangs
  play.tick();
  CHECK(play.did == "1 drop, 2 drop, 0 OpenStore");
  play.opened();
  CHECK(play.did == "0 Leave");
  play.gone(0);
  REQUIRE(play.run->finished());
  CHECK(play.now < 41s);
  const CheckResult result = play.run->take_result();
  CHECK(result.nodes[1].error->code == ErrorCode::kTimeout);
  CHECK(result.nodes[1].error->text.starts_with(
      "its agent answered, but did not finish its check within 30 s"));
  CHECK(result.nodes[2].error->text == "no agent answered within 30 s");
}

TEST_CASE("a setup that does not end is named, and a short limit as it is") {
  Play play(2);
  play.spec.start_timeout = 500ms;
  play.spec.hosts[1].setup = "sleep 100";
  play.note(play.run->start(play.now));
  play.up(1);
  play.tick();
  REQUIRE(play.run->finished());
  const CheckResult result = play.run->take_result();
  CHECK(result.nodes[0].error->text == "no agent answered within 375 ms");
  CHECK(result.nodes[1].error->text ==
        "its agent answered, but did not finish its check within 375 ms, --setup included; --verbose shows "
        "what that prints");
}

TEST_CASE("a way that nobody tells of in time is closed") {
  Play play(2);
  for (const std::size_t node : {0, 1})
    play.up(node);
  for (const std::size_t node : {0, 1})
    play.checked(node);
  play.opened();
  play.tick();
  CHECK(play.did == "0 Leave, 1 Leave");
  play.tick();
  CHECK(play.did == "0 drop, 1 drop");
  REQUIRE(play.run->finished());
  CHECK(play.run->take_result().nodes[1].reach == Reach::kFailed);
}

TEST_CASE("a port that cannot be opened") {
  Play play(2);
  for (const std::size_t node : {0, 1})
    play.up(node);
  for (const std::size_t node : {0, 1})
    play.checked(node);
  rendezvous::Refused refused;
  refused.text = "port 29500 is in use";
  play.step(CheckRun::FromNode{0, refused});
  CHECK(play.did == "0 Leave, 1 Leave");
  play.gone(0);
  play.gone(1);
  CHECK(play.run->take_result().nodes[0].reach_text == "port 29500 is in use");
}

TEST_CASE("a user who is impatient") {
  Play play(2);
  play.up(0);
  play.step(CheckRun::Interrupt{SIGINT});
  CHECK(play.did == "1 drop, 0 Leave");
  CHECK_FALSE(play.run->finished());
  play.step(CheckRun::Interrupt{SIGINT});
  CHECK(play.did == "0 drop");
  REQUIRE(play.run->finished());
  const CheckResult result = play.run->take_result();
  CHECK(result.stop_signal == SIGINT);
  REQUIRE(result.nodes[0].error);  // it was still at its check
  CHECK(result.nodes[0].error->text == "stopped by the user before its check had ended");
  CHECK(result.nodes[1].error->text == "stopped by the user");
}

TEST_CASE("who had answered before the user's end has no error") {
  Play play(2);
  play.up(0);
  play.checked(0);
  play.up(1);
  play.step(CheckRun::Interrupt{SIGINT});
  play.gone(0);
  play.gone(1);
  REQUIRE(play.run->finished());
  const CheckResult result = play.run->take_result();
  CHECK_FALSE(result.nodes[0].error);
  CHECK(result.nodes[1].error->code == ErrorCode::kCancelled);
}

TEST_CASE("messages that come late or from the wrong node change nothing") {
  Play play(2);
  play.checked(0);
  play.opened();
  play.probed(1, "10.0.0.1");
  CHECK(play.did.empty());
  play.up(0);
  play.up(0);
  CHECK(play.did.empty());
  CHECK_FALSE(play.run->finished());
}

}  // namespace ddp::launcher
