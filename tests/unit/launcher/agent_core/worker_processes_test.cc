#include "launcher/agent_core/agent_core.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

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

TEST_CASE("one worker that cannot survive is enough to restart all") {
  WorkerProcesses workers;
  workers.started(0, process(100));
  workers.started(1, process(101));
  workers.greeted(0, true);
  workers.greeted(1, false);
  CHECK_FALSE(workers.take_greeted_change());
}

TEST_CASE("a worker that has ended is not waited for") {
  WorkerProcesses workers;
  workers.started(0, process(100));
  workers.started(1, process(101));
  workers.ready(0);
  CHECK_FALSE(workers.take_ready_change());
  workers.ended(1);
  CHECK(workers.take_ready_change());
  workers.ended(0);
  CHECK(workers.none());
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
