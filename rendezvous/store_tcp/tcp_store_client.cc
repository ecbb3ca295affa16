#include "rendezvous/store_tcp/tcp_store_client.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>

#include "base/text.h"
#include "rendezvous/store/tcp_store_codec.h"

namespace ddp::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<AddressList> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc == 0) return AddressList(found, &::freeaddrinfo);
  // A resolver that is not up may be up a moment later; a name that does not exist stays unknown.
  const bool passing = rc == EAI_AGAIN || rc == EAI_SYSTEM || rc == EAI_MEMORY;
  return Error{passing ? ErrorCode::kUnreachable : ErrorCode::kUsage,
               "cannot resolve the store's host '" + host +
                   "': " + (rc == EAI_SYSTEM ? system_error(errno, "resolver").text : ::gai_strerror(rc))};
}

/// Returns the time until `deadline` for poll(): 0 when past, rounded up so that a wait never ends early.
int poll_timeout(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, std::numeric_limits<int>::max()));
}

/// Waits until `fd` is ready for `events` (-1: only for the deadline). Returns true when ready, false after
/// the deadline. kCancelled: `interrupt` (a descriptor, or -1) is readable; kSystem.
Result<bool> poll_with_interrupt(int fd, short events, Clock::time_point deadline, int interrupt) {
  for (;;) {
    pollfd entries[] = {{fd, events, 0}, {interrupt, POLLIN, 0}};
    const int ready = ::poll(entries, 2, poll_timeout(deadline));
    if (ready > 0 && entries[1].revents != 0) return Error{ErrorCode::kCancelled, "the attempt was revoked"};
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return system_error(errno, "poll");
  }
}

Result<> finish_connect(int fd, Clock::time_point deadline, int interrupt) {
  const bool ready = DDP_TRY(poll_with_interrupt(fd, POLLOUT, deadline, interrupt));
  if (!ready) return Error{ErrorCode::kUnreachable, "no answer", ETIMEDOUT};
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0) error = errno;
  if (error != 0) return system_error(error, "connect", ErrorCode::kUnreachable);
  return {};
}

Result<UniqueFd> connect_address(const addrinfo& address, Clock::time_point deadline, int interrupt) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return system_error(errno, "socket", ErrorCode::kUnreachable);
  const int on = 1;
  // Small requests that wait for replies would wait for delayed acknowledgements, too.
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  // After EINTR the connection also continues: wait for it, never start it twice.
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) < 0) {
    if (errno != EINPROGRESS && errno != EINTR)
      return system_error(errno, "connect", ErrorCode::kUnreachable);
    DDP_TRY(finish_connect(fd.get(), deadline, interrupt));
  }
  return fd;
}

/// Makes one attempt at a TCP connection to any of `host`'s addresses: non-blocking, close-on-exec,
/// TCP_NODELAY. Blocks until `deadline`. kUnreachable: no answer (yet), try again; kUsage: no retry can help
/// (`sys` is 0); kCancelled: `interrupt` (a descriptor, or -1) is readable.
Result<UniqueFd> connect_tcp_once(const std::string& host, std::uint16_t port, Clock::time_point deadline,
                                  int interrupt) {
  const AddressList addresses = DDP_TRY(resolve(host, port));
  Error last{ErrorCode::kUnreachable, "no address"};
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    // One dead address must not use up the time of the next.
    const auto share =
        address->ai_next == nullptr ? deadline : std::min(deadline, Clock::now() + std::chrono::seconds(3));
    Result<UniqueFd> fd = connect_address(*address, share, interrupt);
    if (fd) {
      // Linux can connect a socket to itself when the port is in the ephemeral range and has no listener.
      sockaddr_storage local{};
      sockaddr_storage remote{};
      socklen_t local_size = sizeof local;
      socklen_t remote_size = sizeof remote;
      ::getsockname(fd->get(), reinterpret_cast<sockaddr*>(&local), &local_size);
      ::getpeername(fd->get(), reinterpret_cast<sockaddr*>(&remote), &remote_size);
      const bool to_itself =
          local_size == remote_size && std::equal(reinterpret_cast<const char*>(&local),
                                                  reinterpret_cast<const char*>(&local) + local_size,
                                                  reinterpret_cast<const char*>(&remote));
      if (!to_itself) return fd;
      last = system_error(ECONNREFUSED, "connect", ErrorCode::kUnreachable);
      continue;
    }
    last = fd.error();
    if (last.code == ErrorCode::kCancelled) break;
  }
  return last;
}

constexpr milliseconds kFirstRetry{5};
constexpr milliseconds kLastRetry{100};
// A running server answers a cancelled WAIT at once; any other must not hold the caller for long.
constexpr milliseconds kCancelGrace{5000};

// A caller's "forever" must not overflow the clock.
Clock::time_point after(milliseconds timeout) {
  return Clock::now() + std::min<milliseconds>(timeout, std::chrono::hours(24 * 365));
}

std::string request_of(StoreOp op) {
  return std::string(1, static_cast<char>(op));
}

std::string request_of(StoreOp op, std::string_view key) {
  std::string out = request_of(op);
  put_bytes(out, key);
  return out;
}

std::int64_t number_at(const char* bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i)
    value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return static_cast<std::int64_t>(value);
}

std::string quoted_key(std::string_view key) {
  return "'" + std::string(key) + "'";
}

// Builds the text for a failed start from the error of the last try.
Error unreachable(const std::string& peer, milliseconds timeout, const Error& last) {
  std::string text = "no store at " + peer + " within " + format_duration(timeout) + ": " + last.text;
  if (last.code == ErrorCode::kLinkLost)
    text += "; it does not accept this host's address, or is another service";
  return Error{ErrorCode::kUnreachable, std::move(text), last.sys};
}

}  // namespace

TcpStoreClient::TcpStoreClient(UniqueFd fd, std::string peer, Duration timeout, int interrupt)
    : fd_(std::move(fd)), peer_(std::move(peer)), timeout_(timeout), interrupt_(interrupt) {}

Result<TcpStoreClient> TcpStoreClient::connect(const std::string& host, std::uint16_t port, Duration timeout,
                                               int interrupt) {
  const Deadline deadline = after(timeout);
  const std::string peer = format_endpoint(host, port);
  std::optional<Error> closed;  // says more than a last try that the deadline cuts short
  for (Duration pause = kFirstRetry;; pause = std::min(pause * 2, kLastRetry)) {
    const auto began = Clock::now();
    Result<UniqueFd> fd = connect_tcp_once(host, port, deadline, interrupt);
    Error last;
    if (fd) {
      TcpStoreClient client(std::move(*fd), peer, timeout, interrupt);
      std::string hello = request_of(StoreOp::kValidate);
      put_u32(hello, kStoreMagic);
      // VALIDATE has no reply, and a full backlog or a refusal shows only with the first answer. GETNUMKEYS
      // is used since torch ≤ 2.4 does not know PING.
      hello += request_of(StoreOp::kNumKeys);
      Result<std::int64_t> answer = client.ask_number(hello, deadline, "connect");
      if (answer) return client;
      last = answer.error();
    } else {
      last = fd.error();
      if (last.code == ErrorCode::kUsage) return last;
    }
    if (last.code == ErrorCode::kCancelled) return within("connect to the store at " + peer, last);
    if (last.code == ErrorCode::kLinkLost) closed = last;
    if (last.code == ErrorCode::kTimeout && closed && deadline - began <= kLastRetry) last = *closed;
    if (Clock::now() + pause >= deadline) return unreachable(peer, timeout, last);
    DDP_TRY(within("connect to the store at " + peer,
                   poll_with_interrupt(-1, 0, Clock::now() + pause, interrupt)));
  }
}

Error TcpStoreClient::broken(Error error) {
  broken_ = error.text;
  fd_.reset();
  return error;
}

Result<> TcpStoreClient::poll_for(short events, Deadline deadline, std::string_view what) {
  if (DDP_TRY(within(what, poll_with_interrupt(fd_.get(), events, deadline, interrupt_)))) return {};
  return Error{ErrorCode::kTimeout, std::string(what) + ": no answer from the store at " + peer_ + " in time",
               ETIMEDOUT};
}

Result<> TcpStoreClient::send(std::string_view bytes, Deadline deadline, std::string_view what) {
  if (broken_)
    return Error{ErrorCode::kLinkLost, std::string(what) + ": the store connection is closed: " + *broken_};
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return broken(system_error(errno, std::string(what) + ": store " + peer_, ErrorCode::kLinkLost));
    }
    // A partly sent request can be neither taken back nor followed by another.
    if (Result<> ready = poll_for(POLLOUT, deadline, what); !ready) return broken(ready.error());
  }
  return {};
}

Result<> TcpStoreClient::receive(char* into, std::size_t size, Deadline deadline, std::string_view what) {
  std::size_t have = 0;
  while (have < size) {
    const ssize_t got = ::recv(fd_.get(), into + have, size - have, 0);
    if (got > 0) {
      have += static_cast<std::size_t>(got);
      continue;
    }
    if (got == 0) {
      return broken({ErrorCode::kLinkLost,
                     std::string(what) + ": the store at " + peer_ + " closed the connection", ECONNRESET});
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return broken(system_error(errno, std::string(what) + ": store " + peer_, ErrorCode::kLinkLost));
    }
    if (Result<> ready = poll_for(POLLIN, deadline, what); !ready) {
      // If no byte of the reply has come, the caller may still cancel. Half a reply ends the connection.
      return have == 0 ? ready.error() : broken(ready.error());
    }
  }
  return {};
}

Result<> TcpStoreClient::roundtrip(std::string_view request, char* reply, std::size_t size, Deadline deadline,
                                   std::string_view what) {
  DDP_TRY(send(request, deadline, what));
  // The reply may still come, and would be taken for that of the next request.
  if (Result<> got = receive(reply, size, deadline, what); !got) return broken(got.error());
  return {};
}

Result<std::int64_t> TcpStoreClient::ask_number(std::string_view request, Deadline deadline,
                                                std::string_view what) {
  char reply[8];
  DDP_TRY(roundtrip(request, reply, sizeof reply, deadline, what));
  return number_at(reply);
}

Result<TcpStoreClient::Bytes> TcpStoreClient::receive_bytes(Deadline deadline, std::string_view what) {
  char head[8];
  if (Result<> got = receive(head, sizeof head, deadline, what); !got) return broken(got.error());
  const auto size = static_cast<std::uint64_t>(number_at(head));
  if (size > kMaxStoreValue) {
    return broken({ErrorCode::kProtocol, std::string(what) + ": the store at " + peer_ +
                                             " announced a value of " + std::to_string(size) +
                                             " bytes; it does not speak the TCPStore protocol"});
  }
  Bytes value(size, '\0');
  if (Result<> got = receive(value.data(), value.size(), deadline, what); !got) return broken(got.error());
  return value;
}

Result<> TcpStoreClient::wait_for(std::string_view key, Deadline deadline, std::string_view what) {
  std::string request = request_of(StoreOp::kWait);
  put_u64(request, 1);  // the number of keys
  put_bytes(request, key);
  DDP_TRY(send(request, deadline, what));
  char reply = 0;
  Result<> got = receive(&reply, 1, deadline, what);
  if (got) {
    if (static_cast<std::uint8_t>(reply) == kStopWaiting) return {};
    return broken({ErrorCode::kProtocol, std::string(what) + ": the store at " + peer_ +
                                             " answered a WAIT with " +
                                             std::to_string(static_cast<std::uint8_t>(reply))});
  }
  if (broken_) return got;
  if (got.error().code != ErrorCode::kTimeout) return broken(got.error());  // the server owes a reply
  // The connection stays usable after a time-out: the server forgets the wait, and says so.
  DDP_TRY(cancel_wait(what));
  std::string text = std::string(what) + ": not in the store at " + peer_ + " in time";
  return Error{ErrorCode::kTimeout, std::move(text), ETIMEDOUT};
}

// The wake-up may cross the cancellation. Then the store answers "stop waiting" first and "cancelled" after
// that.
Result<> TcpStoreClient::cancel_wait(std::string_view what) {
  const Deadline deadline = after(kCancelGrace);
  char reply = 0;
  DDP_TRY(roundtrip(request_of(StoreOp::kCancelWait), &reply, 1, deadline, what));
  if (static_cast<std::uint8_t>(reply) == kWaitCanceled) return {};
  if (Result<> got = receive(&reply, 1, deadline, what); !got) return broken(got.error());
  if (static_cast<std::uint8_t>(reply) == kWaitCanceled) return {};
  return broken({ErrorCode::kProtocol, std::string(what) + ": the store at " + peer_ +
                                           " answered CANCEL_WAIT with " +
                                           std::to_string(static_cast<std::uint8_t>(reply))});
}

Result<> TcpStoreClient::set(std::string_view key, std::string_view value) {
  std::string request = request_of(StoreOp::kSet, key);
  put_bytes(request, value);
  // SET has no reply. That it was refused shows with the next answer.
  return send(request, after(timeout_), "set of " + quoted_key(key));
}

Result<TcpStoreClient::Bytes> TcpStoreClient::get(std::string_view key, Duration timeout) {
  const Deadline deadline = after(timeout);
  const std::string what = "get of " + quoted_key(key);
  DDP_TRY(wait_for(key, deadline, what));
  // The key exists: its bytes get their own time, or a short wait for a large value would lose the
  // connection.
  const Deadline reply_by = std::max(deadline, after(kCancelGrace));
  DDP_TRY(send(request_of(StoreOp::kGet, key), reply_by, what));
  return receive_bytes(reply_by, what);
}

Result<std::int64_t> TcpStoreClient::add(std::string_view key, std::int64_t amount, Duration timeout) {
  std::string request = request_of(StoreOp::kAdd, key);
  put_u64(request, static_cast<std::uint64_t>(amount));
  return ask_number(request, after(timeout), "add to " + quoted_key(key));
}

Result<std::string> TcpStoreClient::local_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size) < 0) {
    return system_error(errno, "address of the store connection to " + peer_);
  }
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(&address)->sin6_addr, text, sizeof text);
  } else {
    ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&address)->sin_addr, text, sizeof text);
  }
  return std::string(text);
}

}  // namespace ddp::rendezvous
