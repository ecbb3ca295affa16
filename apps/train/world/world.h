#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/peer_directory.h"
#include "apps/train/options/options.h"
#include "apps/train/world/store_host.h"
#include "apps/train/world/worker_environment.h"
#include "base/result.h"

namespace ddp::train {

/// This rank's way to the others, and the store where this rank serves it. The communicators of a world may
/// be used one at a time, in the same order on all ranks.
struct CommWorld {
  std::unique_ptr<StoreHost> store;
  std::unique_ptr<PeerDirectory> directory;  ///< null in a world of one
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Communicator> node;     ///< the ranks of this node; null where not asked for
  std::unique_ptr<Communicator> between;  ///< the nodes as ranks (BetweenNodes); null where not asked for
  std::string backend;                    ///< "shm", "tcp", "shm+tcp", "nccl", "none": for people
  int node_count = 0;                     ///< 0: not known
  std::vector<int> node_of;               ///< by rank; empty where nothing is shared inside nodes

  bool same_node(int a, int b) const;
};

struct WorldOptions {
  CommKind comm = CommKind::kAuto;
  std::uint32_t scalar_bytes = 4;  ///< ranks that disagree do not meet
  std::chrono::milliseconds start_timeout{120'000};
  std::chrono::milliseconds step_timeout{60'000};
  bool share_gpu = false;   ///< with kNccl
  bool with_nodes = false;  ///< World::node and World::between are wanted
  int interrupt = -1;       ///< ends every wait when it is readable; not owned
  std::string remark;       ///< begins the line that rank 0 prints about NCCL
};

/// What the options ask for and this environment or build cannot give (kUsage): found before anything starts.
Result<> can_join(const WorkerEnvironment& environment, const WorldOptions& options);
/// Chooses the way and connects it through the store.
Result<CommWorld> join_world(const WorkerEnvironment& environment, const WorldOptions& options);
/// Two ranks of the world by themselves, over shared memory when `same_node`: for measuring. Both call it.
Result<std::unique_ptr<Communicator>> join_pair(const WorkerEnvironment& environment,
                                                const WorldOptions& options, PeerDirectory& directory,
                                                std::pair<int, int> ranks, bool same_node);
/// As a training's options say.
Result<> can_join(const WorkerEnvironment& environment, const TrainOptions& options);
Result<CommWorld> join_world(const WorkerEnvironment& environment, const TrainOptions& options,
                             int interrupt = -1);

}  // namespace ddp::train
