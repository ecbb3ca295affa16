#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/cpu/tcp_communicator.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Non-blocking socket calls with deadlines. Descriptors are close-on-exec from the start; connected sockets
/// have Nagle's algorithm off. Addresses are numeric: "10.0.0.7:4123" or "[fe80::1]:4123". Waits also watch
/// `interrupt` (a descriptor, or -1). They end with kCancelled when it is readable, and with kTimeout after
/// the deadline. Errors of read_all and write_all are bare reasons ("connection reset") that the caller
/// completes.
using Deadline = std::chrono::steady_clock::time_point;

struct ListeningSocket {
  UniqueFd fd;
  std::string address;  ///< with the port that the kernel chose
};

Result<ListeningSocket> listen_at(const std::string& host);
Result<UniqueFd> connect_to(const std::string& address, Deadline deadline, int interrupt);
/// Accepts one connection that is already waiting; empty if there is none.
Result<UniqueFd> accept_waiting(int listener);
/// Waits until one of `fds` has something to read or has ended, and returns its index. Ignores descriptors of
/// -1.
Result<std::size_t> wait_readable(std::span<const int> fds, Deadline deadline, int interrupt);

Result<> write_all(int fd, std::span<const std::byte> data, Deadline deadline, int interrupt);
/// Fails with kLinkLost "connection closed" at the end of the stream.
Result<> read_all(int fd, std::span<std::byte> data, Deadline deadline, int interrupt);

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

/// Listens on this machine's address, publishes it and makes one connection to each rank of peers_of(). The
/// rank whose distance along the ring is shorter connects. Both ends prove job, attempt and rank by a hello;
/// any other connection is closed without harm. Errors name the missing rank.
Result<std::unique_ptr<TcpCommunicator>> connect_peers(const GroupConfig& config, PeerDirectory& directory);

}  // namespace ddp::train
