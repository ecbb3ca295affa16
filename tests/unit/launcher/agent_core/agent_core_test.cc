#include "launcher/agent_core/agent_core.h"

#include <csignal>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using State = AgentCore::State;
using Time = AgentCore::Time;

/// A node whose workers are 0 and 1 with ranks 4 and 5, at times that the test sets.
class Driven {
 public:
  explicit Driven(bool joined_by_itself = false) : core({joined_by_itself, 5s, 15s, 5s}, 0s) {
    feed(node::JobReceived{15s, 5s});
    feed(node::JobAccepted{false});
    actions.clear();
  }
  void feed(const node::Event& event) {
    for (node::Action& action : core.step(event, now))
      actions.push_back(std::move(action));
  }
  /// Heartbeats, one a second.
  void live_until(Time end, Time silence) {
    while (now < end) {
      now += 1s;
      feed(node::HeartbeatDue{silence});
    }
  }
  void spawn(std::uint32_t attempt, std::uint32_t first_rank = 4) {
    rendezvous::Spawn spawn;
    spawn.attempt = attempt;
    spawn.first_rank = first_rank;
    spawn.local_world_size = 2;
    spawn.world_size = 6;
    spawn.master_addr = "fe80::1";
    spawn.master_port = 29500;
    feed(spawn);
  }
  /// Begins an attempt and starts the workers that are not alive.
  void run(std::uint32_t attempt, bool rejoin = true) {
    spawn(attempt);
    feed(node::AttemptPrepared{});
    for (std::uint32_t local = 0; local < 2; ++local) {
      if (core.processes().is_alive(local)) continue;
      feed(node::WorkerStarted{local, 100 * (attempt + 1) + local, 1});
      feed(node::WorkerGreeted{local, rejoin});
    }
    feed(node::WorkersStarted{});
    actions.clear();
  }
  /// Both workers leave the attempt and wait for the next one.
  void suspend(std::uint32_t attempt) {
    revoke(attempt);
    for (std::uint32_t local = 0; local < 2; ++local)
      feed(node::WorkerLeft{local, {attempt, 10}});
    feed(node::OutputRead{});
    feed(node::LossesReported{});
    actions.clear();
  }
  void exit(std::uint32_t local, std::uint8_t code) {
    rendezvous::WorkerExited exited;
    exited.pid = 7;
    exited.code = code;
    feed(node::WorkerExited{local, exited});
  }
  void revoke(std::uint32_t attempt, std::vector<std::uint32_t> kill = {}) {
    feed(rendezvous::Revoke{attempt, 5'000, "rank 0 is lost", std::move(kill)});
  }
  /// All workers end, and the attempt is cleaned up.
  void end_all(std::uint32_t left = 0) {
    for (std::uint32_t local = 0; local < 2; ++local)
      if (core.processes().is_alive(local)) exit(local, 0);
    feed(node::WorkersEnded{});
    feed(node::AttemptCleaned{left, left == 0 ? "" : "daemon (7)"});
  }
  template <class M>
  std::vector<M> sent() const {
    std::vector<M> found;
    for (const node::Action& action : actions)
      if (const auto* send = std::get_if<node::Send>(&action))
        if (const auto* message = std::get_if<M>(&send->message)) found.push_back(*message);
    return found;
  }
  template <class A>
  std::vector<A> did() const {
    std::vector<A> found;
    for (const node::Action& action : actions)
      if (const auto* one = std::get_if<A>(&action)) found.push_back(*one);
    return found;
  }

  template <class M>
  M only_sent() const {
    REQUIRE(sent<M>().size() == 1);
    return sent<M>()[0];
  }
  template <class A>
  A only_did() const {
    REQUIRE(did<A>().size() == 1);
    return did<A>()[0];
  }

  AgentCore core;
  Time now{0};
  node::Actions actions;
};

TEST_CASE("agent core: an attempt from its order to AttemptEnded") {
  Driven node;
  node.spawn(0);
  REQUIRE(node.did<node::PrepareAttempt>().size() == 1);
  CHECK(node.core.state() == State::kStarting);
  node.feed(node::AttemptPrepared{});
  const auto orders = node.did<node::OrderAttempt>();
  REQUIRE(orders.size() == 2);
  CHECK(orders[1].order.rank == 5);
  CHECK(orders[1].order.store == "[fe80::1]:29500");
  CHECK_FALSE(orders[1].order.from.has_value());
  for (std::uint32_t local = 0; local < 2; ++local) {
    node.feed(node::WorkerStarted{local, 100 + local, 1});
    node.feed(node::WorkerGreeted{local, true});
    node.feed(node::WorkerReady{local});
  }
  CHECK(node.sent<rendezvous::WorkersGreeted>().empty());  // others may still be started
  const auto started = node.sent<rendezvous::WorkerStarted>();
  REQUIRE(started.size() == 2);
  CHECK(started[1].rank == 5);
  CHECK(started[1].pid == 101);
  node.feed(node::WorkersStarted{});
  CHECK(node.sent<rendezvous::WorkersGreeted>().size() == 1);
  CHECK(node.sent<rendezvous::WorkersReady>().size() == 1);
  node.exit(0, 3);
  CHECK(node.only_sent<rendezvous::WorkerExited>().rank == 4);
  CHECK(node.sent<rendezvous::AttemptEnded>().empty());
  node.end_all();
  CHECK(node.sent<rendezvous::AttemptEnded>().size() == 1);
  CHECK_FALSE(node.core.running());
}

TEST_CASE("agent core: each worker is ordered its place in the attempt") {
  Driven node;
  rendezvous::Spawn spawn;
  spawn.attempt = 3;
  spawn.first_rank = 4;
  spawn.local_world_size = 2;
  spawn.world_size = 6;
  spawn.node_rank = 2;
  spawn.nodes = 5;
  spawn.master_addr = "10.0.0.1";
  spawn.master_port = 29500;
  spawn.agent_store = false;
  spawn.from = 1;
  node.feed(spawn);
  node.feed(node::AttemptPrepared{});
  const auto orders = node.did<node::OrderAttempt>();
  REQUIRE(orders.size() == 2);
  for (std::uint32_t local = 0; local < 2; ++local) {
    const rendezvous::AttemptOrder& order = orders[local].order;
    CHECK(orders[local].local == local);
    CHECK(order.attempt == 3);
    CHECK(order.rank == 4 + local);
    CHECK(order.local_rank == local);
    CHECK(order.world == 6);
    CHECK(order.local_world == 2);
    CHECK(order.node_rank == 2);
    CHECK(order.nodes == 5);
    CHECK(order.store == "10.0.0.1:29500");
    CHECK_FALSE(order.agent_store);
    CHECK(order.from == 1U);
  }
}

TEST_CASE("agent core: the master learns once that all workers are connected or take part") {
  Driven node;
  node.spawn(0);
  node.feed(node::AttemptPrepared{});
  for (const std::uint32_t local : {0U, 1U})
    node.feed(node::WorkerStarted{local, 100 + local, 1});
  node.feed(node::WorkersStarted{});
  node.feed(node::WorkerGreeted{0, true});
  CHECK(node.sent<rendezvous::WorkersGreeted>().empty());
  node.feed(node::WorkerGreeted{1, false});  // one that cannot survive is enough to restart all
  CHECK(node.sent<rendezvous::WorkersGreeted>().empty());
  node.feed(node::WorkerGreeted{1, true});
  CHECK(node.sent<rendezvous::WorkersGreeted>().size() == 1);
  node.feed(node::WorkerReady{0});
  CHECK(node.sent<rendezvous::WorkersReady>().empty());
  SECTION("when the last one takes part") {
    node.feed(node::WorkerReady{1});
    CHECK(node.sent<rendezvous::WorkersReady>().size() == 1);
  }
  SECTION("when the one that does not has ended") {
    node.exit(1, 0);
    CHECK(node.sent<rendezvous::WorkersReady>().size() == 1);
  }
  SECTION("but not when the attempt is being stopped") {
    node.feed(rendezvous::Stop{0, 1'000, "a rank failed"});
    node.exit(1, 0);
    CHECK(node.sent<rendezvous::WorkersReady>().empty());
  }
}

TEST_CASE("agent core: nothing runs before the job is accepted, and nothing new while the agent leaves") {
  AgentCore fresh({false, 5s, 15s, 5s}, 0s);
  CHECK(fresh.step(rendezvous::Spawn{}, 0s).empty());
  Driven node;
  node.feed(rendezvous::Leave{0, "done\nand more"});
  CHECK(node.did<node::Quit>().size() == 1);
  CHECK(node.core.last_message() == R"(done\nand more)");
  node.actions.clear();
  node.spawn(0);
  node.feed(rendezvous::OpenStore{});
  node.feed(rendezvous::Leave{7, "again"});
  CHECK(node.actions.empty());
  CHECK(node.core.exit_code() == 0);
}

TEST_CASE(
    "agent core: the workers get the user's signal, from the master or from this node, and else SIGTERM") {
  for (const int number : {SIGINT, SIGHUP, SIGTERM, SIGKILL, 0}) {
    const int first = number == SIGINT || number == SIGHUP ? number : SIGTERM;
    Driven stopped;
    stopped.run(0);
    stopped.feed(rendezvous::Stop{0, 1'000, "stopped by the user", static_cast<std::uint8_t>(number)});
    CHECK(stopped.only_did<node::StopWorkers>().signal == first);
    Driven left;
    left.run(0);
    left.feed(node::MustLeave{"stopped", number});
    CHECK(left.only_did<node::StopWorkers>().signal == first);
  }
}

TEST_CASE("agent core: an order for the next attempt waits for the last workers of this one") {
  Driven node;
  node.run(0);
  node.feed(rendezvous::Stop{0, 1'000, "a rank failed"});
  CHECK(node.did<node::StopWorkers>().size() == 1);
  node.spawn(1);
  CHECK(node.did<node::PrepareAttempt>().empty());
  SECTION("and begins when they have ended") {
    node.end_all();
    CHECK(node.only_did<node::PrepareAttempt>().spawn.attempt == 1);
  }
  SECTION("and is answered at once when it is stopped before") {
    node.feed(rendezvous::Stop{1, 1'000, "another rank failed"});
    CHECK(node.only_sent<rendezvous::AttemptEnded>().attempt == 1);
    node.end_all();
    CHECK(node.did<node::PrepareAttempt>().empty());
  }
  SECTION("and never begins beside a process that could not be killed") {
    node.end_all(1);
    CHECK(node.did<node::PrepareAttempt>().empty());
    CHECK(node.core.leaving());
    CHECK(node.core.last_message() == "processes of the previous attempt could not be killed: daemon (7)");
    CHECK(node.did<node::Quit>().size() == 1);
  }
}

TEST_CASE("agent core: a process that is left is no loss if no attempt follows") {
  Driven node;
  node.run(0);
  node.end_all(1);
  CHECK_FALSE(node.core.leaving());
  CHECK(node.sent<rendezvous::AttemptEnded>()[0].left == 1);
}

TEST_CASE("agent core: a worker that outlives SIGKILL is no survivor of its attempt") {
  Driven node;
  node.run(0);
  node.feed(rendezvous::Stop{0, 0, "a rank failed"});
  node.exit(0, 1);
  node.feed(node::WorkersEnded{});  // worker 1 has reported no end
  node.feed(node::AttemptCleaned{0, ""});
  node.spawn(1);
  CHECK(node.core.processes().none());
  CHECK(node.core.state() == State::kStarting);
}

TEST_CASE("agent core: an agent that froze without workers starts none after its lease") {
  Driven node;
  node.now = 15s;
  node.spawn(0);
  CHECK(node.did<node::PrepareAttempt>().empty());
  CHECK(node.did<node::Quit>().size() == 1);
}

TEST_CASE("agent core: survivors begin no attempt after their lease") {
  Driven node;
  node.run(0);
  node.suspend(0);
  node.now = 15s;
  node.spawn(1);
  CHECK(node.did<node::PrepareAttempt>().empty());
  CHECK(node.did<node::CloseLink>().size() == 1);
  CHECK(node.did<node::StopWorkers>().size() == 1);
}

TEST_CASE("agent core: an order to spawn proves that the master heard of the accepted job") {
  Driven node;
  node.now = 10s;
  node.feed(node::JobAccepted{false});  // a slow disk
  node.now = 24s;
  node.spawn(0);
  CHECK(node.core.state() == State::kStarting);
  CHECK(node.only_did<node::SetLease>().left == Time(6s));  // 15 s of lease and 5 s of grace since 10 s
}

TEST_CASE("agent core: the order to leave is obeyed after the lease, too") {
  Driven node(true);
  node.run(0);
  node.now = 15s;
  node.feed(rendezvous::Leave{7, "rank 0 exited 7"});
  CHECK(node.core.exit_code() == 7);
  CHECK(node.core.last_message() == "rank 0 exited 7");
}

TEST_CASE("agent core: an attempt that cannot be prepared is refused, and survivors end") {
  Driven node;
  node.spawn(0);
  node.feed(node::AttemptImpossible{Error{ErrorCode::kSystem, "2 workers need 102 open files", 0}});
  REQUIRE(node.sent<rendezvous::Refused>().size() == 1);
  CHECK(node.core.state() == State::kNone);
  node.run(1);
  node.revoke(1);
  node.feed(node::WorkerLeft{0, {1, 10}});
  node.feed(node::WorkerLeft{1, {1, 10}});
  node.feed(node::OutputRead{});
  node.feed(node::LossesReported{});
  REQUIRE(node.core.has_survivors());
  node.spawn(2, 0);
  node.actions.clear();
  node.feed(node::AttemptImpossible{Error{ErrorCode::kSystem, "no", 0}});
  CHECK(node.only_did<node::StopWorkers>().order.grace_ms == 0);
  node.end_all();  // they end with their ranks in the attempt that they were in
  REQUIRE(node.sent<rendezvous::WorkerExited>().size() == 2);
  CHECK(node.sent<rendezvous::WorkerExited>()[0].attempt == 1);
  CHECK(node.sent<rendezvous::WorkerExited>()[0].rank == 4);
  CHECK(node.only_sent<rendezvous::AttemptEnded>().attempt == 1);
}

TEST_CASE("agent core: a worker's failure report counts while its attempt runs") {
  Driven node;
  node.run(1);
  node.feed(node::WorkerTroubled{1, {0, "of an earlier attempt", {}}});
  CHECK(node.sent<rendezvous::WorkerInTrouble>().empty());
  node.feed(node::WorkerTroubled{1, {1, 'a' + std::string(1'000, 'x'), {2}}});
  const auto trouble = node.only_sent<rendezvous::WorkerInTrouble>();
  CHECK(trouble.rank == 5);
  CHECK(trouble.text == 'a' + std::string(999, 'x'));
  CHECK(trouble.peers == std::vector<std::uint32_t>{2});
  node.revoke(1);
  for (const std::uint32_t local : {0U, 1U})
    node.feed(node::WorkerLeft{local, {1, 10}});
  node.feed(node::OutputRead{});
  REQUIRE(node.core.holds_output());
  node.feed(node::WorkerTroubled{1, {1, "after it left", {}}});
  CHECK(node.sent<rendezvous::WorkerInTrouble>().size() == 1);
}

TEST_CASE("agent core: a revoke kills the hung, asks the others, and reports the survivors") {
  Driven node;
  node.run(0);
  node.revoke(0, {5});
  CHECK(node.only_did<node::KillWorker>().local == 1);
  CHECK(node.did<node::OrderLeave>().empty());  // first no survivor may hear from an ended worker
  node.exit(1, 0);
  CHECK(node.sent<rendezvous::WorkerExited>()[0].by_revoke);
  CHECK(node.sent<rendezvous::WorkerExited>()[0].text == "hung and was killed");
  node.feed(node::LeftoversKilled{});
  REQUIRE(node.did<node::OrderLeave>().size() == 1);
  node.feed(node::WorkerLeft{0, {7, 10}});  // of another attempt
  CHECK(node.did<node::ReadOutput>().empty());
  node.feed(node::WorkerLeft{0, {0, 10}});
  CHECK(node.did<node::ReadOutput>().size() == 1);
  CHECK_FALSE(node.core.holds_output());
  node.feed(node::OutputRead{});
  CHECK(node.core.holds_output());
  node.feed(node::LossesReported{});
  const auto survivors = node.only_sent<rendezvous::AttemptRevoked>().survivors;
  REQUIRE(survivors.size() == 1);
  CHECK(survivors[0].step == 10);
  SECTION("the survivor is started in the next attempt under its old number") {
    node.actions.clear();
    node.spawn(1);
    node.feed(node::AttemptPrepared{});
    CHECK(node.only_sent<rendezvous::WorkerStarted>().start_attempt == 0);
    CHECK(node.sent<rendezvous::WorkerStarted>()[0].pid == 100);
    CHECK(node.did<node::OrderAttempt>().size() == 2);
  }
  SECTION("a survivor that dies meanwhile leaves none, and AttemptEnded follows") {
    node.exit(0, 1);
    CHECK(node.sent<rendezvous::AttemptRevoked>().size() == 1);
    node.spawn(1);  // it waits
    node.feed(node::WorkersEnded{});
    node.feed(node::AttemptCleaned{0, ""});
    CHECK(node.sent<rendezvous::AttemptEnded>().size() == 1);
    CHECK(node.core.attempt().attempt == 1);
  }
}

TEST_CASE("agent core: a revoke first kills what ended workers left") {
  Driven node;
  node.run(0);
  node.exit(0, 1);
  node.revoke(0);
  CHECK(node.did<node::KillWorker>().empty());
  CHECK(node.only_did<node::KillLeftovers>().locals == std::vector<std::uint32_t>{0});
  CHECK(node.did<node::OrderLeave>().empty());
}

TEST_CASE("agent core: a survivor's death is reported while others wait") {
  Driven node;
  node.run(0);
  node.suspend(0);
  node.exit(0, 1);
  REQUIRE(node.sent<rendezvous::WorkerExited>().size() == 1);
  CHECK_FALSE(node.sent<rendezvous::WorkerExited>()[0].by_revoke);
  const auto revoked = node.only_sent<rendezvous::AttemptRevoked>();
  CHECK(revoked.attempt == 0);
  REQUIRE(revoked.survivors.size() == 1);
  CHECK(revoked.survivors[0].local_rank == 1);
}

TEST_CASE("agent core: workers that leave too late are killed") {
  Driven node;
  node.run(0);
  node.revoke(0);
  CHECK(node.core.deadline() == Time(5s));
  node.feed(node::WorkerLeft{0, {0, 10}});
  node.now = 4999ms;
  node.feed(node::Tick{});
  CHECK(node.did<node::KillWorker>().empty());
  node.now = 5s;
  node.feed(node::Tick{});
  REQUIRE(node.did<node::KillWorker>().size() == 1);
  CHECK(*node.core.processes().killed(1) == "did not leave attempt 0 within 5 s and was killed");
  node.feed(node::LeftoversKilled{});
  CHECK(node.core.state() == State::kAwaitingDeaths);
  SECTION("and the survivors continue when they are dead") {
    node.exit(1, 0);
    CHECK(node.did<node::ReadOutput>().size() == 1);
  }
  SECTION("and all workers end if one cannot be killed") {
    node.now = 9999ms;
    node.feed(node::Tick{});
    CHECK(node.did<node::StopWorkers>().empty());
    node.now = 10s;
    node.feed(node::Tick{});
    CHECK(node.did<node::StopWorkers>().size() == 1);
    CHECK(node.sent<rendezvous::Notice>().size() == 1);
  }
}

TEST_CASE("agent core: a revoke goes on at once when the killed workers are dead first") {
  Driven node;
  node.run(0);
  SECTION("all hung") {
    node.revoke(0, {4, 5});
    node.exit(0, 0);
    node.exit(1, 0);
    CHECK(node.did<node::ReadOutput>().empty());
  }
  SECTION("one was late") {
    node.revoke(0);
    node.feed(node::WorkerLeft{0, {0, 10}});
    node.now = 5s;
    node.feed(node::Tick{});
    node.exit(1, 0);
    CHECK(node.did<node::ReadOutput>().empty());
  }
  node.feed(node::LeftoversKilled{});
  CHECK(node.did<node::ReadOutput>().size() == 1);
}

TEST_CASE("agent core: standard input reaches the workers of a running attempt only") {
  Driven node;
  CHECK_FALSE(node.core.takes_stdin());
  SECTION("from its start") {
    node.spawn(0);
    CHECK(node.core.takes_stdin());
  }
  SECTION("until the attempt is over") {
    node.run(0);
    CHECK(node.core.takes_stdin());
    node.feed(rendezvous::Stop{0, 1000, "the end"});
    REQUIRE(node.core.state() == State::kStopping);
    CHECK(node.core.takes_stdin());
    for (std::uint32_t local = 0; local < 2; ++local)
      node.exit(local, 0);
    node.feed(node::WorkersEnded{});
    REQUIRE(node.core.state() == State::kCleaning);
    CHECK(node.core.takes_stdin());
    node.feed(node::AttemptCleaned{0, ""});
    CHECK_FALSE(node.core.takes_stdin());
  }
  SECTION("not between two attempts") {
    node.run(0);
    node.revoke(0);
    CHECK_FALSE(node.core.takes_stdin());
    for (std::uint32_t local = 0; local < 2; ++local)
      node.feed(node::WorkerLeft{local, {0, 10}});
    CHECK_FALSE(node.core.takes_stdin());
  }
}

TEST_CASE("agent core: a worker that cannot rejoin is terminated") {
  Driven node;
  node.run(0);
  node.feed(node::WorkerGreeted{1, false});
  node.revoke(0);
  CHECK(node.only_did<node::TerminateWorker>().local == 1);
  REQUIRE(node.did<node::OrderLeave>().size() == 1);
  CHECK(
      std::holds_alternative<node::OrderLeave>(node.actions.back()));  // no survivor hears from an ended one
}

TEST_CASE("agent core: a revoke waits until the workers are started, but not beyond its deadline") {
  Driven node;
  node.spawn(0);
  node.feed(node::AttemptPrepared{});
  node.feed(node::WorkerStarted{0, 100, 1});
  node.revoke(0);
  CHECK(node.core.state() == State::kAwaitingStart);
  SECTION("then it kills what is left of workers that never started") {
    node.feed(node::WorkersStarted{});
    CHECK(node.only_did<node::KillLeftovers>().locals == std::vector<std::uint32_t>{1});
  }
  SECTION("a disk that hangs costs the node's workers") {
    node.now = 5s;
    node.feed(node::Tick{});
    CHECK(node.did<node::StopWorkers>().size() == 1);
  }
}

TEST_CASE("agent core: late and repeated orders have no effect") {
  Driven node;
  node.run(3);
  node.revoke(2);
  node.feed(rendezvous::Stop{2, 0, "old"});
  CHECK(node.actions.empty());
  node.revoke(3);
  node.actions.clear();
  node.revoke(3);
  CHECK(node.actions.empty());
  node.feed(rendezvous::Stop{3, 0, "now"});
  CHECK(node.core.state() == State::kStopping);
  node.actions.clear();
  node.feed(node::LeftoversKilled{});
  node.feed(node::OutputRead{});
  node.feed(node::LossesReported{});
  node.revoke(3);
  CHECK(node.actions.empty());
  node.end_all();
  node.actions.clear();
  node.feed(rendezvous::Stop{3, 0, "again"});
  CHECK(node.actions.empty());
}

TEST_CASE("agent core: a revoke of an attempt whose workers have all ended does not wait for a reader") {
  Driven node;
  node.run(0);
  node.exit(0, 1);
  node.exit(1, 1);
  node.revoke(0);
  CHECK(node.only_did<node::StopWorkers>().order.grace_ms == 0);
}

TEST_CASE("agent core: a store is opened unless workers run that need another") {
  Driven node;
  node.run(0);
  node.feed(rendezvous::OpenStore{});
  CHECK(node.did<node::OpenStore>().empty());
  REQUIRE(node.sent<rendezvous::Refused>().size() == 1);
  node.feed(rendezvous::Stop{0, 0, "a rank failed"});
  node.feed(rendezvous::OpenStore{});
  CHECK(node.did<node::OpenStore>().size() == 1);
}

TEST_CASE("agent core: an order after the end of the lease is too late") {
  Driven node;
  node.run(0);
  node.now = 14999ms;
  node.feed(node::HeartbeatDue{15s});
  CHECK_FALSE(node.core.leaving());
  CHECK(node.only_did<node::SetLease>().left == Time(5001ms));
  node.now = 15s;
  node.actions.clear();
  node.feed(node::Pinged{});
  CHECK(node.core.leaving());
  CHECK(node.core.exit_code() == 113);
  CHECK(node.did<node::CloseLink>().size() == 1);
  CHECK(node.only_did<node::StopWorkers>().order.grace_ms == 5000);
  node.end_all();
  CHECK(node.did<node::Quit>().size() == 1);
}

TEST_CASE("agent core: each order that a frozen agent finds after its lease ends the workers") {
  const node::Event orders[] = {node::Pinged{}, rendezvous::OpenStore{},
                                rendezvous::Revoke{0, 5'000, "rank 0 is lost", {}},
                                rendezvous::Stop{0, 60'000, "rank 0 is lost"}};
  for (const node::Event& order : orders) {
    Driven node;
    node.run(0);
    node.now = 15s;
    node.feed(order);
    INFO("event " << order.index());
    CHECK(node.core.leaving());
    CHECK(node.did<node::CloseLink>().size() == 1);
    REQUIRE_FALSE(node.did<node::StopWorkers>().empty());
    CHECK(node.did<node::StopWorkers>()[0].order.grace_ms == 5'000);
  }
}

TEST_CASE("agent core: workers end at the first heartbeat after their lease") {
  Driven node;
  node.run(0);
  node.now = 14999ms;
  node.feed(node::HeartbeatDue{20s});  // the lease counts, not the silence
  CHECK_FALSE(node.core.leaving());
  node.now = 15s;
  node.feed(node::HeartbeatDue{0s});
  CHECK(node.core.leaving());
  CHECK(node.did<node::CloseLink>().size() == 1);
  CHECK(node.did<node::StopWorkers>().size() == 1);
}

TEST_CASE("agent core: a node without workers is lost by silence, not by its lease") {
  Driven node;
  node.live_until(20s, 0s);
  node.feed(node::Pinged{});
  node.feed(rendezvous::OpenStore{});
  node.live_until(35s, 15s);
  CHECK_FALSE(node.core.leaving());
  node.live_until(36s, 16s);
  CHECK(node.did<node::Quit>().size() == 1);
}

TEST_CASE("agent core: on the master's machine workers have a lease only if an attempt may follow") {
  for (const bool restarts : {false, true}) {
    Driven node;
    node.feed(node::JobReceived{15s, 5s, restarts});
    node.feed(node::JobAccepted{true});
    node.feed(rendezvous::Spawn{});
    CHECK(node.did<node::RenewKeeper>().size() == (restarts ? 0 : 1));
    CHECK(node.did<node::SetLease>().size() == (restarts ? 1 : 0));
    node.live_until(14s, 0s);
    CHECK_FALSE(node.core.leaving());
    node.live_until(15s, 0s);
    CHECK(node.core.leaving() == restarts);
    node.live_until(16s, 16s);
    CHECK(node.core.leaving());
  }
}

TEST_CASE("agent core: a node that slept gives its master one lease where no attempt may follow") {
  Driven node;
  node.feed(node::JobReceived{15s, 5s, false});
  node.run(0);
  node.live_until(3s, 3s);
  node.now = 40s;  // all processes of the job were suspended
  node.feed(node::Pinged{});
  node.actions.clear();
  node.feed(node::HeartbeatDue{37s});
  CHECK_FALSE(node.core.leaving());
  CHECK(node.only_did<node::SetLease>().left == Time(20s));
  node.live_until(54s, 50s);
  CHECK_FALSE(node.core.leaving());
  SECTION("the master does not answer") {
    node.live_until(55s, 50s);
    CHECK(node.core.leaving());
  }
  SECTION("the master answers") {
    node.feed(node::Pinged{});
    node.feed(node::Pinged{});
    node.live_until(68s, 0s);
    CHECK_FALSE(node.core.leaving());
  }
}

TEST_CASE("agent core: pauses without end hold no lease open") {
  Driven node;
  node.feed(node::JobReceived{15s, 5s, false});
  node.run(0);
  for (int i = 0; i < 8; ++i) {
    node.now += 3s;
    node.feed(node::HeartbeatDue{node.now});
  }
  CHECK(node.core.leaving());  // one lease after the first pause
}

TEST_CASE("agent core: a node that slept waits for a Ping on the master's machine, and its keeper decides") {
  Driven node;
  node.feed(node::JobAccepted{true});
  node.run(0);
  node.live_until(3s, 3s);
  node.now = 40s;
  node.feed(node::Pinged{});  // sent before the sleep
  node.actions.clear();
  node.feed(node::HeartbeatDue{37s});
  CHECK_FALSE(node.core.leaving());
  CHECK(node.did<node::SetLease>().empty());
  SECTION("the master has gone on") {
    node.live_until(45s, 42s);
    CHECK(node.core.leaving());
  }
  SECTION("the master slept, too") {
    node.feed(node::Pinged{});
    CHECK(node.only_did<node::SetLease>().left == Time(20s));
    node.live_until(54s, 0s);
    CHECK_FALSE(node.core.leaving());
  }
}

TEST_CASE("agent core: a node that must leave reports why, and ends its workers") {
  for (const bool alone : {false, true}) {
    Driven node(alone);
    node.feed(node::JobReceived{15s, 2s});
    node.run(0);
    node.feed(node::MustLeave{"stopped by SIGTERM from kill (pid 7 of user ann)", SIGTERM});
    REQUIRE(node.sent<rendezvous::Refused>().size() == 1);
    const std::string by = "stopped by SIGTERM from kill (pid 7 of user ann)";
    CHECK(node.sent<rendezvous::Refused>()[0].text == (alone ? "its ddplaunch was " : "its agent was ") + by);
    CHECK(node.did<node::CloseLink>().empty());
    CHECK(node.only_did<node::StopWorkers>().order.grace_ms == 2'000);
    CHECK(node.core.exit_code() == (alone ? 143 : 113));
    CHECK(node.core.last_message() == (alone ? by + "; the job has lost this node" : "its agent was " + by));
    node.feed(node::MustLeave{"the keeper of its agent was killed"});
    CHECK(node.sent<rendezvous::Refused>().size() == 1);
    node.end_all();
    CHECK(node.did<node::Quit>().size() == 1);
  }
}

WorkerProcess process(pid_t pid) {
  WorkerProcess worker;
  worker.pid = pid;
  return worker;
}

TEST_CASE("the message that all workers can survive is sent once per attempt") {
  WorkerProcesses workers;
  CHECK_FALSE(workers.take_greeted_change());  // there is no worker
  workers.started(0, process(100));
  workers.started(1, process(101));
  workers.greeted(0, true);
  CHECK_FALSE(workers.take_greeted_change());
  workers.greeted(1, true);
  CHECK(workers.take_greeted_change());
  CHECK_FALSE(workers.take_greeted_change());
  workers.begin_attempt();
  CHECK(workers.take_greeted_change());  // same processes, new attempt
}

TEST_CASE("a worker that answers a revoke survives, with the step that it holds") {
  WorkerProcesses workers;
  for (std::uint32_t local : {0u, 1u, 2u, 3u})
    workers.started(local, process(static_cast<pid_t>(100 + local)));
  CHECK(workers.unanswered() == std::vector<std::uint32_t>{0, 1, 2, 3});
  workers.answered(0, 17);
  workers.answered(1, std::nullopt);
  workers.kill(2, "hung and was killed");
  CHECK(workers.unanswered() == std::vector<std::uint32_t>{3});
  CHECK(workers.dying().size() == 1);
  REQUIRE(workers.killed(2) != nullptr);
  CHECK(*workers.killed(2) == "hung and was killed");
  CHECK(workers.killed(3) == nullptr);
  workers.ended(2);
  workers.ended(3);
  CHECK(workers.dying().empty());
  const auto survivors = workers.survivors();
  REQUIRE(survivors.size() == 2);
  CHECK(survivors[0].holds_state);
  CHECK(survivors[0].step == 17);
  CHECK_FALSE(survivors[1].holds_state);
  workers.begin_attempt();  // the answer belonged to the previous attempt
  CHECK(workers.unanswered() == std::vector<std::uint32_t>{0, 1});
  CHECK_FALSE(workers.survivors()[0].holds_state);
}

TEST_CASE("messages about a worker that has ended do nothing") {
  WorkerProcesses workers;
  workers.greeted(5, true);
  workers.ready(5);
  workers.answered(5, 3);
  CHECK(workers.none());
  CHECK(workers.killed(5) == nullptr);
}

}  // namespace
}  // namespace ddp::launcher
