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

/// The operations of one communicator. Each counts its own.
struct LoggedGroup {
  std::string name = "world";  ///< "world", "node 0", "between" (the nodes)
  int ranks = 0;               ///< that call them
  std::vector<LoggedCollective> entries;

  friend bool operator==(const LoggedGroup&, const LoggedGroup&) = default;
};

/// What one rank leaves in its file.
struct CollectiveDump {
  int rank = 0;  ///< of the world
  int world_size = 0;
  std::uint32_t attempt = 0;
  std::string reason;  ///< why it was written
  std::vector<LoggedGroup> groups;
};

/// JSON lines: a head {"schema":"ddp-collective-log/2","rank":…}, then one object per operation, group by
/// group. Schema 1 had one group, the world, without a name.
std::string dump_text(const CollectiveDump& dump);
/// Nothing where the text is no such file. A last line that is cut off (a full disk) is left out.
std::optional<CollectiveDump> parse_dump(std::string_view text);

/// Which rank the others wait for, or which called another operation, in one line without its end: "rank 3
/// has not started all-reduce 517 (116 KB) that ranks 0-2 wait in"; of node 0's ranks "all-reduce 5 (116 KB)
/// of node 0". Of the newest attempt. Where several groups stand still, that one counts in which a rank is
/// missed that waits in no other. Empty: the logs show no operation that is not finished everywhere.
std::string missing_collective(const std::vector<CollectiveDump>& dumps);

}  // namespace ddp::train
