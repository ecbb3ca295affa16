#include "launcher/agent_core/worker_lives.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

WorkerLife process(pid_t pid) {
  WorkerLife life;
  life.pid = pid;
  return life;
}

TEST_CASE("that all can live on is news once in an attempt") {
  WorkerLives lives;
  CHECK_FALSE(lives.greeted_is_news());  // nobody is there
  lives.started(0, process(100));
  lives.started(1, process(101));
  lives.greeted(0, true);
  CHECK_FALSE(lives.greeted_is_news());
  lives.greeted(1, true);
  CHECK(lives.greeted_is_news());
  CHECK_FALSE(lives.greeted_is_news());
  lives.begin_attempt();
  CHECK(lives.greeted_is_news());  // the same processes, another attempt
}

TEST_CASE("one that cannot live on is enough") {
  WorkerLives lives;
  lives.started(0, process(100));
  lives.started(1, process(101));
  lives.greeted(0, true);
  lives.greeted(1, false);
  CHECK_FALSE(lives.greeted_is_news());
}

TEST_CASE("who has ended is not awaited") {
  WorkerLives lives;
  lives.started(0, process(100));
  lives.started(1, process(101));
  lives.ready(0);
  CHECK_FALSE(lives.ready_is_news());
  lives.ended(1);
  CHECK(lives.ready_is_news());
  lives.ended(0);
  CHECK(lives.none());
}

TEST_CASE("a revoke: who answers survives, with the step that it holds") {
  WorkerLives lives;
  for (std::uint32_t local : {0u, 1u, 2u, 3u})
    lives.started(local, process(static_cast<pid_t>(100 + local)));
  CHECK(lives.unanswered() == std::vector<std::uint32_t>{0, 1, 2, 3});
  lives.answered(0, 17);
  lives.answered(1, std::nullopt);
  lives.kill(2, "hung and was killed");
  CHECK(lives.unanswered() == std::vector<std::uint32_t>{3});
  CHECK(lives.dying().size() == 1);
  REQUIRE(lives.killed(2) != nullptr);
  CHECK(*lives.killed(2) == "hung and was killed");
  CHECK(lives.killed(3) == nullptr);
  lives.ended(2);
  lives.ended(3);
  CHECK(lives.dying().empty());
  const auto survivors = lives.survivors();
  REQUIRE(survivors.size() == 2);
  CHECK(survivors[0].holds_state);
  CHECK(survivors[0].step == 17);
  CHECK_FALSE(survivors[1].holds_state);
  lives.begin_attempt();  // the answer was to the attempt before
  CHECK(lives.unanswered() == std::vector<std::uint32_t>{0, 1});
  CHECK_FALSE(lives.survivors()[0].holds_state);
}

TEST_CASE("words about who has gone do nothing") {
  WorkerLives lives;
  lives.greeted(5, true);
  lives.ready(5);
  lives.answered(5, 3);
  lives.kill(5, "x");
  CHECK(lives.none());
  CHECK(lives.killed(5) == nullptr);
}

}  // namespace
}  // namespace ddp::launcher
