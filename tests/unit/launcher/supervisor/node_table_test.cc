#include "launcher/supervisor/node_table.h"

#include <initializer_list>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using State = NodeTable::State;

/// A table of nodes "n0", "n1", … that are up with their first incarnation. Node i is on machine "m<i>".
NodeTable table_of(std::size_t nodes) {
  JobSpec spec;
  spec.hosts.resize(nodes);
  for (std::size_t i = 0; i < nodes; ++i)
    spec.hosts[i].name = "n" + std::to_string(i);
  spec.max_nodes = static_cast<int>(nodes);
  NodeTable table(spec);
  for (std::size_t i = 0; i < nodes; ++i) {
    rendezvous::Hello hello;
    hello.machine_id = "m" + std::to_string(i);
    hello.pid_namespace = 7;
    hello.pid = 100;
    hello.keeper = 101;
    table.came_up({i, hello, "10.0.0.1", 1}, 1s);
    table.enter(i, State::kAccepted);
  }
  return table;
}

/// The node is lost at 5 s, with a lease of 20 s.
void lose(NodeTable& table, std::size_t node) {
  table.lose(node, Error{ErrorCode::kLinkLost, "gone", 0}, 20s, false, 5s);
}

/// The workers of these nodes have ended or wait, so that their part of the attempt is over.
void end_part(NodeTable& table, std::initializer_list<std::size_t> nodes, State state) {
  for (const std::size_t node : nodes) {
    table.enter(node, state);
    table.end_part(node);
  }
}

/// Node 2 runs ranks 0 and 1, node 0 runs ranks 2 to 4. Node 1 is a spare.
rendezvous::World world() {
  return {{{2, 0, 0, 2}, {0, 1, 2, 3}}, 5};
}

/// A table whose nodes 2 and 0 have spawned attempt 0.
NodeTable spawned_table() {
  NodeTable table = table_of(3);
  table.begin_attempt(0, world());
  table.spawned(0);
  table.spawned(1);
  return table;
}

TEST_CASE("node table: ranks lead to nodes, and nodes to ranks") {
  NodeTable table = table_of(3);
  CHECK(table.assignment(0) == nullptr);
  CHECK_FALSE(table.runs(0, 0));
  table.begin_attempt(4, world());
  CHECK(table.attempt() == 4);
  CHECK(table.participant(0).name == "n2");
  CHECK(table.node_of(1) == 0);
  CHECK(table.assignment(1) == nullptr);
  CHECK(table.assignment(0)->first_rank == 2);
  CHECK(table.node_of_rank(0) == 2);
  CHECK(table.node_of_rank(1) == 2);
  CHECK(table.node_of_rank(2) == 0);
  CHECK(table.node_of_rank(4) == 0);
  CHECK_FALSE(table.runs(0, 1));
  CHECK(table.runs(0, 2));
  CHECK(table.runs(0, 4));
  CHECK_FALSE(table.runs(0, 5));
  CHECK_FALSE(table.runs(1, 2));
}

TEST_CASE("node table: nodes that ended well take part again, and lost ones do not") {
  NodeTable table = spawned_table();
  end_part(table, {0, 2}, State::kEnded);
  lose(table, 0);
  table.begin_attempt(1, {{{2, 0, 0, 2}}, 2});
  CHECK(table[2].state == State::kAccepted);
  CHECK(table[0].state == State::kEnded);
  CHECK_FALSE(table[0].participant);
  CHECK(table[2].participant == 0U);
}

TEST_CASE("node table: worker messages count only of nodes that run the current attempt") {
  NodeTable table = table_of(3);
  table.begin_attempt(1, world());
  CHECK_FALSE(table.running_participant(2, 1));  // not spawned
  table.spawned(0);
  CHECK(table.running_participant(2, 1) == 0U);
  CHECK_FALSE(table.running_participant(2, 0));
  CHECK_FALSE(table.running_participant(1, 1));  // a spare
  table[2].ending = true;
  CHECK_FALSE(table.running_participant(2, 1));
  table[2].ending = false;
  lose(table, 2);
  CHECK_FALSE(table.running_participant(2, 1));
}

TEST_CASE("node table: late output of the last attempt keeps its local rank") {
  NodeTable table = spawned_table();
  CHECK(table.ran(0, 0, 2) == 0);
  CHECK(table.ran(0, 0, 4) == 2);
  CHECK_FALSE(table.ran(0, 0, 5));
  CHECK_FALSE(table.ran(0, 0, 1));
  CHECK_FALSE(table.ran(0, 1, 2));  // an attempt to come
  end_part(table, {0, 2}, State::kWaiting);
  table.begin_attempt(1, {{{0, 0, 0, 3}}, 3});
  CHECK(table.ran(0, 1, 0) == 0);
  CHECK(table.ran(0, 0, 3) == 1);  // its rank in attempt 0
  CHECK_FALSE(table.ran(0, 0, 1));
  CHECK_FALSE(table.ran(0, 0, 5));
  table.enter(0, State::kEnded);
  CHECK(table.ran(0, 0, 3) == 1);
  table.enter(0, State::kGone);
  CHECK_FALSE(table.ran(0, 0, 3));
}

TEST_CASE("node table: survivors of a node that refuses an attempt end with the ranks that they had") {
  NodeTable table = spawned_table();
  end_part(table, {0, 2}, State::kWaiting);
  table.begin_attempt(1, {{{0, 0, 0, 3}}, 3});
  table.spawned(0);
  CHECK_FALSE(table.ran(0, 0, 3));
  table.refused(0);
  CHECK(table[0].state == State::kSpawned);
  CHECK(table[0].ending);
  CHECK(table.ran(0, 0, 3) == 1);
  CHECK(table.ran(0, 1, 2) == 2);  // the master knows the assignment
  CHECK_FALSE(table.ran(0, 0, 0));
}

TEST_CASE("node table: a lost node's processes are looked for on the same machine only") {
  NodeTable table = spawned_table();
  table.worker_started(0, 3, 55);
  table.worker_started(0, 2, 54);
  table.worker_started(0, 5, 99);  // it has no such rank
  lose(table, 0);
  REQUIRE(table[0].predecessor);
  CHECK(table[0].predecessor->pids == std::vector<std::uint32_t>{54, 55, 100, 101});  // rank 4's is unknown
  CHECK(table[0].predecessor->incarnation == 1);
  CHECK(table[0].lost);
  CHECK(table[0].trouble->error.text == "gone");
  CHECK(table[0].trouble->at == 5s);
  rendezvous::Hello hello;
  hello.machine_id = "m0";
  hello.pid_namespace = 7;
  table.came_up({0, hello, "", 2}, 9s);
  CHECK(table.can_see_predecessor(0, false));
  CHECK_FALSE(table.can_see_predecessor(0, true));
  CHECK_FALSE(table.can_see_predecessor(1, false));  // it was never lost
  hello.pid_namespace = 8;
  table.came_up({0, hello, "", 3}, 9s);
  CHECK_FALSE(table.can_see_predecessor(0, false));
  table[2].hello.pid_namespace = hello.pid_namespace = 0;  // unknown ones are not the same
  lose(table, 2);
  hello.machine_id = "m2";
  table.came_up({2, hello, "", 2}, 9s);
  CHECK_FALSE(table.can_see_predecessor(2, false));
}

TEST_CASE("node table: the lease of a lost node counts from its last byte and ends by its time or a proof") {
  NodeTable table = spawned_table();
  CHECK(table.heard_from(0, 3s) == 2s);
  table.lose(0, Error{ErrorCode::kLinkLost, "gone", 0}, 20s, true, 9s);
  CHECK(table.awaited() == 1);
  CHECK(table.present() == 2);
  REQUIRE(table[0].predecessor);
  CHECK(table[0].predecessor->busy_until == 23s);
  CHECK(table[0].predecessor->fenced);
  CHECK(table[0].is_busy(22s));
  CHECK_FALSE(table[0].is_busy(23s));
  CHECK_FALSE(table.prove_empty(0, 2));  // of another incarnation
  CHECK(table[0].is_busy(22s));
  CHECK(table.prove_empty(0, 1));
  CHECK_FALSE(table[0].is_busy(22s));
  CHECK_FALSE(table.prove_empty(0, 1));
}

TEST_CASE("node table: the time that the master slept is no silence, but shortens no lease") {
  NodeTable table = spawned_table();
  table.heard_from(0, 3s);
  table.forgive_silence(10s, 14s);
  CHECK(table[0].silent_since == 13s);
  CHECK(table[0].heard == 3s);
  table.forgive_silence(10s, 15s);
  CHECK(table[0].silent_since == 15s);  // never in the future
}

TEST_CASE("node table: a node that is lost without workers leaves none") {
  NodeTable table = spawned_table();
  end_part(table, {0}, State::kEnded);
  lose(table, 0);
  CHECK_FALSE(table[0].predecessor);
  end_part(table, {2}, State::kWaiting);
  lose(table, 2);
  CHECK(table[2].predecessor);
}

TEST_CASE("node table: a new incarnation starts without the troubles of the last one") {
  NodeTable table = spawned_table();
  lose(table, 0);
  table[0].reason_reported = table[0].ending = true;
  table.came_up({0, {}, "10.0.0.9", 2}, 9s);
  CHECK(table[0].state == State::kUp);
  CHECK(table[0].incarnation == 2);
  CHECK(table[0].connected == "10.0.0.9");
  CHECK(table[0].up_at == 9s);
  CHECK_FALSE(table[0].lost);
  CHECK_FALSE(table[0].reason_reported);
  CHECK_FALSE(table[0].ending);
  CHECK_FALSE(table[0].trouble);
  CHECK(table[0].predecessor);  // its processes may live
}

TEST_CASE("node table: survivors' nodes are spawned with the PIDs that are known") {
  NodeTable table = spawned_table();
  table.worker_started(0, 2, 54);
  end_part(table, {0, 2}, State::kWaiting);
  table.begin_attempt(1, {{{0, 0, 0, 3}}, 3});
  table.spawned(0);
  CHECK(table[0].state == State::kSpawned);
  CHECK(table[0].spawned == 1);
  CHECK(table[0].ran.first_rank == 0);
  CHECK(table[0].worker_pids == std::vector<std::uint32_t>{54, 0, 0});
}

TEST_CASE("node table: the state says whether a node is a member and has workers") {
  NodeTable::Node node;
  const auto check = [&node](State state, bool member, bool workers) {
    node.state = state;
    CHECK(node.is_member() == member);
    CHECK(node.has_workers() == workers);
  };
  check(State::kConnecting, false, false);
  check(State::kUp, false, false);
  check(State::kAccepted, true, false);
  check(State::kSpawned, true, true);
  check(State::kWaiting, true, true);
  check(State::kEnded, true, false);
  check(State::kLeaving, false, false);
  check(State::kGone, false, false);
}

TEST_CASE("node table: a node that joined has its host's name, if no other node has it") {
  NodeTable table = table_of(3);
  table[1].hello.hostname = "vm";
  CHECK(table.name_of_joined(1, "n1") == "vm");
  table[2].name = "vm";
  CHECK(table.name_of_joined(1, "n1") == "n1");
  for (const State state : {State::kConnecting, State::kGone}) {
    table.enter(2, state);
    CHECK(table.name_of_joined(1, "n1") == "vm");
  }
  table.enter(2, State::kSpawned);
  lose(table, 2);
  CHECK(table.name_of_joined(1, "n1") == "vm");
  table[0].name = "vm";
  table.enter(0, State::kConnecting);  // node 0 keeps its name
  CHECK(table.name_of_joined(1, "n1") == "n1");
  table[1].hello.hostname = "";
  CHECK(table.name_of_joined(1, "n1") == "n1");
  table[1].name = table[1].hello.hostname = "me";  // its own earlier name
  CHECK(table.name_of_joined(1, "n1") == "me");
}

TEST_CASE("node table: all nodes are gone when the last one is, in any order") {
  NodeTable table = table_of(3);
  CHECK_FALSE(table.all_gone());
  table.enter(2, State::kGone);
  table.enter(0, State::kGone);
  CHECK_FALSE(table.all_gone());
  table.enter(1, State::kLeaving);
  CHECK_FALSE(table.all_gone());
  table.enter(1, State::kGone);
  CHECK(table.all_gone());
  CHECK(table.all_gone());
}

}  // namespace
}  // namespace ddp::launcher
