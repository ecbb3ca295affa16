#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/schedule/collective_machine.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// A connected rank whose hello was checked.
struct TcpPeer {
  UniqueFd fd;
  std::string address;
  int name = 0;  ///< its rank in the job's world
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
  /// `rank` and `world_size` are those of the ranks that work together; `name` is this rank in the job's
  /// world. `interrupt`: a descriptor that ends any wait when it is readable, or -1; not owned.
  TcpCommunicator(int rank, int world_size, int name, std::map<int, TcpPeer> peers,
                  std::chrono::milliseconds step_timeout, int interrupt);

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  Result<> all_reduce_sum(NumberSpan values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<> barrier() override;
  Result<> reduce_scatter_sum(NumberSpan values) override;
  Result<> all_gather_parts(std::span<std::byte> parts) override;
  Result<> gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) override;
  Result<Handle> start_all_reduce(NumberSpan values) override;
  Result<> wait(Handle handle) override;
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
  Result<> drive(Handle until);
  Result<bool> move_some();
  Result<bool> send_some();
  Result<bool> receive_some();
  Result<bool> wait_for_peers();
  bool has_shown_activity(int peer, int& unread) const;
  void start_next();
  Error lost(int peer, std::string_view reason, ErrorCode code = ErrorCode::kLinkLost);
  Error fail(Error error);

  int rank_;
  int world_size_;
  std::map<int, TcpPeer> peers_;
  std::chrono::milliseconds step_timeout_;
  int interrupt_;
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

}  // namespace ddp::train
