#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "apps/train/collectives/schedule/collective_schedule.h"
#include "apps/train/collectives/schedule/vector_sum.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "base/result.h"

namespace ddp::train {

/// What an operation is called on the wire and in messages.
enum class CollectiveKind : std::uint32_t {
  kAllReduce = 1,
  kBroadcast = 2,
  kAllGather = 3,
  kBarrier = 4,
  kReduceScatter = 5,
  kAlive = 254,  ///< no operation: the sender waits for another rank; may come before any message
  kLost = 255    ///< no operation: the sender has lost the rank that stands in the header's size
};
std::string_view kind_text(CollectiveKind kind);

struct CollectiveOrder {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::span<std::byte> data;  ///< stays the caller's until the order is done
  std::size_t element = 1;    ///< bytes that are never parted
  int parts = 1;
  Schedule schedule;
  AddFunction add = nullptr;
};

/// Carries one rank's orders out without IO: says which bytes are to be sent to whom and where bytes from
/// whom are to be put. Each message is a header of 16 bytes (number of the order u32, kind u32, payload bytes
/// u64, little-endian) and the payload, so that ranks which got out of step say so instead of adding what
/// does not belong together.
///
/// Duties of the driver: 1. it never sends or receives anything else on a connection after the hello; 2. it
/// calls sent() and received() with what to_send() and to_receive() offered at most; 3. when a connection
/// ends or a deadline passes it calls lost(), before that read_last_message() with what can still be read
/// from that peer; 4. after any error it sends last_message() to each peer that may_notify() allows, closes,
/// and starts no order again.
class CollectiveMachine {
 public:
  static constexpr std::size_t kHeaderSize = 16;
  using Header = std::array<std::byte, kHeaderSize>;
  /// Bytes for one peer, in order; a part range that wraps round has two pieces.
  template <class Byte>
  struct Pieces {
    int peer = CollectiveStep::kNobody;
    std::array<std::span<Byte>, 3> pieces;
    std::size_t count = 0;
  };

  /// How a rank is called in messages and in last words: by its number in the whole job's world, which is
  /// another than in the schedules where only some ranks of it work together.
  struct Name {
    int rank = 0;
    std::string address;
  };
  /// `rank`: the own one in messages; `peers` by their number in the schedules.
  CollectiveMachine(int rank, std::map<int, Name> peers);

  /// Only when done().
  void start(CollectiveOrder order);
  bool done() const { return at_ == order_.schedule.size(); }
  CollectiveKind kind() const { return order_.kind; }

  /// Nobody's when this step has nothing more to send.
  Pieces<const std::byte> to_send();
  void sent(std::size_t bytes);
  Pieces<std::byte> to_receive();
  /// kProtocol when the peer is at another operation, kLinkLost when it tells that it has lost a rank.
  Result<> received(std::size_t bytes);

  /// Looks for the word of which rank was lost in what is left of a peer's stream.
  void read_last_message(int peer, std::span<const std::byte> left);
  /// The failure in words: "rank 2 lost rank 1 (10.0.0.7:4000): connection closed during all-reduce".
  Error lost(int peer, std::string_view reason, ErrorCode code = ErrorCode::kLinkLost);
  Error revoked() const;
  /// The failure when a rank was lost elsewhere than on these connections.
  Error lost_elsewhere(int rank);
  /// The rank that was lost, by its number in the job's world; -1: none.
  int lost_rank() const { return lost_; }

  /// False in the middle of a message to that peer.
  bool between_messages(int peer) const;
  /// What shows a peer that this rank, for which it may be waiting, is alive. Only between messages, whole.
  static Header heartbeat();
  /// False in the middle of a message to that peer, and when no rank is lost.
  bool may_notify(int peer) const { return lost_ >= 0 && between_messages(peer); }
  Header last_message() const;

 private:
  /// One direction of the current step.
  struct Direction {
    Header header{};
    std::array<std::span<std::byte>, 2> payload;
    std::size_t done = 0;
    std::size_t total = 0;  ///< 0: nobody
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
  Header heard_{};  ///< the peer's header, to be compared with in_.header
  AlignedBuffer<std::byte> scratch_;
  std::size_t scratch_size_ = 0;  ///< of the chunk that is being received to be added
  std::size_t scratch_done_ = 0;
  int lost_ = -1;      ///< the rank that a peer told of, or the one that this rank named first
  int reporter_ = -1;  ///< who told; -1: this rank saw it
};

}  // namespace ddp::train
