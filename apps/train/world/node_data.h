#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/data_memory.h"
#include "apps/train/data/dataset.h"
#include "apps/train/world/worker_environment.h"
#include "base/result.h"

namespace ddp::train {

/// The training's data of one rank: read from files, or mapped from another rank of its node. A node
/// therefore unpacks the files once for any number of ranks, and a process that joins later unpacks nothing.
class NodeData {
 public:
  NodeData(std::string where, std::size_t limit);

  /// Returns whether this rank reads the data before it joins: the first rank of each node does, and the
  /// others wait for it in the join. If nodes are unknown, all ranks read first.
  static bool reads_first(const WorkerEnvironment& environment);

  /// Reads the files, unless the data is already here.
  Result<> load();
  /// A rank without data takes the data of another rank of its node, or else loads it. All ranks call it.
  /// Errors: the communicator's, and load()'s.
  Result<> share(Communicator& world, const WorkerEnvironment& environment);

  bool is_here() const { return split_.training.size() > 0; }
  const DataSplit& split() const { return split_; }

 private:
  std::string where_;
  std::size_t limit_;
  std::uint64_t source_;
  std::optional<DataMemory> memory_;
  DataSplit split_;
};

}  // namespace ddp::train
