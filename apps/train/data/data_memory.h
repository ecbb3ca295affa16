#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "apps/train/data/dataset.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Where another process of the node finds a training's data: numbers, so that ranks can gather them. All
/// zero: nowhere.
struct DataTicket {
  std::uint64_t node = 0;  ///< of the job
  std::uint64_t pid = 0;
  std::uint64_t fd = 0;
  std::uint64_t size = 0;
  std::uint64_t nonce = 0;   ///< drawn for this memory alone, and written into it
  std::uint64_t source = 0;  ///< hash of where the data came from (data_source())

  static constexpr std::size_t kWords = 6;
  std::array<std::uint64_t, kWords> words() const { return {node, pid, fd, size, nonce, source}; }
  static DataTicket of(const std::uint64_t* words) {
    return {words[0], words[1], words[2], words[3], words[4], words[5]};
  }
};

/// A training's data in a memfd that is sealed against any change, so that a process that comes to a running
/// job maps what a rank of its node has instead of reading and unpacking files. Data that is drawn when it is
/// needed has no memory.
class DataMemory {
 public:
  /// Copies; nothing where there is nothing to copy.
  static Result<std::optional<DataMemory>> make(const DataSplit& data, std::uint64_t source);
  /// Maps another process's. Errors when it is not exactly what the ticket says: the caller then loads it
  /// anew.
  static Result<DataMemory> take(const DataTicket& ticket);

  /// Images and labels lie in the mapping, which lives as long as one of these.
  DataSplit data() const;
  DataTicket ticket(std::uint64_t node) const;

 private:
  struct Mapping;
  DataMemory(UniqueFd fd, std::shared_ptr<const Mapping> mapping)
      : fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  static Result<DataMemory> map(UniqueFd fd, std::size_t size);

  UniqueFd fd_;
  std::shared_ptr<const Mapping> mapping_;
};

/// Of --data and --limit.
std::uint64_t data_source(const std::string& where, std::size_t limit);

}  // namespace ddp::train
