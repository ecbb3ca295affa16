#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "remote/shells/remote_shell.h"

namespace ddp::remote {

/// Limits the concurrent logins at one place (address and port, or a jump host): servers drop connections
/// beyond MaxStartups, 10 by default. Loop thread only.
class LoginWindow {
 private:
  struct Queue;

 public:
  LoginWindow(asio::any_io_executor loop, unsigned limit) : loop_(std::move(loop)), limit_(limit) {}

  /// The right to log in; its destructor releases it.
  class Slot {
   public:
    explicit Slot(std::shared_ptr<Queue> queue);
    Slot(Slot&& other) noexcept = default;
    Slot(const Slot&) = delete;
    Slot& operator=(Slot&&) = delete;
    ~Slot();

   private:
    std::shared_ptr<Queue> queue_;
  };

  /// Waits for a slot, in order of arrival. Errors: kTimeout at the deadline, kCancelled. `label` is the
  /// host's name in their text.
  Awaitable<Result<Slot>> acquire(std::string place, std::string label, Deadline deadline);

 private:
  asio::any_io_executor loop_;
  unsigned limit_;
  std::map<std::string, std::shared_ptr<Queue>> queues_;
};

}  // namespace ddp::remote
