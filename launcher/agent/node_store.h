#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "rendezvous/protocol/message.h"
#include "rendezvous/store_tcp/tcp_store_server.h"

namespace ddp::launcher {

/// The store of an attempt on node 0, in its agent. With --store worker, it only holds the port until the
/// workers start, and answers the nodes that search for a route to it. It serves on a thread of its own,
/// which holds no lease: any user of the machine can keep it busy. Loop thread; it outlives the loop's
/// handlers.
class NodeStore {
 public:
  using Notify = std::function<void(std::string)>;  ///< takes a message for the user, on the loop

  NodeStore(asio::any_io_executor executor, Notify notify);
  ~NodeStore();

  /// Ends the previous attempt's store and opens a new one. Errors name the port (kSystem).
  Result<rendezvous::StoreOpened> open(const rendezvous::OpenStore& message);
  /// Call when the workers are about to start: releases a port that rank 0 will serve.
  void workers_start();
  void stop();

 private:
  asio::any_io_executor executor_;
  Notify notify_;
  class StoreThread;
  std::unique_ptr<StoreThread> store_;
  bool of_worker_ = false;
};

/// The route to the store that a node found.
struct StoreRoute {
  std::string address;   ///< the first requested address that leads there; empty: none
  std::string local;     ///< our own address on this route
  std::string failures;  ///< of the addresses before it: "10.0.0.1:29500: Connection refused; …"
};

/// Connects to `port` of all `addresses` (numeric, best first) at once and identifies the server. Only the
/// store whose token is `token` (OpenStore's answer) counts; with an empty token, any store. Takes at most
/// `timeout`, or half of it if a later address was reached and a better one is silent.
Awaitable<StoreRoute> find_store(asio::any_io_executor executor, std::vector<std::string> addresses,
                                 std::uint16_t port, std::string token, std::chrono::milliseconds timeout);

}  // namespace ddp::launcher
