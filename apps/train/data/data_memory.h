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

/// Says where another process of the node finds a training's data. It consists of numbers, so that ranks can
/// gather it. All zero: there is no such memory.
struct DataTicket {
  std::uint64_t node = 0;  ///< number of the node in the job
  std::uint64_t pid = 0;
  std::uint64_t fd = 0;
  std::uint64_t size = 0;
  std::uint64_t nonce = 0;   ///< random number of this memory, also written into it
  std::uint64_t source = 0;  ///< hash of the data's origin (data_source())

  static constexpr std::size_t kWords = 6;
  std::array<std::uint64_t, kWords> words() const { return {node, pid, fd, size, nonce, source}; }
  static DataTicket of(const std::uint64_t* words) {
    return {words[0], words[1], words[2], words[3], words[4], words[5]};
  }
};

/// A training's data in a memfd that is sealed against any change. A process that joins a running job maps
/// the memory of another rank of its node instead of reading and unpacking files. Data that is drawn on
/// demand has no such memory.
class DataMemory {
 public:
  /// Copies `data` into a new memfd; empty if there is nothing to copy.
  static Result<std::optional<DataMemory>> make(const DataSplit& data, std::uint64_t source);
  /// Maps the memory of another process. Any difference from the ticket is an error: the caller then loads
  /// the data itself.
  static Result<DataMemory> take(const DataTicket& ticket);

  /// Images and labels lie in the mapping, which lives as long as this object or a Dataset of it.
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

/// Hashes --data and --limit.
std::uint64_t data_source(const std::string& where, std::size_t limit);

}  // namespace ddp::train
