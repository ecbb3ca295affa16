#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "apps/train/collectives/cpu/node_links.h"
#include "apps/train/collectives/cpu/peer_hello.h"
#include "apps/train/collectives/cpu/shm_buffer.h"
#include "apps/train/collectives/cpu/shm_segment.h"
#include "apps/train/collectives/cpu/tcp_socket.h"

namespace ddp::train {

namespace {

std::string rank_text(const NodeConfig& config, int local_rank) {
  return "rank " + std::to_string(config.ranks[static_cast<std::size_t>(local_rank)]);
}

std::string me(const NodeConfig& config) {
  return rank_text(config, config.local_rank);
}

PeerHello hello_of(const NodeConfig& config, int local_rank) {
  return {job_number(config.job_id + "/" + config.group), config.attempt,
          static_cast<std::uint32_t>(config.local_world_size), static_cast<std::uint32_t>(local_rank), 0};
}

Result<std::string> random_name() {
  std::array<unsigned char, 16> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return system_error(errno, "getrandom");
  std::string name = "ddp-train-";
  for (const unsigned char byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

/// Returns an address of the abstract namespace: it is gone with its socket, however the process ends.
std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size)};
}

bool same_user(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 &&
         credentials.uid == ::geteuid();
}

/// Sends one message with up to four descriptors.
Result<> send_with(int to, std::span<const std::byte> data, std::span<const int> fds) {
  iovec part{const_cast<std::byte*>(data.data()), data.size()};  // sendmsg only reads
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  while (::sendmsg(to, &message, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return connection_error(errno);
  }
  return {};
}

/// Fails with kProtocol unless exactly `data.size()` bytes and `count` descriptors come.
Result<std::vector<UniqueFd>> receive_with(int from, std::span<std::byte> data, std::size_t count,
                                           Deadline deadline, int interrupt) {
  const int fds[] = {from};
  if (auto ready = wait_readable(fds, deadline, interrupt); !ready) return ready.error();
  iovec part{data.data(), data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return connection_error(errno);
  std::vector<UniqueFd> received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; at + CMSG_LEN(0) < header->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + at, sizeof fd);
      received.emplace_back(fd);
    }
  }
  if (got == 0) return connection_closed();
  if (static_cast<std::size_t>(got) != data.size() || received.size() != count ||
      message.msg_flags & MSG_TRUNC)
    return Error{ErrorCode::kProtocol, "unexpected message"};
  return received;
}

struct LocalEnds {
  UniqueFd doorbell;
  UniqueFd liveness_read;
  UniqueFd liveness_write;
  UniqueFd buffer;
};

Result<LocalEnds> make_own() {
  LocalEnds own;
  own.doorbell = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!own.doorbell) return system_error(errno, "eventfd");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_error(errno, "pipe");
  own.liveness_read = UniqueFd(ends[0]);
  own.liveness_write = UniqueFd(ends[1]);
  auto buffer = ShmBuffer::make();
  if (!buffer) return buffer.error();
  own.buffer = std::move(*buffer);
  return own;
}

Result<UniqueFd> seqpacket_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return system_error(errno, "socket");
  return fd;
}

/// A member that connected: its local rank, its connection and its descriptors. Rank -1: a stray connection.
struct NodePeer {
  int local_rank = -1;
  UniqueFd connection;
  std::vector<UniqueFd> fds;
};

Result<NodePeer> hear_member(const NodeConfig& config, int listener, Deadline deadline) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd || !same_user(fd.get())) return NodePeer{};
  PeerHelloBytes bytes;
  const Deadline hello_deadline = std::min(deadline, std::chrono::steady_clock::now() + kHelloTimeout);
  auto fds = receive_with(fd.get(), bytes, 3, hello_deadline, config.interrupt);
  if (!fds && fds.error().code == ErrorCode::kCancelled) return fds.error();
  if (!fds) return NodePeer{};
  const auto hello = decode_hello(bytes);
  if (!hello || hello->rank == 0 || hello->rank >= static_cast<std::uint32_t>(config.local_world_size) ||
      *hello != hello_of(config, static_cast<int>(hello->rank)))
    return NodePeer{};
  return NodePeer{static_cast<int>(hello->rank), std::move(fd), std::move(*fds)};
}

Result<std::vector<NodePeer>> gather_members(const NodeConfig& config, int listener, Deadline deadline) {
  std::vector<NodePeer> members(static_cast<std::size_t>(config.local_world_size));
  for (int missing = config.local_world_size - 1; missing > 0;) {
    const int fds[] = {listener};
    const auto ready = wait_readable(fds, deadline, config.interrupt);
    if (!ready && ready.error().code == ErrorCode::kTimeout) {
      const auto absent =
          std::find_if(members.begin() + 1, members.end(), [](const NodePeer& m) { return !m.connection; });
      return Error{ErrorCode::kTimeout, me(config) + " cannot find " +
                                            rank_text(config, static_cast<int>(absent - members.begin())) +
                                            " of the same node; check that it started, and in the same "
                                            "network namespace; --comm tcp needs no "
                                            "shared memory"};
    }
    if (!ready) return within(me(config), ready.error());
    auto member = hear_member(config, listener, deadline);
    if (!member) return within(me(config), member.error());
    if (member->local_rank < 0) continue;
    NodePeer& entry = members[static_cast<std::size_t>(member->local_rank)];
    if (entry.connection) continue;  // a second connection of the same rank is a stray one
    entry = std::move(*member);
    --missing;
  }
  return members;
}

Result<NodeLinks> lead(const NodeConfig& config, PeerDirectory& directory, const std::string& key,
                       Deadline deadline) {
  const auto name = random_name();
  if (!name) return within(me(config), name.error());
  auto listener = seqpacket_socket();
  if (!listener) return within(me(config), listener.error());
  const auto [address, size] = abstract_address(*name);
  if (::bind(listener->get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(listener->get(), config.local_world_size) != 0)
    return within(me(config), system_error(errno, "unix socket"));

  NodeLinks links;
  auto memory = ShmSegment::make(config.local_world_size);
  if (!memory) return within(me(config), memory.error());
  links.memory = std::move(*memory);
  auto own = make_own();
  if (!own) return within(me(config), own.error());
  if (auto published = directory.share(key, *name); !published) return within(me(config), published.error());

  auto members = gather_members(config, listener->get(), deadline);
  if (!members) return members.error();
  links.doorbells.push_back(std::move(own->doorbell));
  links.liveness.push_back(std::move(own->liveness_read));
  links.own_liveness = std::move(own->liveness_write);
  links.buffers.push_back(std::move(own->buffer));
  for (std::size_t i = 1; i < members->size(); ++i) {
    links.doorbells.push_back(std::move((*members)[i].fds[0]));
    links.liveness.push_back(std::move((*members)[i].fds[1]));
    links.buffers.push_back(std::move((*members)[i].fds[2]));
  }
  for (std::size_t i = 1; i < members->size(); ++i) {
    for (std::size_t whose = 0; whose < members->size(); ++whose) {
      const std::byte number[] = {std::byte(whose & 0xff), std::byte(whose >> 8)};
      const int fds[] = {links.doorbells[whose].get(), links.liveness[whose].get(),
                         links.buffers[whose].get(), links.memory.get()};
      auto sent = send_with((*members)[i].connection.get(), number, std::span(fds).first(whose == 0 ? 4 : 3));
      if (!sent) return within(me(config) + " lost " + rank_text(config, static_cast<int>(i)), sent.error());
    }
    // One member at a time: the kernel limits how many descriptors of a user may be in flight.
    std::array<std::byte, 1> taken;
    auto heard = receive_with((*members)[i].connection.get(), taken, 0, deadline, config.interrupt);
    if (!heard) return within(me(config) + " lost " + rank_text(config, static_cast<int>(i)), heard.error());
  }
  links.liveness[0].reset();
  return links;
}

Result<NodeLinks> follow(const NodeConfig& config, PeerDirectory& directory, const std::string& key,
                         Deadline deadline) {
  const std::string leader = rank_text(config, 0);
  const auto name = directory.find(key, std::chrono::milliseconds(milliseconds_left(deadline)));
  if (!name && name.error().code == ErrorCode::kTimeout) {
    return Error{ErrorCode::kTimeout, me(config) + " cannot find " + leader +
                                          ": it did not share its memory in time; check that it started"};
  }
  if (!name) return within(me(config), name.error());
  auto connection = seqpacket_socket();
  if (!connection) return within(me(config), connection.error());
  const auto [address, size] = abstract_address(*name);
  if (::connect(connection->get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    Error error = within(me(config) + " cannot share memory with " + leader,
                         system_error(errno, "connect", ErrorCode::kUnreachable));
    error.text += "; if it is on another machine or in another container, use --comm tcp";
    return error;
  }
  const std::string where = me(config) + " received no shared memory from " + leader;
  if (!same_user(connection->get()))
    return Error{ErrorCode::kRefused, where + ": that process belongs to another user"};
  auto own = make_own();
  if (!own) return within(me(config), own.error());
  const auto hello = encode_hello(hello_of(config, config.local_rank));
  const int given[] = {own->doorbell.get(), own->liveness_read.get(), own->buffer.get()};
  if (auto sent = send_with(connection->get(), hello, given); !sent) return within(where, sent.error());

  NodeLinks links;
  for (int whose = 0; whose < config.local_world_size; ++whose) {
    std::array<std::byte, 2> number;
    auto fds = receive_with(connection->get(), number, whose == 0 ? 4 : 3, deadline, config.interrupt);
    if (!fds) return within(where, fds.error());
    links.doorbells.push_back(std::move((*fds)[0]));
    links.liveness.push_back(std::move((*fds)[1]));
    links.buffers.push_back(std::move((*fds)[2]));
    if (whose == 0) links.memory = std::move((*fds)[3]);
  }
  const std::byte taken[] = {std::byte{'t'}};
  if (auto sent = write_all(connection->get(), taken, deadline, config.interrupt); !sent)
    return within(where, sent.error());
  links.liveness[static_cast<std::size_t>(config.local_rank)].reset();
  links.own_liveness = std::move(own->liveness_write);
  return links;
}

}  // namespace

Result<NodeLinks> NodeMeeting::links(const NodeConfig& config) {
  const Deadline deadline = std::chrono::steady_clock::now() + config.start_timeout;
  const std::string key = config.group + "/shm";
  return config.local_rank == 0 ? lead(config, directory_, key, deadline)
                                : follow(config, directory_, key, deadline);
}

}  // namespace ddp::train
