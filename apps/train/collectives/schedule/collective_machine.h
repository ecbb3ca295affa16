#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "base/result.h"

namespace ddp::train {

/// Collective algorithms as data, without IO. Each rank has a list of steps. A step is a message to one rank
/// and one from another at the same time, over numbered parts of the buffer. Each part is summed along one
/// path that ends at one rank, and is then distributed: all ranks end with the same bits.
///
/// Two families work for any world size. In a ring, each rank exchanges with its neighbors only, in world-1
/// steps. Halving and doubling along halving_distances() takes about log2(world) steps with the same volume.
/// It is recursive halving generalized to any number of ranks: J. L. Träff, "Optimal, non-pipelined
/// reduce-scatter and allreduce algorithms", arXiv:2410.14234.

/// Parts first, first + 1, … modulo the number of parts.
struct PartRange {
  int first = 0;
  int count = 0;

  friend bool operator==(const PartRange&, const PartRange&) = default;
};

struct CollectiveStep {
  static constexpr int kNobody = -1;

  int send_to = kNobody;
  PartRange sent;
  int receive_from = kNobody;
  PartRange received;
  bool add = false;  ///< received values are added to this rank's parts instead of replacing them

  friend bool operator==(const CollectiveStep&, const CollectiveStep&) = default;
};
using Schedule = std::vector<CollectiveStep>;

/// Returns rising distances below `world`: 1 is the first, and each is half (rounded up) of the next. Empty
/// for a world of one.
std::vector<int> halving_distances(int world);

/// Rank r ends with the sum of part r. There are `world` parts.
Schedule ring_reduce_scatter(int rank, int world);
Schedule halving_reduce_scatter(int rank, int world);
/// Part r begins at rank r; all ranks end with all parts.
Schedule ring_all_gather(int rank, int world);
Schedule doubling_all_gather(int rank, int world);
/// Part r begins at rank r; `root` ends with all parts, the others with those that they pass on. Ranks that
/// are connected with the root send straight to it.
Schedule tree_gather(int rank, int world, int root);
/// Sends one part (number 0) from `root` to all ranks, in about log2(world) steps.
Schedule tree_broadcast(int rank, int world, int root);
/// Sends `parts` parts around the ring, one behind the other.
Schedule chain_broadcast(int rank, int world, int root, int parts);

/// Returns the ranks that these schedules exchange with: both directions along each of halving_distances().
std::vector<int> peers_of(int rank, int world);

struct PartBounds {
  std::size_t begin = 0;
  std::size_t size = 0;
};
/// Divides `count` elements into `parts` parts. Sizes differ by at most one; larger parts come first; parts
/// may be empty.
PartBounds part_bounds(std::size_t count, int parts, int number);

/// Adds to[i] += from[i] over `bytes` bytes of one scalar type. Optimized in every build type.
using AddFunction = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);
/// Sets to[i] = left[i] + right[i].
using SumFunction = void (*)(std::byte* to, const std::byte* left, const std::byte* right, std::size_t bytes);

/// The arithmetic of a scalar type for code that handles bytes. All pointers must be aligned for the type.
struct VectorSum {
  std::size_t element = 0;
  AddFunction add = nullptr;
  SumFunction sum = nullptr;
};

/// T: float or double.
template <class T>
VectorSum vector_sum();

/// Identifies an operation on the wire and in messages.
enum class CollectiveKind : std::uint32_t {
  kAllReduce = 1,
  kBroadcast = 2,
  kAllGather = 3,
  kBarrier = 4,
  kReduceScatter = 5,
  kGather = 6,
  kAllToAll = 7,  ///< this and the next one: only on GPU memory
  kSendReceive = 8,
  kAlive = 254,  ///< no operation: the sender waits for another rank; may precede any message
  kLost = 255    ///< no operation: the sender lost the rank in the header's size field
};
std::string_view kind_text(CollectiveKind kind);

struct CollectiveOrder {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::span<std::byte> data;  ///< owned by the caller; valid until the order is done
  std::size_t element = 1;    ///< bytes that are never split
  int parts = 1;
  Schedule schedule;
  AddFunction add = nullptr;
};

/// Carries out one rank's orders without IO. It says which bytes to send to which peer, and where to put the
/// bytes of which peer. Each message is a header of 16 bytes (order number u32, kind u32, payload bytes u64,
/// little-endian) and the payload. The header lets ranks that are out of step report it, instead of adding
/// values that do not belong together.
///
/// Duties of the driver: 1. After the hello, it sends and receives nothing else on a connection. 2. It calls
/// sent() and received() with at most the bytes that to_send() and to_receive() offered. 3. When a connection
/// ends or a deadline passes, it calls read_last_message() with the rest that it can read from that peer,
/// then lost(). 4. After any error, it sends last_message() to each peer that may_notify() allows, closes,
/// and starts no order again.
class CollectiveMachine {
 public:
  static constexpr std::size_t kHeaderSize = 16;
  using Header = std::array<std::byte, kHeaderSize>;
  /// Bytes for one peer, in order; a part range that wraps around has two pieces.
  template <class Byte>
  struct Pieces {
    int peer = CollectiveStep::kNobody;
    std::array<std::span<Byte>, 3> pieces;
    std::size_t count = 0;
  };

  /// Name of a rank in error texts and last messages: its number in the job's world. It differs from the
  /// number in the schedules if only some ranks of the world work together.
  struct Name {
    int rank = 0;
    std::string address;
  };
  /// `rank`: this rank's name in messages. `peers`: by their number in the schedules.
  CollectiveMachine(int rank, std::map<int, Name> peers);

  /// Requires done().
  void start(CollectiveOrder order);
  bool done() const { return at_ == order_.schedule.size(); }

  /// Returns no bytes, for kNobody, if this step has nothing more to send.
  Pieces<const std::byte> to_send();
  void sent(std::size_t bytes);
  Pieces<std::byte> to_receive();
  /// Fails with kProtocol if the peer is at another operation, and with kLinkLost if it reports a lost rank.
  Result<> received(std::size_t bytes);

  /// Searches the rest of a peer's stream for its report of a lost rank.
  void read_last_message(int peer, std::span<const std::byte> left);
  /// Returns the failure as text: "rank 2 lost rank 1 (10.0.0.7:4000): connection closed during all-reduce".
  Error lost(int peer, std::string_view reason, ErrorCode code = ErrorCode::kLinkLost);
  Error revoked() const;
  /// Returns the failure if a rank was lost elsewhere than on these connections.
  Error lost_elsewhere(int rank);
  /// Returns the lost rank's number in the job's world; -1: none.
  int lost_rank() const { return lost_; }

  /// Returns false in the middle of a message to that peer.
  bool between_messages(int peer) const;
  /// Returns a message that shows a waiting peer that this rank is alive. Send it between messages only, and
  /// whole.
  static Header heartbeat();
  /// Returns false in the middle of a message to that peer, and if no rank is lost.
  bool may_notify(int peer) const { return lost_ >= 0 && between_messages(peer); }
  Header last_message() const;

 private:
  /// One direction of the current step.
  struct Direction {
    Header header{};
    std::array<std::span<std::byte>, 2> payload;
    std::size_t done = 0;
    std::size_t total = 0;  ///< 0: no peer
    bool complete() const { return done == total; }
    std::size_t paid() const { return done > kHeaderSize ? done - kHeaderSize : 0; }
  };

  const CollectiveStep& step() const { return order_.schedule[at_]; }
  Direction half_of(const PartRange& range) const;
  void enter_step();
  void advance();
  void add_scratch();
  Result<> skip_heartbeat();
  int name_of(int peer) const;

  int rank_;
  std::map<int, Name> peers_;
  CollectiveOrder order_;
  std::uint32_t number_ = 0;
  std::size_t at_ = 0;
  Direction out_;
  Direction in_;
  Header heard_{};  ///< the peer's header, compared with in_.header
  AlignedBuffer<std::byte> scratch_;
  std::size_t scratch_size_ = 0;  ///< bytes of the chunk that is being received and then added
  std::size_t scratch_done_ = 0;
  int lost_ = -1;      ///< the rank that a peer reported, or the first one that this rank named
  int reporter_ = -1;  ///< the reporting rank; -1: this rank saw the loss
};

}  // namespace ddp::train
