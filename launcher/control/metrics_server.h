#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace ddp::launcher {

/// Serves the metrics of a job over HTTP (`GET /metrics`) to everybody who reaches the address. Strangers may
/// ask as often as they like, so a thread of its own answers with the text that was published last: the loop
/// that holds the leases of the nodes only hands it over.
class MetricsServer {
 public:
  /// Listens there (listen_http), and starts the thread.
  static Result<MetricsServer> listen(const std::string& address, std::uint16_t port);
  MetricsServer(MetricsServer&&) noexcept;
  MetricsServer& operator=(MetricsServer&&) = delete;
  /// Ends the thread and its connections.
  ~MetricsServer();

  std::uint16_t port() const;
  /// Before the first call requests get 503. Thread-safe; never waits for a client.
  void publish(std::string text);

 private:
  struct State;
  explicit MetricsServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ddp::launcher
