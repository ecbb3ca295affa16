#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/collective_machine.h"

namespace ddp::train {

/// One operation as this rank saw it. Times are nanoseconds since the epoch by the rank's own clock.
struct LoggedCollective {
  std::uint64_t sequence = 0;  ///< from 1; the same operation has the same one on all ranks
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::uint64_t bytes = 0;
  std::string type;  ///< "float", "double", "bytes", "u64"
  std::int64_t started = 0;
  std::int64_t finished = 0;  ///< 0: not, when the log was written

  friend bool operator==(const LoggedCollective&, const LoggedCollective&) = default;
};

/// The last operations of one rank, the oldest first. Costs no allocation once it is full.
class CollectiveLog {
 public:
  static constexpr std::size_t kCapacity = 1'000;

  /// The sequence number of the operation that begins now.
  std::uint64_t start(CollectiveKind kind, std::uint64_t bytes, std::string_view type, std::int64_t now);
  /// One that the ring has forgotten is no mistake.
  void finish(std::uint64_t sequence, std::int64_t now);

  std::vector<LoggedCollective> entries() const;

 private:
  std::vector<LoggedCollective> ring_;  ///< sequence s lies at (s - 1) % kCapacity
  std::uint64_t last_ = 0;
};

/// What one rank leaves in its file.
struct CollectiveDump {
  int rank = 0;
  int world_size = 0;
  std::uint32_t attempt = 0;
  std::string reason;  ///< why it was written
  std::vector<LoggedCollective> entries;
};

/// JSON lines: a head {"schema":"ddp-collective-log/1","rank":…}, then one object per operation.
std::string dump_text(const CollectiveDump& dump);
/// Nothing where the text is no such file. A last line that is cut off (a full disk) is left out.
std::optional<CollectiveDump> parse_dump(std::string_view text);

/// Which rank the others wait for, or which called another operation, in one line without its end: "rank 3
/// has not started all-reduce 517 (116 KB) that ranks 0-2 wait in". Of the newest attempt. Empty: the logs
/// show no operation that is not finished everywhere.
std::string missing_collective(const std::vector<CollectiveDump>& dumps);

}  // namespace ddp::train
