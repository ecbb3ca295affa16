#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "apps/train/aligned_buffer.h"
#include "apps/train/communicator.h"
#include "apps/train/ring_schedule.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// A connected neighbour that has proved who it is.
struct RingPeer {
  UniqueFd fd;
  int rank = 0;
  std::string address;
};

/// A ring of TCP connections: sends to the next rank, receives from the previous one, both at once, along
/// ring_schedule. Each message is a header of 16 bytes (operation's number u32, kind u32, payload bytes u64,
/// little-endian) and the payload, so that ranks that got out of step say so instead of adding what does not
/// belong together.
///
/// A step that moves no byte for `step_timeout` fails. A neighbour's end is seen at once in both directions:
/// against the stream a rank sends nothing but one goodbye byte when it ends in order.
class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(int rank, int world_size, RingPeer next, RingPeer previous,
                  std::chrono::milliseconds step_timeout, int interrupt);
  /// Says goodbye unless an operation has failed.
  ~TcpCommunicator() override;
  TcpCommunicator(const TcpCommunicator&) = delete;
  TcpCommunicator& operator=(const TcpCommunicator&) = delete;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  Result<> all_reduce_sum(std::span<float> values) override;
  Result<> all_reduce_sum(std::span<double> values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override;
  Result<> barrier() override;

 private:
  enum class Kind : std::uint32_t {
    kAllReduce = 1,
    kBroadcast = 2,
    kAllGather = 3,
    kBarrier = 4,
    kLost = 255
  };
  struct Outgoing;
  struct Incoming;

  static std::string_view kind_text(Kind kind);
  template <class T>
  Result<> reduce(std::span<T> values);
  Result<std::vector<std::uint64_t>> gather(std::span<const std::uint64_t> mine, Kind kind);
  /// One step of the schedule: `out` to the next rank while `in` comes from the previous; null for neither.
  Result<> exchange(Kind kind, const std::span<const std::byte>* out, const std::span<std::byte>* in);
  Result<> pump(Kind kind, Outgoing& out, Incoming& in);
  Result<bool> send_some(Kind kind, Outgoing& out);
  Result<bool> receive_some(Kind kind, Incoming& in);
  Result<bool> wait(Kind kind, const Outgoing& out, const Incoming& in);
  Result<> hear_next(Kind kind);
  void read_last_word();
  Error lost(const RingPeer& peer, Kind kind, std::string_view reason, ErrorCode code = ErrorCode::kLinkLost);
  Error fail(Error error);
  void tell_neighbours(int lost_rank);
  std::span<std::byte> scratch(std::size_t size);

  int rank_;
  int world_size_;
  RingPeer next_;
  RingPeer previous_;
  std::chrono::milliseconds step_timeout_;
  int interrupt_;
  std::uint32_t operation_ = 0;
  bool mid_message_ = false;  ///< towards the next rank: no header can follow
  bool next_said_goodbye_ = false;
  int reported_lost_ = -1;  ///< the rank that a neighbour has lost
  int reporter_ = -1;
  std::optional<Error> failed_;
  AlignedBuffer<std::byte> scratch_;
};

}  // namespace ddp::train
