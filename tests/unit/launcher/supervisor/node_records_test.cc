#include "launcher/supervisor/node_records.h"

#include <initializer_list>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using State = NodeRecords::State;

/// Records of nodes "n0", "n1", … that are up with their first incarnation. Node i is on machine "m<i>".
NodeRecords records_of(std::size_t nodes) {
  JobSpec spec;
  spec.hosts.resize(nodes);
  for (std::size_t i = 0; i < nodes; ++i)
    spec.hosts[i].name = "n" + std::to_string(i);
  spec.max_nodes = static_cast<int>(nodes);
  NodeRecords records(spec);
  for (std::size_t i = 0; i < nodes; ++i) {
    rendezvous::Hello hello;
    hello.machine_id = "m" + std::to_string(i);
    hello.pid_namespace = 7;
    hello.pid = 100;
    hello.keeper = 101;
    records.came_up({i, hello, "10.0.0.1", 1}, 1s);
    records.enter(i, State::kAccepted);
  }
  return records;
}

/// The node is lost at 5 s, with a lease of 20 s.
void lose(NodeRecords& records, std::size_t node) {
  records.lose(node, Error{ErrorCode::kLinkLost, "gone", 0}, 20s, false, 5s);
}

/// The workers of these nodes have ended or wait, so that their part of the attempt is over.
void end_part(NodeRecords& records, std::initializer_list<std::size_t> nodes, State state) {
  for (const std::size_t node : nodes) {
    records.enter(node, state);
    records.end_part(node);
  }
}

/// Node 2 runs ranks 0 and 1, node 0 runs ranks 2 to 4. Node 1 is a spare.
rendezvous::World world() {
  return {{{2, 0, 0, 2}, {0, 1, 2, 3}}, 5};
}

/// Records whose nodes 2 and 0 have spawned attempt 0.
NodeRecords spawned_records() {
  NodeRecords records = records_of(3);
  records.begin_attempt(0, world());
  records.spawned(0);
  records.spawned(1);
  return records;
}

TEST_CASE("node records: ranks lead to nodes, and nodes to ranks") {
  NodeRecords records = records_of(3);
  CHECK(records.assignment(0) == nullptr);
  CHECK_FALSE(records.runs(0, 0));
  records.begin_attempt(4, world());
  CHECK(records.attempt() == 4);
  CHECK(records.participant(0).name == "n2");
  CHECK(records.node_of(1) == 0);
  CHECK(records.assignment(1) == nullptr);
  CHECK(records.assignment(0)->first_rank == 2);
  CHECK(records.node_of_rank(0) == 2);
  CHECK(records.node_of_rank(1) == 2);
  CHECK(records.node_of_rank(2) == 0);
  CHECK(records.node_of_rank(4) == 0);
  CHECK_FALSE(records.runs(0, 1));
  CHECK(records.runs(0, 2));
  CHECK(records.runs(0, 4));
  CHECK_FALSE(records.runs(0, 5));
  CHECK_FALSE(records.runs(1, 2));
}

TEST_CASE("node records: nodes that ended well take part again, and lost ones do not") {
  NodeRecords records = spawned_records();
  end_part(records, {0, 2}, State::kEnded);
  lose(records, 0);
  records.begin_attempt(1, {{{2, 0, 0, 2}}, 2});
  CHECK(records[2].state == State::kAccepted);
  CHECK(records[0].state == State::kEnded);
  CHECK_FALSE(records[0].participant);
  CHECK(records[2].participant == 0U);
}

TEST_CASE("node records: worker messages count only of nodes that run the current attempt") {
  NodeRecords records = records_of(3);
  records.begin_attempt(1, world());
  CHECK_FALSE(records.running_participant(2, 1));  // not spawned
  records.spawned(0);
  CHECK(records.running_participant(2, 1) == 0U);
  CHECK_FALSE(records.running_participant(2, 0));
  CHECK_FALSE(records.running_participant(1, 1));  // a spare
  records[2].ending = true;
  CHECK_FALSE(records.running_participant(2, 1));
  records[2].ending = false;
  lose(records, 2);
  CHECK_FALSE(records.running_participant(2, 1));
}

TEST_CASE("node records: late output of the last attempt keeps its local rank") {
  NodeRecords records = spawned_records();
  CHECK(records.ran(0, 0, 2) == 0);
  CHECK(records.ran(0, 0, 4) == 2);
  CHECK_FALSE(records.ran(0, 0, 5));
  CHECK_FALSE(records.ran(0, 0, 1));
  CHECK_FALSE(records.ran(0, 1, 2));  // an attempt to come
  end_part(records, {0, 2}, State::kWaiting);
  records.begin_attempt(1, {{{0, 0, 0, 3}}, 3});
  CHECK(records.ran(0, 1, 0) == 0);
  CHECK(records.ran(0, 0, 3) == 1);  // its rank in attempt 0
  CHECK_FALSE(records.ran(0, 0, 1));
  CHECK_FALSE(records.ran(0, 0, 5));
  records.enter(0, State::kEnded);
  CHECK(records.ran(0, 0, 3) == 1);
  records.enter(0, State::kGone);
  CHECK_FALSE(records.ran(0, 0, 3));
}

TEST_CASE("node records: survivors of a node that refuses an attempt end with the ranks that they had") {
  NodeRecords records = spawned_records();
  end_part(records, {0, 2}, State::kWaiting);
  records.begin_attempt(1, {{{0, 0, 0, 3}}, 3});
  records.spawned(0);
  CHECK_FALSE(records.ran(0, 0, 3));
  records.refused(0);
  CHECK(records[0].state == State::kSpawned);
  CHECK(records[0].ending);
  CHECK(records.ran(0, 0, 3) == 1);
  CHECK(records.ran(0, 1, 2) == 2);  // the master knows the assignment
  CHECK_FALSE(records.ran(0, 0, 0));
}

TEST_CASE("node records: a lost node's processes are looked for on the same machine only") {
  NodeRecords records = spawned_records();
  records.worker_started(0, 3, 55);
  records.worker_started(0, 2, 54);
  records.worker_started(0, 5, 99);  // it has no such rank
  lose(records, 0);
  REQUIRE(records[0].predecessor);
  CHECK(records[0].predecessor->pids == std::vector<std::uint32_t>{54, 55, 100, 101});  // rank 4's is unknown
  CHECK(records[0].predecessor->incarnation == 1);
  CHECK(records[0].lost);
  CHECK(records[0].trouble->error.text == "gone");
  CHECK(records[0].trouble->at == 5s);
  rendezvous::Hello hello;
  hello.machine_id = "m0";
  hello.pid_namespace = 7;
  records.came_up({0, hello, "", 2}, 9s);
  CHECK(records.can_see_predecessor(0, false));
  CHECK_FALSE(records.can_see_predecessor(0, true));
  CHECK_FALSE(records.can_see_predecessor(1, false));  // it was never lost
  hello.pid_namespace = 8;
  records.came_up({0, hello, "", 3}, 9s);
  CHECK_FALSE(records.can_see_predecessor(0, false));
  records[2].hello.pid_namespace = hello.pid_namespace = 0;  // unknown ones are not the same
  lose(records, 2);
  hello.machine_id = "m2";
  records.came_up({2, hello, "", 2}, 9s);
  CHECK_FALSE(records.can_see_predecessor(2, false));
}

TEST_CASE(
    "node records: the lease of a lost node counts from its last byte and ends by its time or a proof") {
  NodeRecords records = spawned_records();
  CHECK(records.heard_from(0, 3s) == 2s);
  records.lose(0, Error{ErrorCode::kLinkLost, "gone", 0}, 20s, true, 9s);
  CHECK(records.awaited() == 1);
  CHECK(records.present() == 2);
  REQUIRE(records[0].predecessor);
  CHECK(records[0].predecessor->busy_until == 23s);
  CHECK(records[0].predecessor->fenced);
  CHECK(records[0].is_busy(22s));
  CHECK_FALSE(records[0].is_busy(23s));
  CHECK_FALSE(records.prove_empty(0, 2));  // of another incarnation
  CHECK(records[0].is_busy(22s));
  CHECK(records.prove_empty(0, 1));
  CHECK_FALSE(records[0].is_busy(22s));
  CHECK_FALSE(records.prove_empty(0, 1));
}

TEST_CASE("node records: the time that the master slept is no silence, but shortens no lease") {
  NodeRecords records = spawned_records();
  records.heard_from(0, 3s);
  records.forgive_silence(10s, 14s);
  CHECK(records[0].silent_since == 13s);
  CHECK(records[0].heard == 3s);
  records.forgive_silence(10s, 15s);
  CHECK(records[0].silent_since == 15s);  // never in the future
}

TEST_CASE("node records: a node that is lost without workers leaves none") {
  NodeRecords records = spawned_records();
  end_part(records, {0}, State::kEnded);
  lose(records, 0);
  CHECK_FALSE(records[0].predecessor);
  end_part(records, {2}, State::kWaiting);
  lose(records, 2);
  CHECK(records[2].predecessor);
}

TEST_CASE("node records: a new incarnation starts without the troubles of the last one") {
  NodeRecords records = spawned_records();
  lose(records, 0);
  records[0].reason_reported = records[0].ending = true;
  records.came_up({0, {}, "10.0.0.9", 2}, 9s);
  CHECK(records[0].state == State::kUp);
  CHECK(records[0].incarnation == 2);
  CHECK(records[0].connected == "10.0.0.9");
  CHECK(records[0].up_at == 9s);
  CHECK_FALSE(records[0].lost);
  CHECK_FALSE(records[0].reason_reported);
  CHECK_FALSE(records[0].ending);
  CHECK_FALSE(records[0].trouble);
  CHECK(records[0].predecessor);  // its processes may live
}

TEST_CASE("node records: survivors' nodes are spawned with the PIDs that are known") {
  NodeRecords records = spawned_records();
  records.worker_started(0, 2, 54);
  end_part(records, {0, 2}, State::kWaiting);
  records.begin_attempt(1, {{{0, 0, 0, 3}}, 3});
  records.spawned(0);
  CHECK(records[0].state == State::kSpawned);
  CHECK(records[0].spawned == 1);
  CHECK(records[0].ran.first_rank == 0);
  CHECK(records[0].worker_pids == std::vector<std::uint32_t>{54, 0, 0});
}

TEST_CASE("node records: the state says whether a node is a member and has workers") {
  NodeRecords::Node node;
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

TEST_CASE("node records: a node that joined has its host's name, if no other node has it") {
  NodeRecords records = records_of(3);
  records[1].hello.hostname = "vm";
  CHECK(records.name_of_joined(1, "n1") == "vm");
  records[2].name = "vm";
  CHECK(records.name_of_joined(1, "n1") == "n1");
  for (const State state : {State::kConnecting, State::kGone}) {
    records.enter(2, state);
    CHECK(records.name_of_joined(1, "n1") == "vm");
  }
  records.enter(2, State::kSpawned);
  lose(records, 2);
  CHECK(records.name_of_joined(1, "n1") == "vm");
  records[0].name = "vm";
  records.enter(0, State::kConnecting);  // node 0 keeps its name
  CHECK(records.name_of_joined(1, "n1") == "n1");
  records[1].hello.hostname = "";
  CHECK(records.name_of_joined(1, "n1") == "n1");
  records[1].name = records[1].hello.hostname = "me";  // its own earlier name
  CHECK(records.name_of_joined(1, "n1") == "me");
}

TEST_CASE("node records: all nodes are gone when the last one is, in any order") {
  NodeRecords records = records_of(3);
  CHECK_FALSE(records.all_gone());
  records.enter(2, State::kGone);
  records.enter(0, State::kGone);
  CHECK_FALSE(records.all_gone());
  records.enter(1, State::kLeaving);
  CHECK_FALSE(records.all_gone());
  records.enter(1, State::kGone);
  CHECK(records.all_gone());
  CHECK(records.all_gone());
}

}  // namespace
}  // namespace ddp::launcher
