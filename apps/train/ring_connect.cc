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

/// Hears the hello of one waiting connection and answers it. Empty: a stray, closed without harm.
Result<UniqueFd> admit_previous(const RingConfig& config, int previous, int listener, Deadline deadline) {
  auto fd = accept_waiting(listener);
  if (!fd) return within(rank_text(config.rank), fd.error());
  if (!*fd) return UniqueFd();
  const Deadline hello_deadline = std::min(deadline, std::chrono::steady_clock::now() + kHelloTimeout);
  const auto hello = read_hello(fd->get(), hello_deadline, config.interrupt);
  if (!hello && hello.error().code == ErrorCode::kCancelled) return hello.error();
  if (!hello || *hello != hello_of(config, previous)) return UniqueFd();
  const auto answer = encode_hello(hello_of(config, config.rank));
  if (!write_all(fd->get(), answer, hello_deadline, config.interrupt)) return UniqueFd();
  return fd;
}

/// The next rank's answer to our greeting.
Result<> check_answer(const RingConfig& config, const RingPeer& next, Deadline deadline) {
  const std::string me = rank_text(config.rank);
  const std::string whom = rank_text(next.rank) + " (" + next.address + ")";
  const auto answer = read_hello(next.fd.get(), deadline, config.interrupt);
  if (!answer && answer.error().code == ErrorCode::kLinkLost) {
    return Error{ErrorCode::kLinkLost,
                 me + " was turned away by " + whom +
                     ": it ended, or belongs to another job, attempt, world size or --dtype"};
  }
  if (!answer) return within(me + " got no greeting from " + whom, answer.error());
  if (*answer == hello_of(config, next.rank)) return {};
  return Error{ErrorCode::kProtocol, me + " found another rank, job or attempt at " + whom};
}

/// Waits for both neighbours at once: for the next one's answer, which comes when it has time for us, and for
/// the previous one to knock. Gives the latter's connection.
Result<UniqueFd> meet_neighbours(const RingConfig& config, const RingPeer& next, int previous,
                                 const ListeningSocket& listener, Deadline deadline) {
  bool answered = false;
  UniqueFd previous_fd;
  while (!answered || !previous_fd) {
    const auto ready = wait_readable(answered ? -1 : next.fd.get(), previous_fd ? -1 : listener.fd.get(),
                                     deadline, config.interrupt);
    if (!ready && ready.error().code == ErrorCode::kTimeout) {
      const std::string within_time = " within " + seconds_text(config.start_timeout);
      if (previous_fd) {
        return Error{ErrorCode::kTimeout, rank_text(config.rank) + " misses " + rank_text(next.rank) + " (" +
                                              next.address + "): it has not answered" + within_time};
      }
      return Error{ErrorCode::kTimeout, rank_text(config.rank) + " misses " + rank_text(previous) +
                                            ": it has not connected to " + listener.address + within_time +
                                            "; did it start, and does a firewall let it through?"};
    }
    if (!ready) return within(rank_text(config.rank), ready.error());
    if (*ready == 0) {
      if (auto done = check_answer(config, next, deadline); !done) return done.error();
      answered = true;
    } else {
      auto fd = admit_previous(config, previous, listener.fd.get(), deadline);
      if (!fd) return fd.error();
      previous_fd = std::move(*fd);
    }
  }
  return previous_fd;
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
  const auto greeting = encode_hello(hello_of(config, config.rank));
  if (auto said = write_all(next->fd.get(), greeting, deadline, config.interrupt); !said) {
    return within(me + " cannot greet " + rank_text(next_rank) + " (" + next->address + ")", said.error());
  }
  auto previous_fd = meet_neighbours(config, *next, previous_rank, *listener, deadline);
  if (!previous_fd) return previous_fd.error();

  // For messages only: the address that the previous rank is known by.
  const auto address =
      directory.lookup(previous_rank, std::chrono::milliseconds(milliseconds_left(deadline)));
  RingPeer previous{std::move(*previous_fd), previous_rank, address ? *address : "address unknown"};
  return std::unique_ptr<Communicator>(std::make_unique<TcpCommunicator>(
      config.rank, world, std::move(*next), std::move(previous), config.step_timeout, config.interrupt));
}

}  // namespace ddp::train
