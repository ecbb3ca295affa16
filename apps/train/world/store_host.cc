#include "apps/train/world/store_host.h"

#include <thread>
#include <utility>

#include "base/asio.h"
#include "rendezvous/store_tcp/tcp_store_server.h"

namespace ddp::train {

Result<std::unique_ptr<StoreDirectory>> StoreDirectory::open(rendezvous::TcpStoreClient client,
                                                             const std::string& run_id, std::uint32_t attempt,
                                                             int rank, std::chrono::milliseconds timeout) {
  const std::string prefix = concat("ddp_train/", run_id, "/", attempt, "/");
  const auto run = DDP_TRY(client.add(concat(prefix, "runs/", rank), 1, timeout));
  return std::unique_ptr<StoreDirectory>(new StoreDirectory(std::move(client), concat(prefix, run, "/")));
}

struct StoreHost::Server {
  asio::io_context loop{1};
  std::uint16_t port = 0;
  // Only the loop's thread uses the server between the thread's start and join; afterwards this object does.
  std::unique_ptr<rendezvous::TcpStoreServer> store;
  std::thread thread;
};

Result<std::unique_ptr<StoreHost>> StoreHost::open(std::uint16_t port) {
  auto server = std::make_unique<Server>();
  rendezvous::TcpStoreOptions options;
  options.port = port;
  auto store =
      DDP_TRY(within("rank 0 cannot serve the store",
                     rendezvous::TcpStoreServer::open(server->loop.get_executor(), std::move(options))));
  server->port = store.port();
  server->store = std::make_unique<rendezvous::TcpStoreServer>(std::move(store));
  Server* raw = server.get();
  server->thread = std::thread([raw] { raw->loop.run(); });
  return std::unique_ptr<StoreHost>(new StoreHost(std::move(server)));
}

StoreHost::StoreHost(std::unique_ptr<Server> server) : server_(std::move(server)) {}

StoreHost::~StoreHost() {
  Server* raw = server_.get();
  asio::post(raw->loop, [raw] {
    raw->store->stop();
    raw->loop.stop();
  });
  server_->thread.join();
}

std::uint16_t StoreHost::port() const {
  return server_->port;
}

}  // namespace ddp::train
