#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/options/options.h"
#include "apps/train/world/run_choice.h"
#include "apps/train/world/store_host.h"
#include "apps/train/world/worker_environment.h"
#include "base/result.h"

namespace ddp::train {

/// This rank's connections to the other ranks, and the store if this rank serves it. Only one communicator of
/// a world may be used at a time, in the same order on all ranks.
struct CommWorld {
  std::unique_ptr<StoreHost> store;
  std::unique_ptr<PeerDirectory> directory;  ///< null in a world of one
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Communicator> node;     ///< the ranks of this node; null unless requested
  std::unique_ptr<Communicator> between;  ///< the nodes as ranks (BetweenNodes); null unless requested
  std::string backend;                    ///< "shm", "tcp", "shm+tcp", "nccl", "none": for people
  int node_count = 0;                     ///< 0: unknown
  std::vector<int> node_of;               ///< by rank; empty if no memory is shared inside nodes
  RunChoice choice;                       ///< of a training's device and transport, also if given by options
  std::string choice_line;                ///< for people, on rank 0 after a choice; else empty

  bool same_node(int a, int b) const;
};

struct WorldOptions {
  CommKind comm = CommKind::kAuto;
  std::string device = "cpu";      ///< of a training, as --device names it; must be equal on all ranks
  std::uint32_t scalar_bytes = 4;  ///< must be equal on all ranks, or they do not meet
  std::chrono::milliseconds start_timeout{120'000};
  std::chrono::milliseconds step_timeout{60'000};
  bool share_gpu = false;   ///< with kNccl
  bool rejoins = false;     ///< communicators are aborted and replaced in this process; the same on all ranks
  bool with_nodes = false;  ///< requests World::node and World::between
  int reference_rank = 0;   ///< the rank whose options count if ranks differ
  int interrupt = -1;       ///< descriptor that ends every wait when it is readable; not owned
  std::string remark;       ///< begins the line that rank 0 prints about NCCL
  std::string advice;       ///< ends the text of an error of NCCL at its start
};

/// Returns kUsage if this environment or build cannot provide what the options request. It runs before
/// anything starts.
Result<> can_join(const WorkerEnvironment& environment, const WorldOptions& options);
/// Chooses the backend and connects it through the store.
Result<CommWorld> join_world(const WorkerEnvironment& environment, const WorldOptions& options);
/// Connects two ranks of the world for measuring, over shared memory if `same_node`. Both ranks call it.
Result<std::unique_ptr<Communicator>> join_pair(const WorkerEnvironment& environment,
                                                const WorldOptions& options, PeerDirectory& directory,
                                                std::pair<int, int> ranks, bool same_node);
/// The same for a training's options.
Result<> can_join(const WorkerEnvironment& environment, const TrainOptions& options);

/// The settings with which a rank joins the world of a training.
struct TrainingJoin {
  int interrupt = -1;
  int reference_rank = 0;                ///< the rank whose options and choice count if ranks differ
  std::optional<RunChoice> choice = {};  ///< the choice of an earlier attempt, whose state this rank holds
};
/// Chooses device and transport with the other ranks, and connects. `options` are as given: the caller trains
/// on CommWorld::choice.device.
Result<CommWorld> join_world(const WorkerEnvironment& environment, const TrainOptions& options,
                             const TrainingJoin& join = {});

}  // namespace ddp::train
