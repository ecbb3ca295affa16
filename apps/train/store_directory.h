#pragma once

#include <cstdint>
#include <string>

#include "apps/train/peer_directory.h"
#include "rendezvous/tcp_store_client.h"

namespace ddp::train {

/// Names and texts in the job's store, under keys that hold run id and attempt: nothing of another
/// attempt is seen.
class StoreDirectory final : public PeerDirectory {
 public:
  StoreDirectory(rendezvous::TcpStoreClient client, const std::string& run_id, std::uint32_t attempt);

  /// Of the connection to the store: the network that the launcher chose, loopback when the store is there.
  Result<std::string> local_address() override;
  Result<> share(const std::string& name, const std::string& text) override;
  Result<std::string> find(const std::string& name, std::chrono::milliseconds timeout) override;

 private:
  rendezvous::TcpStoreClient client_;
  std::string prefix_;
};

}  // namespace ddp::train
