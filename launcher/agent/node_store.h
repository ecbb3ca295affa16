#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "rendezvous/protocol/message.h"
#include "rendezvous/store_tcp/tcp_store_server.h"

namespace ddp::launcher {

/// The store of an attempt on node 0, in its agent. With --store worker it only holds the port, and answers
/// the nodes that look for the way to it, until the workers start. On the loop thread.
class NodeStore {
 public:
  using Notify = std::function<void(std::string)>;  ///< what a person should read

  NodeStore(asio::any_io_executor executor, Notify notify)
      : executor_(std::move(executor)), notify_(std::move(notify)) {}

  /// Ends the store of the attempt before and opens this one's. Errors name the port (kSystem).
  Result<rendezvous::StoreOpened> open(const rendezvous::OpenStore& message);
  /// The workers are about to start: a port that rank 0 is to serve is given up to it.
  void workers_start();
  void stop();

 private:
  asio::any_io_executor executor_;
  Notify notify_;
  std::optional<rendezvous::TcpStoreServer> server_;
  bool of_worker_ = false;
  std::set<asio::ip::address> broken_peers_;
};

/// The way to the store that a node found.
struct StoreRoute {
  std::string address;   ///< the first of those asked for that leads there; empty: none does
  std::string local;     ///< our own address on this way
  std::string failures;  ///< of the addresses before it: "10.0.0.1:29500: Connection refused; …"
};

/// Connects to `port` of all `addresses` (numeric, best first) at once and asks who is there: only the store
/// whose token is `token` (OpenStore's answer) counts, any store where it is empty. Takes `timeout` at most,
/// and half of it where a worse address leads there and a better one is silent.
Awaitable<StoreRoute> find_store(asio::any_io_executor executor, std::vector<std::string> addresses,
                                 std::uint16_t port, std::string token, std::chrono::milliseconds timeout);

}  // namespace ddp::launcher
