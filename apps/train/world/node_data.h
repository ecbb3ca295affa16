#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "apps/train/world/world.h"
#include "base/result.h"

namespace ddp::train {

/// --data auto: the data set in kUsualData is read where that folder has any of its files. A node without it
/// receives the images from another one; if no node has it, all ranks draw synthetic images.
inline constexpr const char* kAutoData = "auto";
inline constexpr const char* kUsualData = "/usr/share/datasets/fashion-mnist";

/// The training's data of one rank: read from files, mapped from another rank of its node, or received. A
/// node therefore unpacks the files once for any number of ranks, and a process that joins later unpacks
/// nothing.
class NodeData {
 public:
  /// `where` is as in load_data(), or kAutoData, which stands for `usual`.
  NodeData(std::string where, std::size_t limit, std::string usual = kUsualData);

  /// Returns whether this rank reads the data before it joins: the first rank of each node does, and the
  /// others wait for it in the join. If nodes are unknown, all ranks read first.
  static bool reads_first(const WorkerEnvironment& environment);

  /// Reads the files, unless the data is already here. With kAutoData missing files are no error.
  Result<> load();
  /// A rank without data takes the data of another rank of its node, or else loads it; with kAutoData it
  /// receives or draws what it cannot load. All ranks call it. Errors: the communicator's, and load()'s.
  Result<> share(Communicator& world, const WorkerEnvironment& environment);

  bool is_here() const { return split_.training.size() > 0; }
  const DataSplit& split() const { return split_; }
  /// Tells the user about images that were not read from this rank's files; empty: all were. Set by share().
  const std::string& line() const { return line_; }

 private:
  Result<> load_from(const std::string& place);
  void offer();
  Result<> take_from_node(Communicator& world, const WorkerEnvironment& environment);
  Result<> complete(Communicator& world, const WorkerEnvironment& environment);
  Result<> receive(Communicator& world, int root);

  std::string where_;
  std::size_t limit_;
  std::string usual_;
  std::uint64_t source_;
  std::optional<DataMemory> memory_;
  DataSplit split_;
  std::string line_;
};

/// Returns how many bytes of this host's memory programs can still take. It is the kernel's estimate, or less
/// where a control group of this process leaves less; memory that only caches files counts as free. Empty:
/// unknown. The paths are parameters for tests.
std::optional<std::size_t> available_memory(const std::filesystem::path& proc = "/proc",
                                            const std::filesystem::path& groups = "/sys/fs/cgroup");

/// Returns why `ranks` of this host cannot take `each` bytes each: "1.0 TiB of memory for each rank, and
/// host gpu01 has 21.9 GiB left for its 2 ranks". Empty if they can, or if the memory is unknown. Less than
/// one rank counts as one.
std::string lacking_memory(std::size_t each, int ranks);

}  // namespace ddp::train
