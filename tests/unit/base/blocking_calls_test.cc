#include "base/blocking_calls.h"

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace ddp;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

/// A call that blocks, as on an unresponsive disk, until the test releases it.
struct Hang {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::function<Result<int>()> call(int value) const {
    return [wait = released, value]() -> Result<int> {
      wait.wait();
      return value;
    };
  }
};

struct CallsFixture {
  asio::io_context loop{1};
  std::vector<Result<int>> results;

  static Awaitable<> ask(CallsFixture* world, BlockingCalls* calls, std::function<Result<int>()> call,
                         Clock::time_point deadline) {
    auto result = co_await calls->run(std::move(call), deadline);
    world->results.push_back(std::move(result));
  }
  void start(BlockingCalls& calls, std::function<Result<int>()> call,
             Clock::time_point deadline = Clock::time_point::max()) {
    asio::co_spawn(loop, ask(this, &calls, std::move(call), deadline), asio::detached);
  }
};

}  // namespace

TEST_CASE("blocking calls: the loop continues, and results come in the order of one thread") {
  CallsFixture world;
  BlockingCalls calls(world.loop.get_executor(), 1);
  Hang hang;
  world.start(calls, hang.call(1));
  world.start(calls, [] { return Result<int>(2); });
  world.start(calls, [] { return Result<int>(Error{ErrorCode::kSystem, "its own error", 0}); });
  bool ticked = false;
  asio::steady_timer tick(world.loop, 1ms);
  tick.async_wait([&](const error_code&) {
    ticked = world.results.empty();
    hang.release.set_value();
  });
  world.loop.run();
  CHECK(ticked);
  REQUIRE(world.results.size() == 3);
  CHECK(*world.results[0] == 1);
  CHECK(*world.results[1] == 2);
  CHECK(world.results[2].error().text == "its own error");
}

TEST_CASE("blocking calls: a call has a deadline, and stop() does not wait") {
  CallsFixture world;
  Hang hang;
  {
    BlockingCalls calls(world.loop.get_executor(), 1);
    world.start(calls, hang.call(1), Clock::now() + 1ms);
    world.start(calls, hang.call(2));
    while (world.results.empty())
      world.loop.run_one();
    CHECK(world.results[0].error().code == ErrorCode::kTimeout);
    calls.stop();
    world.loop.run();
    REQUIRE(world.results.size() == 2);
    CHECK(world.results[1].error().code == ErrorCode::kCancelled);
  }
  hang.release.set_value();  // the thread finds that no caller waits
}
