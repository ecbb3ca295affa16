#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What a rank's communicators did last, in memory that outlives the rank: its agent reads it when the rank
/// has ended or stands still, and the master compares what all ranks left (docs/train.md, "Which rank do the
/// others wait for?").
namespace ddp::rendezvous {

/// One operation as its rank saw it. Times are nanoseconds since the epoch by the rank's own clock.
struct RecordedCollective {
  std::uint64_t sequence = 0;  ///< from 1; the same operation has the same one on all ranks of the group
  std::string kind;            ///< "all-reduce", "barrier", …: at most 20 bytes
  std::uint64_t bytes = 0;
  std::string type;  ///< "float", "double", "bfloat16", "bytes", "u64": at most 12 bytes
  std::int64_t started = 0;
  std::int64_t finished = 0;  ///< 0: not, when the log was read

  friend bool operator==(const RecordedCollective&, const RecordedCollective&) = default;
};

/// The operations of one communicator. Each counts its own.
struct RecordedGroup {
  std::string name = "world";  ///< "world", "node 0", "between" (the nodes): at most 24 bytes
  int first = 0;               ///< the lowest rank of the world that calls them
  int ranks = 0;               ///< that call them: from `first` on, in a row
  std::vector<RecordedCollective> entries;

  friend bool operator==(const RecordedGroup&, const RecordedGroup&) = default;
};

/// What one rank left.
struct FlightRecorderDump {
  int rank = 0;  ///< of the world
  int world_size = 0;
  std::uint32_t attempt = 0;
  std::string reason;  ///< why it was written; empty: it was found
  std::vector<RecordedGroup> groups;
};

/// The memory of one rank: plain bytes without pointers, so that it may be shared between processes of one
/// build (the agent and the `train` beside it). All zero: nobody has written there. One writer.
struct FlightRecorderMemory {
  static constexpr std::uint64_t kMagic = 0x314c4c4f43504444;  ///< "DDPCOLL1"
  static constexpr std::size_t kCapacity = 1'000;              ///< operations of a group, the last ones
  static constexpr std::size_t kGroups = 4;
  static constexpr std::size_t kStride = 256 << 10;  ///< from one rank's to the next in a file: whole pages

  struct Entry {
    std::uint64_t sequence;  ///< written last; sequence s lies at (s - 1) % kCapacity
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
    std::uint64_t last;  ///< sequence; 0: none yet. Entries beyond it are of an attempt before
    std::array<Entry, kCapacity> ring;
  };

  std::uint64_t magic;  ///< written last
  std::uint32_t attempt;
  std::int32_t rank;
  std::int32_t world_size;
  std::uint32_t groups;  ///< that are in use
  std::array<Group, kGroups> group;
};

/// Forgets what was there.
void begin_collectives(FlightRecorderMemory& memory, int rank, int world_size, std::uint32_t attempt);

/// Writes the operations of one group. Allocates nothing. `group` outlives it. One thread.
class FlightRecorder {
 public:
  explicit FlightRecorder(FlightRecorderMemory::Group& group) : group_(group) {}

  /// The sequence number of the operation that begins now.
  std::uint64_t start(std::string_view kind, std::uint64_t bytes, std::string_view type, std::int64_t now);
  /// One that the ring has forgotten is no mistake.
  void finish(std::uint64_t sequence, std::int64_t now);

 private:
  FlightRecorderMemory::Group& group_;
};

/// A group more, of the ranks [first, first + ranks); null: there is room for no other.
FlightRecorderMemory::Group* add_collective_group(FlightRecorderMemory& memory, std::string_view name,
                                                  int first, int ranks);

/// What lies in `memory`, which any process may have written: what cannot be is left out. Of each group the
/// operations from the first that is not finished, and `before` ones more; `most` at most, the first ones.
/// Nothing: nobody has begun there.
std::optional<FlightRecorderDump> read_collectives(const FlightRecorderMemory& memory,
                                                   std::size_t before = FlightRecorderMemory::kCapacity,
                                                   std::size_t most = FlightRecorderMemory::kCapacity);

/// JSON lines: a head {"schema":"ddp-flight-recorder/2","rank":…}, then one object per operation, group by
/// group. Schema 1 had one group, the world, without a name.
std::string dump_text(const FlightRecorderDump& dump);
/// Nothing where the text is no such file. A last line that is cut off (a full disk) is left out.
std::optional<FlightRecorderDump> parse_dump(std::string_view text);

}  // namespace ddp::rendezvous
