#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::launcher {

/// The job's directory on the master: raw bytes of each rank and stream, `attempt_0/rank_00003.stderr`. A
/// file appears with its first byte. Nothing in it is ever deleted. Loop thread; writes are blocking writes
/// to files.
class JobDir {
 public:
  /// Makes the directory (0700) and its parents. Error kSystem.
  static Result<JobDir> create(std::string path);

  /// Appends. The first failure is returned, so that it can be said once; while the disk stays full later
  /// bytes are lost to the file (they still reach the terminal), and writing goes on when there is room
  /// again.
  Result<> append(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream, std::string_view bytes);

  std::string file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const;
  const std::string& path() const { return path_; }

 private:
  JobDir() = default;
  using Key = std::pair<std::uint32_t, std::uint8_t>;  ///< rank, stream

  std::string path_;
  std::map<Key, UniqueFd> open_;
  std::optional<std::uint32_t> attempt_;
  std::size_t max_open_ = 64;
  bool failed_ = false;  ///< the trouble has been reported
};

}  // namespace ddp::launcher
