#include "apps/train/collectives/cpu/peer_connect.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

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
    return Error{ErrorCode::kProtocol,
                 "\"" + host + ":" + port + "\" is not a numeric address: " + gai_strerror(failed)};
  }
  return AddressInfo(info);
}

Result<AddressInfo> parse_address(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return Error{ErrorCode::kProtocol, "\"" + address + "\" has no port"};
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return parse_address(host, address.substr(colon + 1));
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

PeerHello hello_of(const GroupConfig& config, int rank) {
  const std::string job = config.job_id + "/" + config.group;
  return {.job = fnv_hash(std::as_bytes(std::span(job))),
          .attempt = config.attempt,
          .world_size = static_cast<std::uint32_t>(config.world_size),
          .rank = static_cast<std::uint32_t>(rank),
          .scalar_bytes = config.scalar_bytes};
}

namespace {

std::string key_of(const GroupConfig& config, int rank) {
  return (config.group.empty() ? "address/" : config.group + "/address/") + std::to_string(rank);
}

/// A rank that this one connects to.
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
    return Error{ErrorCode::kTimeout, me + " cannot find " + other +
                                          ": it has not published its address within " +
                                          format_duration(config.start_timeout) + "; check that it started"};
  }
  if (!address) return within(me + " cannot look up " + other, address.error());
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
    return Error{ErrorCode::kLinkLost,
                 me + " was refused by " + whom +
                     ": it ended, or belongs to another job, attempt, world size or --dtype"};
  }
  if (!answer) return within(me + " received no hello from " + whom, answer.error());
  if (*answer == hello_of(config, reached.rank)) return {};
  return Error{ErrorCode::kProtocol, me + " found another rank, job or attempt at " + whom};
}

Error missing_error(const GroupConfig& config, const std::vector<ConnectingPeer>& reached,
                    const std::vector<int>& missing, const ListeningSocket& listener) {
  const std::string within_time = " within " + format_duration(config.start_timeout);
  const std::string me = config.me();
  if (!missing.empty()) {
    return {ErrorCode::kTimeout, me + " cannot find " + config.rank_text(missing.front()) +
                                     ": it has not connected to " + listener.address + within_time +
                                     "; check that it started and that no firewall blocks it"};
  }
  const auto silent =
      std::find_if(reached.begin(), reached.end(), [](const ConnectingPeer& r) { return !r.answered; });
  return {ErrorCode::kTimeout, me + " cannot find " + config.rank_text(silent->rank) + " (" +
                                   silent->peer.address + "): it has not answered" + within_time};
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
    if (!ready) return within(config.me(), ready.error());
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
  for (auto& [rank, peer] : peers)
    peer.name = config.name(rank);
  return std::make_unique<TcpCommunicator>(config.rank, config.world_size, config.name(config.rank),
                                           std::move(peers), config.step_timeout, config.interrupt);
}

}  // namespace ddp::train
