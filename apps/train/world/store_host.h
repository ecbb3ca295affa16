#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "apps/train/collectives/communicator.h"
#include "base/result.h"
#include "rendezvous/store_tcp/tcp_store_client.h"

namespace ddp::train {

/// Names and texts in the job's store. The keys hold run id, attempt and run, which separates other attempts
/// and other trainings of the same worker.
class StoreDirectory final : public PeerDirectory {
 public:
  /// Counts this rank's trainings in the store. All ranks run the same commands in the same order, so equal
  /// counts mean the same training.
  static Result<std::unique_ptr<StoreDirectory>> open(rendezvous::TcpStoreClient client,
                                                      const std::string& run_id, std::uint32_t attempt,
                                                      int rank, std::chrono::milliseconds timeout);

  /// The address of the connection to the store: the network that the launcher chose, or loopback if the
  /// store is on this machine.
  Result<std::string> local_address() override { return client_.local_address(); }
  Result<> share(const std::string& name, const std::string& text) override {
    return client_.set(prefix_ + name, text);
  }
  Result<std::string> find(const std::string& name, std::chrono::milliseconds timeout) override {
    return client_.get(prefix_ + name, timeout);
  }

 private:
  StoreDirectory(rendezvous::TcpStoreClient client, std::string prefix)
      : client_(std::move(client)), prefix_(std::move(prefix)) {}

  rendezvous::TcpStoreClient client_;
  std::string prefix_;
};

/// A store served by this process on its own thread. It is for launchers that leave the store to rank 0
/// (torchrun without its agent's store, ddplaunch --store worker, a hand-made environment). It ends with the
/// object.
class StoreHost {
 public:
  /// Listens on all interfaces, like PyTorch's rank 0. kSystem when the port is taken.
  static Result<std::unique_ptr<StoreHost>> open(std::uint16_t port);

  ~StoreHost();
  StoreHost(const StoreHost&) = delete;
  StoreHost& operator=(const StoreHost&) = delete;

  std::uint16_t port() const;  ///< the kernel's choice if 0 was requested

 private:
  struct Server;
  explicit StoreHost(std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

}  // namespace ddp::train
