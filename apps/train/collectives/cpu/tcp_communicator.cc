#include "apps/train/collectives/cpu/tcp_communicator.h"

#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <vector>

#include "apps/train/data/hash.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "base/text.h"

namespace ddp::train {
namespace {

struct FreeAddress {
  void operator()(addrinfo* info) const { ::freeaddrinfo(info); }
};
using AddressInfo = std::unique_ptr<addrinfo, FreeAddress>;

Result<AddressInfo> parse_address(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* info = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &info);
  if (failed) {
    return error_of(ErrorCode::kProtocol, "\"", host, ":", port,
                    "\" is not a numeric address: ", gai_strerror(failed));
  }
  return AddressInfo(info);
}

Result<AddressInfo> parse_address(const std::string& address) {
  const auto place = split_endpoint(address);
  if (!place || !place->port) return error_of(ErrorCode::kProtocol, "\"", address, "\" has no port");
  return parse_address(place->host, *place->port);
}

Result<UniqueFd> new_socket(const addrinfo& info) {
  UniqueFd fd(::socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return system_error(errno, "socket");
  return fd;
}

void set_no_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // speed only: a failure changes no result
}

/// Returns the number of the first ready slot. The last one is that of the interrupt.
Result<std::size_t> wait_for(std::span<pollfd> slots, Deadline deadline) {
  while (true) {
    const int ready = ::poll(slots.data(), slots.size(), milliseconds_left(deadline));
    if (ready < 0 && errno != EINTR) return system_error(errno, "poll");
    if (ready > 0 && slots.back().revents != 0) return revoked_error();
    for (std::size_t i = 0; ready > 0 && i + 1 < slots.size(); ++i) {
      if (slots[i].revents != 0) return i;
    }
    if (ready == 0 && milliseconds_left(deadline) == 0)
      return Error{ErrorCode::kTimeout, "no answer in time"};
  }
}

Result<> wait_for(int fd, short events, Deadline deadline, int interrupt) {
  pollfd slots[] = {{fd, events, 0}, {interrupt, POLLIN, 0}};
  DDP_TRY(wait_for(slots, deadline));
  return {};
}

}  // namespace

int milliseconds_left(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

Error connection_error(int err) {
  if (err == ECONNRESET || err == EPIPE) return Error{ErrorCode::kLinkLost, "connection reset", err};
  return Error{ErrorCode::kLinkLost, system_error(err, "connection").text, err};
}

Error connection_closed() {
  return Error{ErrorCode::kLinkLost, "connection closed"};
}

Result<UniqueFd> connect_to(const std::string& address, Deadline deadline, int interrupt) {
  const auto info = DDP_TRY(parse_address(address));
  auto fd = DDP_TRY(new_socket(*info));
  if (::connect(fd.get(), info->ai_addr, info->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return system_error(errno, "connect", ErrorCode::kUnreachable);
    DDP_TRY(wait_for(fd.get(), POLLOUT, deadline, interrupt));
    int err = 0;
    socklen_t size = sizeof err;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &err, &size);
    if (err != 0) return system_error(err, "connect", ErrorCode::kUnreachable);
  }
  set_no_delay(fd.get());
  return fd;
}

Result<std::size_t> wait_readable(std::span<const int> fds, Deadline deadline, int interrupt) {
  std::vector<pollfd> slots;
  for (const int fd : fds)
    slots.push_back({fd, POLLIN, 0});
  slots.push_back({interrupt, POLLIN, 0});
  return wait_for(slots, deadline);
}

Result<> write_all(int fd, std::span<const std::byte> data, Deadline deadline, int interrupt) {
  while (!data.empty()) {
    const ssize_t sent = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      data = data.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      DDP_TRY(wait_for(fd, POLLOUT, deadline, interrupt));
    } else if (errno != EINTR) {
      return connection_error(errno);
    }
  }
  return {};
}

PeerHello hello_of(const GroupConfig& config, int rank) {
  const std::string job = config.job_id + "/" + config.group;
  return {.job = fnv_hash(std::as_bytes(std::span(job))),
          .attempt = config.attempt,
          .world_size = static_cast<std::uint32_t>(config.world_size),
          .rank = static_cast<std::uint32_t>(rank),
          .scalar_bytes = config.scalar_bytes};
}

namespace {

struct ListeningSocket {
  UniqueFd fd;
  std::string address;  ///< with the port that the kernel chose
};

Result<ListeningSocket> listen_at(const std::string& host) {
  const auto info = DDP_TRY(parse_address(host, "0"));
  auto fd = DDP_TRY(new_socket(*info));
  if (::bind(fd.get(), info->ai_addr, info->ai_addrlen) != 0 || ::listen(fd.get(), 128) != 0) {
    return system_error(errno, "listen on " + host);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return system_error(errno, "getsockname");
  }
  const int port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                                     : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return ListeningSocket{std::move(fd), format_endpoint(host, port)};
}

/// Accepts one connection that is already waiting; empty if there is none.
Result<UniqueFd> accept_waiting(int listener) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) {
    set_no_delay(fd.get());
    return fd;
  }
  // A peer that gave up between its connect and this accept is not a failure of this rank.
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return UniqueFd();
  return system_error(errno, "accept");
}

/// Fails with kLinkLost "connection closed" at the end of the stream.
Result<> read_all(int fd, std::span<std::byte> data, Deadline deadline, int interrupt) {
  while (!data.empty()) {
    const ssize_t got = ::recv(fd, data.data(), data.size(), 0);
    if (got == 0) return connection_closed();
    if (got > 0) {
      data = data.subspan(static_cast<std::size_t>(got));
    } else if (errno == EAGAIN) {
      DDP_TRY(wait_for(fd, POLLIN, deadline, interrupt));
    } else if (errno != EINTR) {
      return connection_error(errno);
    }
  }
  return {};
}

std::string key_of(const GroupConfig& config, int rank) {
  return (config.group.empty() ? "address/" : config.group + "/address/") + std::to_string(rank);
}

struct ConnectingPeer {
  int rank = 0;
  TcpPeer peer;
  bool answered = false;
};

Result<ConnectingPeer> reach(const GroupConfig& config, int whom, PeerDirectory& directory,
                             Deadline deadline) {
  const std::string me = config.me();
  const std::string other = config.rank_text(whom);
  auto address = directory.find(key_of(config, whom), std::chrono::milliseconds(milliseconds_left(deadline)));
  if (!address && address.error().code == ErrorCode::kTimeout) {
    return error_of(ErrorCode::kTimeout, me, " cannot find ", other,
                    ": it has not published its address within ", format_duration(config.start_timeout),
                    "; check that it started");
  }
  DDP_TRY(within(me + " cannot look up " + other, address));
  const std::string there = other + " (" + *address + ")";
  auto fd = DDP_TRY(within(me + " cannot reach " + there, connect_to(*address, deadline, config.interrupt)));
  PeerHello mine = hello_of(config, config.rank);
  DDP_TRY(within(me + " cannot send its hello to " + there,
                 write_all(fd.get(), bytes_of(mine), deadline, config.interrupt)));
  return ConnectingPeer{whom, {std::move(fd), std::move(*address)}};
}

/// Reads the other end's hello. Fails with kProtocol if it is not a hello.
Result<PeerHello> read_hello(int fd, Deadline deadline, int interrupt) {
  PeerHello hello{.magic = 0};
  DDP_TRY(read_all(fd, bytes_of(hello), deadline, interrupt));
  if (!hello.is_of_this_version())
    return Error{ErrorCode::kProtocol, "the answer is not the hello of a rank of this version of train"};
  return hello;
}

/// Reads the hello of one waiting connection. If it is of a rank in `missing`, answers it and removes that
/// rank from `missing`. A stray connection is closed without harm.
Result<> admit(const GroupConfig& config, int listener, Deadline deadline, std::vector<int>& missing,
               std::map<int, TcpPeer>& peers) {
  auto fd = DDP_TRY(within(config.me(), accept_waiting(listener)));
  if (!fd) return {};
  const Deadline hello_deadline = std::min(deadline, std::chrono::steady_clock::now() + kHelloTimeout);
  const auto hello = read_hello(fd.get(), hello_deadline, config.interrupt);
  if (!hello && hello.error().code == ErrorCode::kCancelled) return hello.error();
  if (!hello) return {};
  const auto found = std::find(missing.begin(), missing.end(), static_cast<int>(hello->rank));
  if (found == missing.end() || *hello != hello_of(config, *found)) return {};
  PeerHello answer = hello_of(config, config.rank);
  if (!write_all(fd.get(), bytes_of(answer), hello_deadline, config.interrupt)) return {};
  peers[*found].fd = std::move(fd);
  missing.erase(found);
  return {};
}

Result<> check_answer(const GroupConfig& config, const ConnectingPeer& reached, Deadline deadline) {
  const std::string me = config.me();
  const std::string whom = config.rank_text(reached.rank) + " (" + reached.peer.address + ")";
  const auto answer = read_hello(reached.peer.fd.get(), deadline, config.interrupt);
  if (!answer && answer.error().code == ErrorCode::kLinkLost) {
    return error_of(ErrorCode::kLinkLost, me, " was refused by ", whom,
                    ": it ended, or belongs to another job, attempt, world size or --dtype");
  }
  DDP_TRY(within(me + " received no hello from " + whom, answer));
  if (*answer == hello_of(config, reached.rank)) return {};
  return error_of(ErrorCode::kProtocol, me, " found another rank, job or attempt at ", whom);
}

Error missing_error(const GroupConfig& config, const std::vector<ConnectingPeer>& reached,
                    const std::vector<int>& missing, const ListeningSocket& listener) {
  const std::string within_time = " within " + format_duration(config.start_timeout);
  const std::string me = config.me();
  if (!missing.empty()) {
    return error_of(ErrorCode::kTimeout, me, " cannot find ", config.rank_text(missing.front()),
                    ": it has not connected to ", listener.address, within_time,
                    "; check that it started and that no firewall blocks it");
  }
  const auto silent =
      std::find_if(reached.begin(), reached.end(), [](const ConnectingPeer& r) { return !r.answered; });
  return error_of(ErrorCode::kTimeout, me, " cannot find ", config.rank_text(silent->rank), " (",
                  silent->peer.address, "): it has not answered", within_time);
}

/// Waits at the same time for the answers of `reached`, which come when these ranks have time, and for the
/// missing ranks to connect.
Result<> meet(const GroupConfig& config, const ListeningSocket& listener, Deadline deadline,
              std::vector<ConnectingPeer>& reached, std::vector<int>& missing,
              std::map<int, TcpPeer>& peers) {
  while (true) {
    std::vector<int> fds{missing.empty() ? -1 : listener.fd.get()};
    for (const ConnectingPeer& r : reached)
      fds.push_back(r.answered ? -1 : r.peer.fd.get());
    if (std::all_of(fds.begin(), fds.end(), [](int fd) { return fd < 0; })) return {};
    const auto ready = wait_readable(fds, deadline, config.interrupt);
    if (!ready && ready.error().code == ErrorCode::kTimeout)
      return missing_error(config, reached, missing, listener);
    DDP_TRY(within(config.me(), ready));
    if (*ready == 0) {
      DDP_TRY(admit(config, listener.fd.get(), deadline, missing, peers));
    } else {
      ConnectingPeer& answering = reached[*ready - 1];
      DDP_TRY(check_answer(config, answering, deadline));
      answering.answered = true;
    }
  }
}

/// Returns true if `rank` connects to `other`: if the way ahead is the shorter one around the ring. Across
/// its middle, the lower rank connects.
bool knocks(int rank, int other, int world) {
  const int ahead = ((other - rank) % world + world) % world;
  return 2 * ahead < world || (2 * ahead == world && rank < other);
}

}  // namespace

Result<std::unique_ptr<TcpCommunicator>> connect_peers(const GroupConfig& config, PeerDirectory& directory) {
  const Deadline deadline = std::chrono::steady_clock::now() + config.start_timeout;
  const std::string me = config.me();

  const auto host = DDP_TRY(within(me, directory.local_address()));
  auto listener = DDP_TRY(within(me, listen_at(host)));
  DDP_TRY(within(me, directory.share(key_of(config, config.rank), listener.address)));

  std::vector<ConnectingPeer> reached;
  std::vector<int> missing;
  std::map<int, TcpPeer> peers;
  for (const int other : peers_of(config.rank, config.world_size)) {
    if (!knocks(config.rank, other, config.world_size)) {
      missing.push_back(other);
      continue;
    }
    auto there = DDP_TRY(reach(config, other, directory, deadline));
    reached.push_back(std::move(there));
  }
  const std::vector<int> knocking = missing;
  DDP_TRY(meet(config, listener, deadline, reached, missing, peers));
  // Error texts name these ranks by their published addresses.
  for (const int rank : knocking) {
    const auto address =
        directory.find(key_of(config, rank), std::chrono::milliseconds(milliseconds_left(deadline)));
    peers[rank].address = address ? *address : "address unknown";
  }
  for (ConnectingPeer& r : reached)
    peers[r.rank] = std::move(r.peer);
  return std::make_unique<TcpCommunicator>(config, std::move(peers));
}

namespace {

/// Above this size, the ring's single neighbor outweighs the fewer rounds (docs/developers/performance.md).
constexpr std::size_t kRingAbove = 4u << 20;
/// A broadcast above this size goes around the ring in pieces of this size.
constexpr std::size_t kBroadcastPiece = 256u << 10;
/// Tries before the first sleep: over loopback, an answer often comes sooner than a sleep and a wakeup.
constexpr int kTries = 20;
constexpr unsigned kMovesPerSample = 16;

std::map<int, CollectiveMachine::Name> names_of(const GroupConfig& config,
                                                const std::map<int, TcpPeer>& peers) {
  std::map<int, CollectiveMachine::Name> result;
  for (const auto& [rank, peer] : peers)
    result[rank] = {config.name(rank), peer.address};
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

void append(Schedule& to, const Schedule& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

TcpCommunicator::TcpCommunicator(const GroupConfig& config, std::map<int, TcpPeer> peers)
    : config_(config),
      peers_(std::move(peers)),
      ring_above_(kRingAbove),
      machine_(config.name(config.rank), names_of(config, peers_)) {}

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
  if (failed_ || now - shown_ < config_.step_timeout / 4) return;
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
  const auto slice =
      std::max<std::chrono::milliseconds>(config_.step_timeout / 4, std::chrono::milliseconds(1));
  Deadline deadline = std::chrono::steady_clock::now() + config_.step_timeout;
  int unread = 0;
  if (sending.count != 0) has_shown_activity(sending.peer, unread);
  while (true) {
    pollfd slots[] = {{config_.interrupt, POLLIN, 0},
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
        deadline = std::chrono::steady_clock::now() + config_.step_timeout;
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

Result<> TcpCommunicator::wait(Handle until) {
  int idle = 0;
  while (finished_ < until) {
    if (failed_) return *failed_;
    const auto moved = DDP_TRY(move_some());
    idle = moved ? 0 : idle + 1;
    // A stream that never stops must not hide a revocation.
    if (moved && ++moves_ % kMovesPerSample == 0 && is_revoked(config_.interrupt))
      return fail(machine_.revoked());
    if (idle < kTries || finished_ >= until) continue;
    const auto sending = machine_.to_send();
    const auto receiving = machine_.to_receive();
    const auto ready = DDP_TRY(wait_for_peers());
    if (ready) continue;
    // The rank that blocks this one is the peer that does not send, else the peer that does not take.
    const std::string text = format_text("%s for %g s", receiving.count ? "no data" : "it receives no data",
                                         std::chrono::duration<double>(config_.step_timeout).count());
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
  return wait(handle);
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
  CollectiveOrder order{kind, values.bytes, sum.element, world_size(), {}, sum.add};
  const bool ring = order.data.size() > ring_above_;
  order.schedule =
      ring ? ring_reduce_scatter(rank(), world_size()) : halving_reduce_scatter(rank(), world_size());
  if (kind == CollectiveKind::kAllReduce)
    append(order.schedule,
           ring ? ring_all_gather(rank(), world_size()) : doubling_all_gather(rank(), world_size()));
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
    return run({CollectiveKind::kBroadcast, data, 1, 1, tree_broadcast(rank(), world_size(), root)});
  return run(
      {CollectiveKind::kBroadcast, data, 1, parts, chain_broadcast(rank(), world_size(), root, parts)});
}

Result<> TcpCommunicator::all_gather_parts(std::span<std::byte> parts) {
  return run({CollectiveKind::kAllGather, parts, 1, world_size(),
              parts.size() > ring_above_ ? ring_all_gather(rank(), world_size())
                                         : doubling_all_gather(rank(), world_size())});
}

Result<> TcpCommunicator::gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) {
  const Schedule schedule = tree_gather(rank(), world_size(), root);
  return gather_pieces(mine, all, root, [&](std::span<std::byte> parts) {
    return run({CollectiveKind::kGather, parts, 1, world_size(), schedule});
  });
}

Result<> TcpCommunicator::barrier() {
  // A barrier is an all-gather of nothing: no rank has all parts before all have sent theirs.
  return run({CollectiveKind::kBarrier, {}, 1, world_size(), doubling_all_gather(rank(), world_size())});
}

}  // namespace ddp::train
