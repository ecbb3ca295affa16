#include "apps/train/ring_connect.h"

#include <algorithm>
#include <utility>

#include "apps/train/peer_hello.h"
#include "apps/train/tcp_communicator.h"
#include "apps/train/tcp_socket.h"

namespace ddp::train {

namespace {

/// A stray connection that says nothing may hold the door this long.
constexpr std::chrono::seconds kHelloTimeout{2};

std::string rank_text(int rank) {
  return "rank " + std::to_string(rank);
}

PeerHello hello_of(const RingConfig& config, int rank) {
  return {job_number(config.job_id), config.attempt, static_cast<std::uint32_t>(config.world_size),
          static_cast<std::uint32_t>(rank), config.scalar_bytes};
}

std::string seconds_text(std::chrono::milliseconds time) {
  const auto ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

Result<RingPeer> reach_next(const RingConfig& config, int next, PeerDirectory& directory, Deadline deadline) {
  const std::string me = rank_text(config.rank);
  auto address = directory.lookup(next, std::chrono::milliseconds(milliseconds_left(deadline)));
  if (!address && address.error().code == ErrorCode::kTimeout) {
    return Error{ErrorCode::kTimeout, me + " misses " + rank_text(next) +
                                          ": it has not published its address within " +
                                          seconds_text(config.start_timeout) + "; did it start?"};
  }
  if (!address) return within(me + " cannot look up " + rank_text(next), address.error());
  auto fd = connect_to(*address, deadline, config.interrupt);
  if (!fd) return within(me + " cannot reach " + rank_text(next) + " (" + *address + ")", fd.error());
  return RingPeer{std::move(*fd), next, std::move(*address)};
}

/// The hello of the other end. kProtocol where it is not a hello.
Result<PeerHello> read_hello(int fd, Deadline deadline, int interrupt) {
  PeerHelloBytes bytes;
  if (auto read = read_all(fd, bytes, deadline, interrupt); !read) return read.error();
  const auto hello = decode_hello(bytes);
  if (!hello)
    return Error{ErrorCode::kProtocol, "what answers there is not a rank of this program's version"};
  return *hello;
}

/// Accepts until the previous rank has come; strays are closed.
Result<RingPeer> await_previous(const RingConfig& config, int previous, const ListeningSocket& listener,
                                PeerDirectory& directory, Deadline deadline) {
  const PeerHello expected = hello_of(config, previous);
  while (true) {
    auto fd = accept_from(listener.fd.get(), deadline, config.interrupt);
    if (!fd && fd.error().code == ErrorCode::kTimeout) {
      return Error{ErrorCode::kTimeout, rank_text(config.rank) + " misses " + rank_text(previous) +
                                            ": it has not connected to " + listener.address + " within " +
                                            seconds_text(config.start_timeout) +
                                            "; did it start, and does a firewall let it through?"};
    }
    if (!fd) return within(rank_text(config.rank) + " at " + listener.address, fd.error());
    const Deadline hello_deadline = std::min(deadline, std::chrono::steady_clock::now() + kHelloTimeout);
    const auto hello = read_hello(fd->get(), hello_deadline, config.interrupt);
    if (!hello && hello.error().code == ErrorCode::kCancelled) return hello.error();
    if (!hello || *hello != expected) continue;

    const auto answer = encode_hello(hello_of(config, config.rank));
    if (!write_all(fd->get(), answer, deadline, config.interrupt)) continue;
    // For messages only: the address it listens on, as the others know it.
    auto address = directory.lookup(previous, std::chrono::milliseconds(milliseconds_left(deadline)));
    return RingPeer{std::move(*fd), previous, address ? *address : "address unknown"};
  }
}

}  // namespace

Result<std::unique_ptr<Communicator>> connect_ring(const RingConfig& config, PeerDirectory& directory) {
  const Deadline deadline = std::chrono::steady_clock::now() + config.start_timeout;
  const std::string me = rank_text(config.rank);
  const int world = config.world_size;
  const int next_rank = (config.rank + 1) % world;
  const int previous_rank = (config.rank + world - 1) % world;

  const auto host = directory.local_address();
  if (!host) return within(me, host.error());
  auto listener = listen_at(*host);
  if (!listener) return within(me, listener.error());
  if (auto done = directory.publish(config.rank, listener->address); !done) return within(me, done.error());

  auto next = reach_next(config, next_rank, directory, deadline);
  if (!next) return next.error();
  // Said before the previous rank is heard: the kernel takes it while the next rank is still busy, so no
  // circle waits.
  const auto greeting = encode_hello(hello_of(config, config.rank));
  const std::string next_text = rank_text(next_rank) + " (" + next->address + ")";
  auto said = write_all(next->fd.get(), greeting, deadline, config.interrupt);
  if (!said) return within(me + " cannot greet " + next_text, said.error());

  auto previous = await_previous(config, previous_rank, *listener, directory, deadline);
  if (!previous) return previous.error();
  const auto answer = read_hello(next->fd.get(), deadline, config.interrupt);
  if (!answer && answer.error().code == ErrorCode::kLinkLost) {
    return Error{ErrorCode::kLinkLost,
                 me + " was turned away by " + next_text +
                     ": it ended, or belongs to another job, attempt, world size or --dtype"};
  }
  if (!answer) return within(me + " got no greeting from " + next_text, answer.error());
  if (*answer != hello_of(config, next_rank)) {
    return Error{ErrorCode::kProtocol, me + " found another rank, job or attempt at " + next_text};
  }
  return std::unique_ptr<Communicator>(std::make_unique<TcpCommunicator>(
      config.rank, world, std::move(*next), std::move(*previous), config.step_timeout, config.interrupt));
}

}  // namespace ddp::train
