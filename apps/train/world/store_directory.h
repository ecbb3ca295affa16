#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "apps/train/collectives/peer_directory.h"
#include "rendezvous/store_tcp/tcp_store_client.h"

namespace ddp::train {

/// Names and texts in the job's store, under keys that hold run id, attempt and run: nothing of another
/// attempt is seen, nor of another training of the same worker.
class StoreDirectory final : public PeerDirectory {
 public:
  /// Counts this rank's trainings in the store. As all ranks run the same commands one after another, the
  /// first, second, … training of each is the first, second, … of all.
  static Result<std::unique_ptr<StoreDirectory>> open(rendezvous::TcpStoreClient client,
                                                      const std::string& run_id, std::uint32_t attempt,
                                                      int rank, std::chrono::milliseconds timeout);

  /// Of the connection to the store: the network that the launcher chose, loopback when the store is there.
  Result<std::string> local_address() override;
  Result<> share(const std::string& name, const std::string& text) override;
  Result<std::string> find(const std::string& name, std::chrono::milliseconds timeout) override;

 private:
  StoreDirectory(rendezvous::TcpStoreClient client, std::string prefix);

  rendezvous::TcpStoreClient client_;
  std::string prefix_;
};

}  // namespace ddp::train
