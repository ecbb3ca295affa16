#include "apps/train/collectives/cpu/peer_connect.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "apps/train/collectives/cpu/peer_hello.h"
#include "apps/train/collectives/cpu/tcp_communicator.h"
#include "apps/train/collectives/cpu/tcp_socket.h"
#include "base/format_text.h"

namespace ddp::train {

namespace {

int name_of(const PeerConfig& config, int rank) {
  return config.names.empty() ? rank : config.names[static_cast<std::size_t>(rank)];
}

std::string rank_text(const PeerConfig& config, int rank) {
  return "rank " + std::to_string(name_of(config, rank));
}

std::string key_of(const PeerConfig& config, int rank) {
  return (config.group.empty() ? "address/" : config.group + "/address/") + std::to_string(rank);
}

PeerHello hello_of(const PeerConfig& config, int rank) {
  return {job_number(config.job_id + "/" + config.group), config.attempt,
          static_cast<std::uint32_t>(config.world_size), static_cast<std::uint32_t>(rank),
          config.scalar_bytes};
}

/// A rank that this one connects to.
struct ConnectingPeer {
  int rank = 0;
  TcpPeer peer;
  bool answered = false;
};

Result<ConnectingPeer> reach(const PeerConfig& config, int whom, PeerDirectory& directory,
                             Deadline deadline) {
  const std::string me = rank_text(config, config.rank);
  auto address = directory.find(key_of(config, whom), std::chrono::milliseconds(milliseconds_left(deadline)));
  if (!address && address.error().code == ErrorCode::kTimeout) {
    return Error{ErrorCode::kTimeout, me + " cannot find " + rank_text(config, whom) +
                                          ": it has not published its address within " +
                                          format_duration(config.start_timeout) + "; check that it started"};
  }
  if (!address) return within(me + " cannot look up " + rank_text(config, whom), address.error());
  auto fd = connect_to(*address, deadline, config.interrupt);
  if (!fd) return within(me + " cannot reach " + rank_text(config, whom) + " (" + *address + ")", fd.error());
  const auto greeting = encode_hello(hello_of(config, config.rank));
  if (auto said = write_all(fd->get(), greeting, deadline, config.interrupt); !said)
    return within(me + " cannot send its hello to " + rank_text(config, whom) + " (" + *address + ")",
                  said.error());
  return ConnectingPeer{whom, {std::move(*fd), std::move(*address)}};
}

/// Reads the other end's hello. Fails with kProtocol if it is not a hello.
Result<PeerHello> read_hello(int fd, Deadline deadline, int interrupt) {
  PeerHelloBytes bytes;
  if (auto read = read_all(fd, bytes, deadline, interrupt); !read) return read.error();
  const auto hello = decode_hello(bytes);
  if (!hello)
    return Error{ErrorCode::kProtocol, "the answer is not the hello of a rank of this version of train"};
  return *hello;
}

/// Reads the hello of one waiting connection. If it is of a rank in `missing`, answers it and removes that
/// rank from `missing`. A stray connection is closed without harm.
Result<> admit(const PeerConfig& config, int listener, Deadline deadline, std::vector<int>& missing,
               std::map<int, TcpPeer>& peers) {
  auto fd = accept_waiting(listener);
  if (!fd) return within(rank_text(config, config.rank), fd.error());
  if (!*fd) return {};
  const Deadline hello_deadline = std::min(deadline, std::chrono::steady_clock::now() + kHelloTimeout);
  const auto hello = read_hello(fd->get(), hello_deadline, config.interrupt);
  if (!hello && hello.error().code == ErrorCode::kCancelled) return hello.error();
  if (!hello) return {};
  const auto found = std::find(missing.begin(), missing.end(), static_cast<int>(hello->rank));
  if (found == missing.end() || *hello != hello_of(config, *found)) return {};
  const auto answer = encode_hello(hello_of(config, config.rank));
  if (!write_all(fd->get(), answer, hello_deadline, config.interrupt)) return {};
  peers[*found].fd = std::move(*fd);
  missing.erase(found);
  return {};
}

Result<> check_answer(const PeerConfig& config, const ConnectingPeer& reached, Deadline deadline) {
  const std::string me = rank_text(config, config.rank);
  const std::string whom = rank_text(config, reached.rank) + " (" + reached.peer.address + ")";
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

Error missing_error(const PeerConfig& config, const std::vector<ConnectingPeer>& reached,
                    const std::vector<int>& missing, const ListeningSocket& listener) {
  const std::string within_time = " within " + format_duration(config.start_timeout);
  const std::string me = rank_text(config, config.rank);
  if (!missing.empty()) {
    return {ErrorCode::kTimeout, me + " cannot find " + rank_text(config, missing.front()) +
                                     ": it has not connected to " + listener.address + within_time +
                                     "; check that it started and that no firewall blocks it"};
  }
  const auto silent =
      std::find_if(reached.begin(), reached.end(), [](const ConnectingPeer& r) { return !r.answered; });
  return {ErrorCode::kTimeout, me + " cannot find " + rank_text(config, silent->rank) + " (" +
                                   silent->peer.address + "): it has not answered" + within_time};
}

/// Waits at the same time for the answers of `reached`, which come when these ranks have time, and for the
/// missing ranks to connect.
Result<> meet(const PeerConfig& config, const ListeningSocket& listener, Deadline deadline,
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
    if (!ready) return within(rank_text(config, config.rank), ready.error());
    if (*ready == 0) {
      auto done = admit(config, listener.fd.get(), deadline, missing, peers);
      if (!done) return done;
    } else {
      ConnectingPeer& answering = reached[*ready - 1];
      if (auto done = check_answer(config, answering, deadline); !done) return done;
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

Result<std::unique_ptr<TcpCommunicator>> connect_peers(const PeerConfig& config, PeerDirectory& directory) {
  const Deadline deadline = std::chrono::steady_clock::now() + config.start_timeout;
  const std::string me = rank_text(config, config.rank);

  const auto host = directory.local_address();
  if (!host) return within(me, host.error());
  auto listener = listen_at(*host);
  if (!listener) return within(me, listener.error());
  if (auto done = directory.share(key_of(config, config.rank), listener->address); !done)
    return within(me, done.error());

  std::vector<ConnectingPeer> reached;
  std::vector<int> missing;
  std::map<int, TcpPeer> peers;
  for (const int other : peers_of(config.rank, config.world_size)) {
    if (!knocks(config.rank, other, config.world_size)) {
      missing.push_back(other);
      continue;
    }
    auto there = reach(config, other, directory, deadline);
    if (!there) return there.error();
    reached.push_back(std::move(*there));
  }
  const std::vector<int> knocking = missing;
  if (auto done = meet(config, *listener, deadline, reached, missing, peers); !done) return done.error();
  // Error texts name these ranks by their published addresses.
  for (const int rank : knocking) {
    const auto address =
        directory.find(key_of(config, rank), std::chrono::milliseconds(milliseconds_left(deadline)));
    peers[rank].address = address ? *address : "address unknown";
  }
  for (ConnectingPeer& r : reached)
    peers[r.rank] = std::move(r.peer);
  for (auto& [rank, peer] : peers)
    peer.name = name_of(config, rank);
  return std::make_unique<TcpCommunicator>(config.rank, config.world_size, name_of(config, config.rank),
                                           std::move(peers), config.step_timeout, config.interrupt);
}

}  // namespace ddp::train
