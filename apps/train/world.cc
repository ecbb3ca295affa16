#include "apps/train/world.h"

#include <chrono>
#include <string>
#include <utility>

#include "apps/train/peer_connect.h"
#include "apps/train/single_communicator.h"
#include "apps/train/store_directory.h"

namespace ddp::train {

Result<World> join_world(const WorkerEnvironment& environment, const Options& options) {
  World world;
  if (environment.world_size == 1) {
    world.communicator = std::make_unique<SingleCommunicator>();
    return world;
  }
  PeerConfig config;
  config.job_id = environment.run_id;
  config.attempt = environment.attempt;
  config.rank = environment.rank;
  config.world_size = environment.world_size;
  config.scalar_bytes = options.dtype == Dtype::kFloat64 ? 8 : 4;
  config.step_timeout = options.comm_timeout;

  if (!environment.agent_store && environment.rank == 0) {
    auto store = StoreHost::open(environment.master_port);
    if (!store) return store.error();
    world.store = std::move(*store);
  }
  auto client = rendezvous::TcpStoreClient::connect(environment.master_addr, environment.master_port,
                                                    config.start_timeout);
  if (!client) return within("rank " + std::to_string(environment.rank), client.error());
  StoreDirectory directory(std::move(*client), environment.run_id, environment.attempt);
  auto communicator = connect_peers(config, directory);
  if (!communicator) return communicator.error();
  world.communicator = std::move(*communicator);
  return world;
}

}  // namespace ddp::train
