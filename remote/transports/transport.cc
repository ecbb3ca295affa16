#include "remote/transports/transport.h"

#include <deque>

namespace ddp::remote {

struct LoginWindow::Queue {
  unsigned used = 0;
  std::deque<std::shared_ptr<asio::steady_timer>> waiting;  ///< cancelled when the waiter's turn comes

  void wake_next() {
    if (!waiting.empty()) waiting.front()->cancel();
  }
};

LoginWindow::Slot::Slot(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {
  ++queue_->used;
}

LoginWindow::Slot::~Slot() {
  if (!queue_) return;
  --queue_->used;
  queue_->wake_next();
}

Awaitable<Result<LoginWindow::Slot>> LoginWindow::acquire(std::string place, std::string label,
                                                          Deadline deadline) {
  co_await asio::this_coro::throw_if_cancelled(false);
  std::shared_ptr<Queue>& entry = queues_[place];
  if (!entry) entry = std::make_shared<Queue>();
  const std::shared_ptr<Queue> queue = entry;
  // Also nobody before it: a slot that is free now belongs to the first waiter, who has not run yet.
  if (queue->used < limit_ && queue->waiting.empty()) co_return Slot(queue);

  auto turn = std::make_shared<asio::steady_timer>(loop_, deadline);
  queue->waiting.push_back(turn);
  std::optional<Error> failure;
  while (!failure && !(queue->used < limit_ && queue->waiting.front() == turn)) {
    co_await turn->async_wait(kUseTuple);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) {
      failure = Error{ErrorCode::kCancelled, label + ": cancelled", 0};
    } else if (std::chrono::steady_clock::now() >= deadline) {
      failure =
          Error{ErrorCode::kTimeout, label + ": other logins at " + place + " used up the start limit", 0};
    }
  }
  queue->waiting.erase(std::find(queue->waiting.begin(), queue->waiting.end(), turn));
  // The wake-up may have come together with the failure, so it is passed on.
  if (failure) {
    queue->wake_next();
    co_return *failure;
  }
  Slot slot(queue);
  if (queue->used < limit_) queue->wake_next();  // two slots may have become free before this one woke
  co_return std::move(slot);
}

}  // namespace ddp::remote
