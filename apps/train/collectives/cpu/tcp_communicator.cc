#include "apps/train/collectives/cpu/tcp_communicator.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <vector>

#include "apps/train/collectives/cpu/peer_connect.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "base/text.h"

namespace ddp::train {
namespace {

/// Above this size, the ring's single neighbor outweighs the fewer rounds (docs/developers/performance.md).
constexpr std::size_t kRingAbove = 4u << 20;
/// A broadcast above this size goes around the ring in pieces of this size.
constexpr std::size_t kBroadcastPiece = 256u << 10;
/// Tries before the first sleep: over loopback, an answer often comes sooner than a sleep and a wakeup.
constexpr int kTries = 20;
constexpr unsigned kMovesPerSample = 16;

std::map<int, CollectiveMachine::Name> names_of(const std::map<int, TcpPeer>& peers) {
  std::map<int, CollectiveMachine::Name> result;
  for (const auto& [rank, peer] : peers)
    result[rank] = {peer.name, peer.address};
  return result;
}

template <class Byte>
msghdr message_of(const CollectiveMachine::Pieces<Byte>& pieces, std::array<iovec, 3>& parts) {
  for (std::size_t i = 0; i < pieces.count; ++i) {
    // iovec has no const; sendmsg only reads.
    parts[i] = {const_cast<std::byte*>(pieces.pieces[i].data()), pieces.pieces[i].size()};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = pieces.count;
  return message;
}

bool readable(int fd) {
  pollfd slot{fd, POLLIN, 0};
  return ::poll(&slot, 1, 0) > 0;
}

void append(Schedule& to, const Schedule& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

TcpCommunicator::TcpCommunicator(int rank, int world_size, int name, std::map<int, TcpPeer> peers,
                                 std::chrono::milliseconds step_timeout, int interrupt)
    : rank_(rank),
      world_size_(world_size),
      peers_(std::move(peers)),
      step_timeout_(step_timeout),
      interrupt_(interrupt),
      ring_above_(kRingAbove),
      machine_(name, names_of(peers_)) {}

Error TcpCommunicator::fail(Error error) {
  failed_ = error;
  const CollectiveMachine::Header word = machine_.last_message();
  for (auto& [rank, peer] : peers_) {
    // A peer may be gone, and full buffers are not waited for. The peer may then name another rank as lost.
    if (machine_.may_notify(rank))
      ::send(peer.fd.get(), word.data(), word.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    // No close yet: it would discard data that the peer has not read. The end of the stream informs the peer.
    ::shutdown(peer.fd.get(), SHUT_WR);
  }
  return error;
}

void TcpCommunicator::abandon(int lost_rank) {
  if (!failed_) fail(machine_.lost_elsewhere(lost_rank));
}

Error TcpCommunicator::lost(int peer, std::string_view reason, ErrorCode code) {
  std::vector<std::byte> left(64 * 1024);
  const ssize_t got = ::recv(peers_.at(peer).fd.get(), left.data(), left.size(), MSG_DONTWAIT);
  if (got > 0) machine_.read_last_message(peer, std::span(left).first(static_cast<std::size_t>(got)));
  return fail(machine_.lost(peer, reason, code));
}

Result<bool> TcpCommunicator::send_some() {
  const auto pieces = machine_.to_send();
  if (pieces.count == 0) return false;
  std::array<iovec, 3> parts;
  const msghdr message = message_of(pieces, parts);
  const ssize_t sent = ::sendmsg(peers_.at(pieces.peer).fd.get(), &message, MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return lost(pieces.peer, connection_error(errno).text);
  }
  machine_.sent(static_cast<std::size_t>(sent));
  return true;
}

Result<bool> TcpCommunicator::receive_some() {
  const auto pieces = machine_.to_receive();
  if (pieces.count == 0) return false;
  std::array<iovec, 3> parts;
  msghdr message = message_of(pieces, parts);
  const ssize_t got = ::recvmsg(peers_.at(pieces.peer).fd.get(), &message, 0);
  if (got == 0) return lost(pieces.peer, connection_closed().text);
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return lost(pieces.peer, connection_error(errno).text);
  }
  if (auto taken = machine_.received(static_cast<std::size_t>(got)); !taken) return fail(taken.error());
  return true;
}

void TcpCommunicator::start_next() {
  while (machine_.done() && finished_ != started_) {
    // The machine's order, if any, is complete.
    if (busy_) ++finished_;
    busy_ = false;
    if (waiting_.empty()) return;
    machine_.start(std::move(waiting_.front()));
    waiting_.pop_front();
    busy_ = true;
  }
}

/// Returns true if bytes moved.
Result<bool> TcpCommunicator::move_some() {
  start_next();
  if (machine_.done()) return false;
  const auto sent = DDP_TRY(send_some());
  const auto received = DDP_TRY(receive_some());
  start_next();
  return sent || received;
}

void TcpCommunicator::show_activity() {
  const auto now = std::chrono::steady_clock::now();
  if (failed_ || now - shown_ < step_timeout_ / 4) return;
  shown_ = now;
  const CollectiveMachine::Header sign = CollectiveMachine::heartbeat();
  for (auto& [rank, peer] : peers_) {
    int unsent = 0;
    // With an empty queue, the heartbeat goes out whole. A peer that has not taken all sent bytes is not
    // waiting for this rank.
    if (machine_.between_messages(rank) && ::ioctl(peer.fd.get(), SIOCOUTQ, &unsent) == 0 && unsent == 0)
      ::send(peer.fd.get(), sign.data(), sign.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

/// Returns true if more bytes of that peer are unread here than `unread`, which becomes the new number. A
/// peer that only receives shows its activity this way.
bool TcpCommunicator::has_shown_activity(int peer, int& unread) const {
  int now = 0;
  if (::ioctl(peers_.at(peer).fd.get(), FIONREAD, &now) != 0) return false;
  const int before = std::exchange(unread, now);
  return now > before;
}

/// Returns true when progress may be possible; false after step_timeout without any event.
Result<bool> TcpCommunicator::wait_for_peers() {
  const auto sending = machine_.to_send();
  const auto receiving = machine_.to_receive();
  const auto slice = std::max<std::chrono::milliseconds>(step_timeout_ / 4, std::chrono::milliseconds(1));
  Deadline deadline = std::chrono::steady_clock::now() + step_timeout_;
  int unread = 0;
  if (sending.count != 0) has_shown_activity(sending.peer, unread);
  while (true) {
    pollfd slots[] = {{interrupt_, POLLIN, 0},
                      {sending.count ? peers_.at(sending.peer).fd.get() : -1, POLLOUT | POLLRDHUP, 0},
                      {receiving.count ? peers_.at(receiving.peer).fd.get() : -1, POLLIN, 0}};
    const Deadline next_check = std::min(deadline, std::chrono::steady_clock::now() + slice);
    const int ready = ::poll(slots, std::size(slots), milliseconds_left(next_check));
    if (ready < 0 && errno != EINTR) return fail(system_error(errno, "poll"));
    if (ready == 0) {
      if (while_waiting_) while_waiting_();
      show_activity();
      // Skipped if a peer is to send: its heartbeats would be read here, and wake this wait.
      if (receiving.count == 0 && has_shown_activity(sending.peer, unread))
        deadline = std::chrono::steady_clock::now() + step_timeout_;
    }
    if (ready == 0 && milliseconds_left(deadline) == 0) return false;
    if (ready <= 0) continue;
    if (slots[0].revents != 0) return fail(machine_.revoked());
    // A peer that has failed takes no more data. If it also is to send, the end of its stream is read; a lost
    // connection is reported by the next call.
    const bool has_failed = (slots[1].revents & (POLLRDHUP | POLLERR | POLLHUP)) == POLLRDHUP;
    if (has_failed && (receiving.count == 0 || receiving.peer != sending.peer))
      return lost(sending.peer, connection_closed().text);
    return true;
  }
}

Result<> TcpCommunicator::drive(Handle until) {
  int idle = 0;
  while (finished_ < until) {
    if (failed_) return *failed_;
    const auto moved = DDP_TRY(move_some());
    idle = moved ? 0 : idle + 1;
    // A stream that never stops must not hide a revocation.
    if (moved && ++moves_ % kMovesPerSample == 0 && interrupt_ >= 0 && readable(interrupt_))
      return fail(machine_.revoked());
    if (idle < kTries || finished_ >= until) continue;
    const auto sending = machine_.to_send();
    const auto receiving = machine_.to_receive();
    const auto ready = DDP_TRY(wait_for_peers());
    if (ready) continue;
    // The rank that blocks this one is the peer that does not send, else the peer that does not take.
    const std::string text = format_text("%s for %g s", receiving.count ? "no data" : "it receives no data",
                                         std::chrono::duration<double>(step_timeout_).count());
    return lost(receiving.count ? receiving.peer : sending.peer, text, ErrorCode::kTimeout);
  }
  if (failed_) return *failed_;
  return {};
}

Result<Communicator::Handle> TcpCommunicator::enqueue(CollectiveOrder order) {
  if (failed_) return *failed_;
  waiting_.push_back(std::move(order));
  ++started_;
  return started_;
}

Result<> TcpCommunicator::run(CollectiveOrder order) {
  const auto handle = DDP_TRY(enqueue(std::move(order)));
  return drive(handle);
}

Result<> TcpCommunicator::wait(Handle handle) {
  return drive(handle);
}

Result<> TcpCommunicator::progress() {
  if (failed_) return *failed_;
  while (finished_ != started_) {
    const auto moved = DDP_TRY(move_some());
    if (!moved) break;
  }
  return {};
}

CollectiveOrder TcpCommunicator::sum_order(NumberSpan values, CollectiveKind kind) const {
  const VectorSum sum = vector_sum(values);
  CollectiveOrder order{kind, values.bytes, sum.element, world_size_, {}, sum.add};
  const bool ring = order.data.size() > ring_above_;
  order.schedule =
      ring ? ring_reduce_scatter(rank_, world_size_) : halving_reduce_scatter(rank_, world_size_);
  if (kind == CollectiveKind::kAllReduce)
    append(order.schedule,
           ring ? ring_all_gather(rank_, world_size_) : doubling_all_gather(rank_, world_size_));
  return order;
}

Result<> TcpCommunicator::all_reduce_sum(NumberSpan values) {
  return run(sum_order(values, CollectiveKind::kAllReduce));
}

Result<> TcpCommunicator::reduce_scatter_sum(NumberSpan values) {
  return run(sum_order(values, CollectiveKind::kReduceScatter));
}

Result<Communicator::Handle> TcpCommunicator::start_all_reduce(NumberSpan values) {
  const Handle handle = DDP_TRY(enqueue(sum_order(values, CollectiveKind::kAllReduce)));
  DDP_TRY(progress());
  return handle;
}

Result<> TcpCommunicator::broadcast(std::span<std::byte> data, int root) {
  const int parts = static_cast<int>((data.size() + kBroadcastPiece - 1) / kBroadcastPiece);
  if (parts <= 1)
    return run({CollectiveKind::kBroadcast, data, 1, 1, tree_broadcast(rank_, world_size_, root)});
  return run({CollectiveKind::kBroadcast, data, 1, parts, chain_broadcast(rank_, world_size_, root, parts)});
}

Result<> TcpCommunicator::all_gather_parts(std::span<std::byte> parts) {
  return run({CollectiveKind::kAllGather, parts, 1, world_size_,
              parts.size() > ring_above_ ? ring_all_gather(rank_, world_size_)
                                         : doubling_all_gather(rank_, world_size_)});
}

Result<> TcpCommunicator::gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) {
  const Schedule schedule = tree_gather(rank_, world_size_, root);
  return gather_pieces(mine, all, root, [&](std::span<std::byte> parts) {
    return run({CollectiveKind::kGather, parts, 1, world_size_, schedule});
  });
}

Result<> TcpCommunicator::barrier() {
  // A barrier is an all-gather of nothing: no rank has all parts before all have sent theirs.
  return run({CollectiveKind::kBarrier, {}, 1, world_size_, doubling_all_gather(rank_, world_size_)});
}

}  // namespace ddp::train
