#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/spawn_pool.h"

namespace ddp {

/// Runs SpawnPool::spawn_all without blocking the loop. The caller keeps `pool`, and everything that the
/// specs borrow, until this returns. It can be ended early only by SpawnPool::cancel and by a kill of the
/// children that are being started.
inline Awaitable<std::vector<Result<ChildProcess>>> spawn_off_loop(asio::any_io_executor loop,
                                                                   SpawnPool* pool,
                                                                   std::vector<ChildSpec> specs) {
  using Results = std::vector<Result<ChildProcess>>;
  const auto results = std::make_shared<std::optional<Results>>();
  const auto over = std::make_shared<asio::steady_timer>(loop, std::chrono::steady_clock::time_point::max());
  SpawnPool::SpawnDone done = [loop, results, over](Results started) {
    asio::post(loop, [results, over, started = std::move(started)]() mutable {
      results->emplace(std::move(started));
      over->cancel();
    });
  };
  pool->spawn_all(std::move(specs), std::move(done));
  while (!*results)
    co_await over->async_wait(kUseTuple);
  co_return std::move(**results);
}

}  // namespace ddp
