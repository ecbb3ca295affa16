#include "launcher/supervisor/attempt_start.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using State = NodeTable::State;

JobSpec spec_of(const std::vector<std::string>& hosts) {
  JobSpec spec;
  spec.start_timeout = 90s;
  spec.max_nodes = static_cast<int>(hosts.size());
  for (const std::string& name : hosts)
    spec.hosts.emplace_back().name = name;
  return spec;
}

/// Attempt 0 of nodes 0 and 1, whose store is not open yet.
AttemptStart opening(NodeTable& nodes) {
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
  NodeTable nodes(spec);
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
  NodeTable nodes(spec);
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
  CHECK(awaited_text(spec, NodeTable(spec), nullptr) ==
        "8 of 8 nodes: node-a,node-b,node-c,node-d,node-e,node-f,node-g,node-h (connecting)");  // 55 bytes
  spec.hosts[7].name = "node-hhhhhh";                                                           // 60 bytes
  CHECK(awaited_text(spec, NodeTable(spec), nullptr).find("node-hhhhhh") != std::string::npos);
  spec.hosts[7].name = "node-hhhhhhh";  // 61 bytes
  CHECK(awaited_text(spec, NodeTable(spec), nullptr) == "8 of 8 nodes: node-a and 7 more (connecting)");
}

TEST_CASE("missing nodes: a job that cannot start names the absent ones in the order of their failures") {
  const JobSpec spec = spec_of({"a", "b", "c", "d"});
  NodeTable nodes(spec);
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
  NodeTable nodes(spec);
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
  NodeTable nodes(spec);
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
