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

/// The training's data of one rank: read from files, or mapped from another rank of its node, so that a node
/// unpacks them once, whatever its number of ranks, and a process that comes later not at all.
class NodeData {
 public:
  NodeData(std::string where, std::size_t limit);

  /// The first rank of each node reads before it joins the others, who wait for it there; where nodes are not
  /// known, all do.
  static bool reads_first(const WorkerEnvironment& environment);

  /// From the files, unless the data is here.
  Result<> load();
  /// Who has none takes what another rank of the node has, or else loads it. All ranks call it. Errors: the
  /// communicator's, and load()'s.
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
