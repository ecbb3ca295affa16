#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/train/collectives/cpu/tcp_communicator.h"
#include "apps/train/collectives/peer_directory.h"

namespace ddp::train {

struct PeerConfig {
  std::string job_id;
  std::uint32_t attempt = 0;
  int rank = 0;
  int world_size = 1;      ///< at least 2
  std::string group;       ///< empty: the whole world; else the unique name of the connected ranks
  std::vector<int> names;  ///< their ranks in the world, by `rank`; empty: the same
  std::uint32_t scalar_bytes = 4;
  std::chrono::milliseconds start_timeout{120'000};  ///< until all neighbors have connected
  std::chrono::milliseconds step_timeout{60'000};    ///< of each step of an operation
  int interrupt = -1;  ///< descriptor that ends any wait when it is readable; not owned
};

/// Listens on this machine's address, publishes it and makes one connection to each rank of peers_of(). The
/// rank whose distance along the ring is shorter connects. Both ends prove job, attempt and rank by a hello;
/// any other connection is closed without harm. Errors name the missing rank.
Result<std::unique_ptr<TcpCommunicator>> connect_peers(const PeerConfig& config, PeerDirectory& directory);

}  // namespace ddp::train
