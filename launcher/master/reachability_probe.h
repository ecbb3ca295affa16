#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/asio.h"

namespace ddp::launcher {

/// Asks the kernel of a silent node for an answer: connects to a port there, and closes at once. An accepted
/// connection and a refused one both prove that the host runs and that the network reaches it.
///
/// The link of a silent node cannot tell this. After an outage the kernels at both ends may wait for as long
/// again before they repeat what was lost (docs/developers/protocol.md, "Liveness"). A new connection has no
/// such wait. Loop thread.
class ReachabilityProbe {
 public:
  explicit ReachabilityProbe(asio::any_io_executor loop) : loop_(std::move(loop)) {}
  ~ReachabilityProbe() { cancel(); }
  ReachabilityProbe(const ReachabilityProbe&) = delete;
  ReachabilityProbe& operator=(const ReachabilityProbe&) = delete;

  /// Connects to `port` at the numeric `address`, and calls `answered` if the kernel there answers. It ends
  /// the connection that was tried before: the interval of the calls is the limit of each.
  void begin(const std::string& address, std::uint16_t port, std::function<void()> answered);
  void cancel();

 private:
  struct Attempt;
  static void await(const std::shared_ptr<Attempt>& attempt);

  asio::any_io_executor loop_;
  std::shared_ptr<Attempt> attempt_;
};

}  // namespace ddp::launcher
