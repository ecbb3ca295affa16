#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/nccl/nccl_world.h"
#include "apps/train/options/options.h"
#include "apps/train/world/run_choice.h"
#include "apps/train/world/store_host.h"
#include "base/result.h"

namespace ddp::train {

/// The launcher's information about this rank (torchrun's environment contract). Without RANK and WORLD_SIZE:
/// a world of one.
struct WorkerEnvironment : RankPlace {
  std::string master_addr;         ///< set when world_size > 1
  std::uint16_t master_port = 0;   ///< port of the store
  std::int64_t max_restarts = -1;  ///< TORCHELASTIC_MAX_RESTARTS; -1: unknown
  /// True: the launcher serves the store at MASTER_ADDR:MASTER_PORT. False: rank 0 must serve it.
  bool agent_store = false;
  std::string control;      ///< DDPLAUNCH_CONTROL: reports of lost peers come from here; empty: none
  std::string collectives;  ///< DDPLAUNCH_COLLECTIVES: log of operations for the launcher; empty: none
};

/// `get` is std::getenv outside tests. Errors (kUsage) name the variable.
Result<WorkerEnvironment> read_worker_environment(const std::function<const char*(const char*)>& get);

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
  RunChoice choice;                       ///< of device and transport, also if given by options
  std::string choice_line;                ///< for people, on rank 0 after a choice; else empty

  bool same_node(int a, int b) const;
};

/// The functions below set this rank's place in the job. Ranks of another scalar_bytes do not meet.
struct WorldOptions : WorldConfig {
  CommKind comm = CommKind::kAuto;
  DeviceKind device = DeviceKind::kCpu;  ///< of a training; must be equal on all ranks
  int reference_rank = 0;                ///< the rank whose options and choice count if ranks differ
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

/// Chooses device and transport with the other ranks, and connects. `options` are as given: the caller
/// computes on CommWorld::choice.device. Of the options only those of device, communication and step count;
/// `wanted` has the other ones. `held` is the choice of an earlier attempt, whose state this rank holds.
Result<CommWorld> join_world(const WorkerEnvironment& environment, const TrainOptions& options,
                             WorldOptions wanted = {}, const std::optional<RunChoice>& held = {});
/// Does only the choice, for ranks that are connected over the host's transports. In a world of one
/// `directory` is null.
Result<RunChoice> choose_device(const WorkerEnvironment& environment, const TrainOptions& options,
                                PeerDirectory* directory);
/// Connects ranks over NCCL that are connected already over the host's transports.
Result<std::unique_ptr<Communicator>> join_gpus(const WorkerEnvironment& environment,
                                                const WorldOptions& options, PeerDirectory& directory);

/// Returns the last line of a program, which says what was tested on what: "tested: 8 × NVIDIA H100,
/// NCCL 2.28.3 over P2P and IB mlx5_0:1/IB", "tested: CPU only, TCP". It names GPUs that were visible and
/// took no part. `transport`: CommWorld::backend. All ranks call it after their last operation; NCCL connects
/// in the first.
Result<std::string> tested_line(const WorkerEnvironment& environment, Communicator& world, DeviceKind device,
                                const std::string& transport);

}  // namespace ddp::train
