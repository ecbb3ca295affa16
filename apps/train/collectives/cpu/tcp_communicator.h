#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/schedule/collective_machine.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Non-blocking socket calls with deadlines. Descriptors are close-on-exec from the start; connected sockets
/// have Nagle's algorithm off. Addresses are numeric: "10.0.0.7:4123" or "[fe80::1]:4123". Waits also watch
/// `interrupt` (a descriptor, or -1). They end with kCancelled when it is readable, and with kTimeout after
/// the deadline.
using Deadline = std::chrono::steady_clock::time_point;

Result<UniqueFd> connect_to(const std::string& address, Deadline deadline, int interrupt);
/// Waits until one of `fds` has something to read or has ended, and returns its index. Ignores descriptors of
/// -1.
Result<std::size_t> wait_readable(std::span<const int> fds, Deadline deadline, int interrupt);
/// An error is a bare reason ("connection reset") that the caller completes.
Result<> write_all(int fd, std::span<const std::byte> data, Deadline deadline, int interrupt);

/// Returns a failed call on a connection as a reason: "connection reset", or the system's text.
Error connection_error(int err);
Error connection_closed();

/// Returns the time left for poll(2): rounded up, 0 after the deadline.
int milliseconds_left(Deadline deadline);

/// The first message on a connection between two ranks, in both directions. It names the sending rank, its
/// job and its attempt. A rank that receives anything else closes the connection. The hello keeps out stray
/// connections and ranks of another attempt; it is not an authentication. It travels as it lies in memory.
struct PeerHello {
  static constexpr std::uint64_t kMagic = 0x6e69'6172'7470'6464;  // "ddptrain"
  static constexpr std::uint32_t kVersion = 4;

  std::uint64_t magic = kMagic;
  std::uint64_t job = 0;  ///< hash of the job's id and the group
  std::uint32_t version = kVersion;
  std::uint32_t attempt = 0;
  std::uint32_t world_size = 0;
  std::uint32_t rank = 0;
  std::uint32_t scalar_bytes = 0;  ///< 4 or 8: ranks with different --dtype must not meet
  std::uint32_t reserved = 0;

  bool is_of_this_version() const { return magic == kMagic && version == kVersion; }
  friend bool operator==(const PeerHello&, const PeerHello&) = default;
};

/// A stray connection that sends nothing may block a listener this long.
inline constexpr std::chrono::seconds kHelloTimeout{2};

/// Returns the hello of a rank of the group.
PeerHello hello_of(const GroupConfig& config, int rank);

/// A connected rank whose hello was checked.
struct TcpPeer {
  UniqueFd fd;
  std::string address;
};

/// TCP connections to the ranks that the schedules exchange with (peers_of()), driven by a CollectiveMachine.
/// Small sums use halving and doubling, large ones the ring.
///
/// A step that moves no byte for `step_timeout` fails. A waiting rank shows its peers that it is alive, so
/// that only ranks that wait for a silent rank itself give it up. A rank notices at once when a peer ends
/// that it waits for. A rank that fails reports the lost rank to its peers and closes. So all others end as
/// well, and name that rank.
class TcpCommunicator final : public Communicator {
 public:
  /// `peers`: by their rank in the group.
  TcpCommunicator(const GroupConfig& config, std::map<int, TcpPeer> peers);

  int rank() const override { return config_.rank; }
  int world_size() const override { return config_.world_size; }
  Result<> all_reduce_sum(NumberSpan values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<> barrier() override;
  Result<> reduce_scatter_sum(NumberSpan values) override;
  Result<> all_gather_parts(std::span<std::byte> parts) override;
  Result<> gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) override;
  Result<Handle> start_all_reduce(NumberSpan values) override;
  Result<> wait(Handle until) override;
  Result<> progress() override;

  /// Shows the peers, at most every quarter of step_timeout, that this rank is alive but waits elsewhere.
  void show_activity();
  /// `call` runs while this rank waits for a peer, about every quarter of step_timeout.
  void while_waiting(std::function<void()> call) { while_waiting_ = std::move(call); }

  /// Reports to the peers that a rank of the job's world was lost elsewhere. Every later call fails.
  void abandon(int lost_rank);
  /// Returns the lost rank of the job's world; -1: none.
  int lost_rank() const override { return machine_.lost_rank(); }

  /// Sums of at most `bytes` bytes use halving and doubling. For tests and measurements.
  void set_ring_above(std::size_t bytes) { ring_above_ = bytes; }

 private:
  CollectiveOrder sum_order(NumberSpan values, CollectiveKind kind) const;
  Result<Handle> enqueue(CollectiveOrder order);
  Result<> run(CollectiveOrder order);
  Result<bool> move_some();
  Result<bool> send_some();
  Result<bool> receive_some();
  Result<bool> wait_for_peers();
  bool has_shown_activity(int peer, int& unread) const;
  void start_next();
  Error lost(int peer, std::string_view reason, ErrorCode code = ErrorCode::kLinkLost);
  Error fail(Error error);

  GroupConfig config_;
  std::map<int, TcpPeer> peers_;
  std::size_t ring_above_;
  CollectiveMachine machine_;
  std::deque<CollectiveOrder> waiting_;  ///< the orders after the one that the machine carries out
  bool busy_ = false;                    ///< the machine's order is not yet counted as finished
  Handle started_ = 0;
  Handle finished_ = 0;
  unsigned moves_ = 0;
  std::chrono::steady_clock::time_point shown_{};  ///< when show_activity() last acted
  std::function<void()> while_waiting_;
  std::optional<Error> failed_;
};

/// Listens on this machine's address, publishes it and makes one connection to each rank of peers_of(). The
/// rank whose distance along the ring is shorter connects. Both ends prove job, attempt and rank by a hello;
/// any other connection is closed without harm. Errors name the missing rank.
Result<std::unique_ptr<TcpCommunicator>> connect_peers(const GroupConfig& config, PeerDirectory& directory);

}  // namespace ddp::train
