#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "rendezvous/protocol/message.h"
#include "rendezvous/store_tcp/tcp_store_server.h"

namespace ddp::launcher {

/// The store of an attempt on node 0, in its agent. With --store worker it only holds the port, and answers
/// the nodes that look for the way to it, until the workers start. On the loop thread.
class NodeStore {
 public:
  using Tell = std::function<void(std::string)>;  ///< what a person should read

  NodeStore(asio::any_io_executor executor, Tell tell)
      : executor_(std::move(executor)), tell_(std::move(tell)) {}

  /// Ends the store of the attempt before and opens this one's. Errors name the port (kSystem).
  Result<rendezvous::StoreOpened> open(const rendezvous::OpenStore& message);
  /// The workers are about to start: a port that rank 0 is to serve is given up to it.
  void workers_start();
  void stop();

 private:
  asio::any_io_executor executor_;
  Tell tell_;
  std::optional<rendezvous::TcpStoreServer> server_;
  bool of_worker_ = false;
  std::set<asio::ip::address> broken_peers_;
};

}  // namespace ddp::launcher
