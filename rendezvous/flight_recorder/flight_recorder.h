#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

/// The last operations of a rank's communicators, in memory that outlives the rank. The agent reads it when
/// the rank has ended or makes no progress. The master compares the memory of all ranks (docs/users/train.md,
/// "Which rank do the others wait for?").
namespace ddp::rendezvous {

/// One operation as its rank saw it. Times are nanoseconds since the epoch by the rank's clock.
struct RecordedCollective {
  std::uint64_t sequence = 0;  ///< from 1; equal on all ranks of the group for the same operation
  std::string kind;            ///< "all-reduce", "barrier", …: at most 20 bytes
  std::uint64_t bytes = 0;
  std::string type;  ///< "float", "double", "bfloat16", "bytes", "u64": at most 12 bytes
  std::int64_t started = 0;
  std::int64_t finished = 0;  ///< 0: not finished when the log was read

  friend bool operator==(const RecordedCollective&, const RecordedCollective&) = default;
};

/// The operations of one communicator. Each group has its own sequence numbers.
struct RecordedGroup {
  std::string name = "world";  ///< "world", "node 0", "between" (the nodes): at most 24 bytes in memory
  int first = 0;               ///< lowest rank of the group in the world
  int ranks = 0;               ///< number of ranks: `first` and the following ones; 0: unknown
  std::vector<RecordedCollective> entries;
  std::vector<int> members = {};  ///< the ranks in ascending order, if they do not follow each other

  friend bool operator==(const RecordedGroup&, const RecordedGroup&) = default;
};

/// The recorded operations of one rank.
struct FlightRecorderDump {
  int rank = 0;  ///< in the world
  int world_size = 0;
  std::uint32_t attempt = 0;
  std::string reason;  ///< why the dump was written; empty: it was found in memory
  std::vector<RecordedGroup> groups;
  std::int64_t taken = 0;  ///< when the rank was asked, by the clock of RecordedCollective; 0: unknown
  /// Where the rank is if not in a collective: "in its data loader, at train.py:30", "stopped by a signal".
  /// Without groups the dump says only this. Empty: unknown.
  std::string place = {};
};

/// Name and only operation of the group of ranks that are not in a process group of PyTorch yet.
inline constexpr std::string_view kJoining = "init_process_group";

/// Name of the group of all ranks of a PyTorch that has no recorder. Its only operation is the one in which a
/// rank's stacks show it, and has no number.
inline constexpr std::string_view kByStacks = "by stacks";
inline constexpr std::uint64_t kUnnumbered = std::numeric_limits<std::uint64_t>::max();

/// Operations of a group that an agent reports: finished ones, and from the first unfinished one on.
inline constexpr std::size_t kFinishedReported = 1;
inline constexpr std::size_t kReported = 64;

/// The memory of one rank: plain bytes without pointers, so that processes of one build (the agent and its
/// `train`) can share it. All zero: never written. One writer.
struct FlightRecorderMemory {
  static constexpr std::uint64_t kMagic = 0x314c4c4f43504444;  ///< "DDPCOLL1"
  static constexpr std::size_t kCapacity = 1'000;              ///< operations kept per group: the last ones
  static constexpr std::size_t kGroups = 4;
  static constexpr std::size_t kStride = 256 << 10;  ///< bytes between two ranks in a file: whole pages

  struct Entry {
    std::uint64_t sequence;  ///< written last; sequence s is at (s - 1) % kCapacity
    std::uint64_t bytes;
    std::int64_t started;
    std::int64_t finished;
    std::array<char, 20> kind;
    std::array<char, 12> type;
  };
  struct Group {
    std::array<char, 24> name;
    std::int32_t first;
    std::int32_t ranks;
    std::uint64_t last;  ///< last sequence; 0: none yet. Entries beyond it belong to the previous attempt
    std::array<Entry, kCapacity> ring;
  };

  std::uint64_t magic;  ///< written last
  std::uint32_t attempt;
  std::int32_t rank;
  std::int32_t world_size;
  std::uint32_t groups;  ///< groups in use
  std::array<Group, kGroups> group;
};

/// Discards the previous contents and starts an attempt.
void begin_collectives(FlightRecorderMemory& memory, int rank, int world_size, std::uint32_t attempt);

/// Records the operations of one group. Allocates nothing. `group` must outlive it. One thread.
class FlightRecorder {
 public:
  explicit FlightRecorder(FlightRecorderMemory::Group& group) : group_(group) {}

  /// Returns the sequence number of the operation that starts.
  std::uint64_t start(std::string_view kind, std::uint64_t bytes, std::string_view type, std::int64_t now);
  /// Ignores an operation that the ring has overwritten.
  void finish(std::uint64_t sequence, std::int64_t now);

 private:
  FlightRecorderMemory::Group& group_;
};

/// Adds a group of the ranks [first, first + ranks). Returns null if there is no room.
FlightRecorderMemory::Group* add_collective_group(FlightRecorderMemory& memory, std::string_view name,
                                                  int first, int ranks);

/// Reads `memory`, which any process may have written; impossible values are left out. For each group,
/// returns up to `before` operations that precede the first unfinished one, and the operations from there on.
/// At most the first `most` of these are kept. Returns nothing if the memory was never initialized.
std::optional<FlightRecorderDump> read_collectives(const FlightRecorderMemory& memory,
                                                   std::size_t before = FlightRecorderMemory::kCapacity,
                                                   std::size_t most = FlightRecorderMemory::kCapacity);

/// JSON lines: a head {"schema":"ddp-flight-recorder/2","rank":…}, then one object per operation, group by
/// group. Schema 1 had only the group "world", without a name.
std::string dump_text(const FlightRecorderDump& dump);
/// Returns nothing if the text is no such file. A truncated last line (full disk) is left out.
std::optional<FlightRecorderDump> parse_dump(std::string_view text);

/// The result of comparing the logs of all ranks.
struct DesyncVerdict {
  /// Names the rank that the others wait for, or that called another operation. One line without line end and
  /// without control characters: "rank 3 has not started all-reduce 517 (116 KB) that ranks 0-2 wait in"; for
  /// a group of node 0, "all-reduce 5 (116 KB) of node 0". If the dumps know it, "for 66 s" follows, and
  /// "; rank 3 is at train.py:30". Empty: every logged operation is finished on all
  /// ranks.
  std::string text;
  std::set<int> named;  ///< missing ranks, or those in another operation; empty: all wait in one
  /// True: ranks wait in an operation that others have not started, or ranks called different operations.
  /// False: some ranks are only later than others, which means something only once no rank makes progress.
  bool waited_for = false;
  bool differs = false;  ///< ranks called different operations
  /// No majority tells which ranks are wrong: `named` has all that differ, or more than half of the ranks.
  bool unsure = false;
  /// Only the stacks of the ranks are known (kByStacks). Of a job that is active they say little.
  bool by_stacks = false;
};

/// Analyzes the newest attempt. `ended`: its ranks that have ended normally and may have left no log. If
/// several groups make no progress, the verdict is about a group with a missing rank that waits in no other
/// group.
DesyncVerdict analyze_desync(const std::vector<FlightRecorderDump>& dumps, const std::set<int>& ended = {});

}  // namespace ddp::rendezvous
