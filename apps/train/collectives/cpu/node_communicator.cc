#include "apps/train/collectives/cpu/node_communicator.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "base/crypto.h"
#include "base/files.h"

namespace ddp::train {

namespace {

/// A sum up to this size uses one lane: more connections would only wake more ranks.
constexpr std::size_t kOneLaneBytes = 64 * 1024;

bool is_loss(ErrorCode code) {
  return code != ErrorCode::kCancelled;
}

}  // namespace

int NodeMap::world_size() const {
  std::size_t size = 0;
  for (const auto& of_node : ranks)
    size += of_node.size();
  return static_cast<int>(size);
}

int NodeMap::lanes() const {
  return static_cast<int>(std::ranges::min_element(ranks, {}, &std::vector<int>::size)->size());
}

std::pair<int, int> NodeMap::place_of(int rank) const {
  for (std::size_t of_node = 0; of_node < ranks.size(); ++of_node) {
    const auto found = std::ranges::find(ranks[of_node], rank);
    if (found != ranks[of_node].end())
      return {static_cast<int>(of_node), static_cast<int>(found - ranks[of_node].begin())};
  }
  return {};
}

std::size_t NodeMap::widest() const {
  return std::ranges::max_element(ranks, {}, &std::vector<int>::size)->size();
}

std::vector<int> NodeMap::lane() const {
  std::vector<int> result;
  if (local_rank >= lanes()) return result;
  for (const auto& of_node : ranks)
    result.push_back(of_node[static_cast<std::size_t>(local_rank)]);
  return result;
}

NodeTransport::NodeTransport(NodeMap map, std::shared_ptr<ShmGroup> group,
                             std::shared_ptr<TcpCommunicator> lane)
    : map_(std::move(map)), group_(std::move(group)), lane_(std::move(lane)) {}

int NodeTransport::lost_rank() const {
  const int here = group_->lost_rank();
  return here >= 0 || !lane_ ? here : lane_->lost_rank();
}

/// The loss that the node recorded takes precedence: a lane may only see the end of ranks that left because
/// of it.
Result<> NodeTransport::after_lane(Result<> done) {
  if (done || !is_loss(done.error().code)) return done;
  if (group_->lost_rank() >= 0 && group_->lost_rank() != lane_->lost_rank()) return group_->ended_by_mark();
  group_->abandon(lane_->lost_rank() >= 0 ? lane_->lost_rank() : map_.rank());
  return done;
}

Result<> NodeTransport::after_node(Result<> done) {
  if (!done && lane_ && is_loss(done.error().code) && group_->lost_rank() >= 0)
    lane_->abandon(group_->lost_rank());
  return done;
}

Result<> NodeTransport::sum_between(NumberSpan values, int lanes) {
  if (group_->rank() < lanes) {
    DDP_TRY(after_lane(values.typed([&](auto numbers) {
      const PartBounds part = part_bounds(numbers.size(), lanes, group_->rank());
      return lane_->all_reduce_sum(numbers.subspan(part.begin, part.size));
    })));
  }
  return after_node(group_->gather_parts(values.bytes, size_of(values.type), lanes));
}

int NodeTransport::lanes_for(std::size_t bytes) const {
  return bytes <= kOneLaneBytes ? 1 : map_.lanes();
}

Result<std::vector<std::uint64_t>> NodeTransport::gather_between(std::span<const std::uint64_t> row) {
  std::vector<std::uint64_t> all(row.size() * map_.ranks.size());
  if (group_->rank() == 0) {
    auto gathered = lane_->all_gather(row);
    if (!gathered) return after_lane(gathered.error()).error();
    all = std::move(*gathered);
  }
  DDP_TRY(after_node(group_->broadcast(std::as_writable_bytes(std::span(all)), 0)));
  return all;
}

Result<> NodeTransport::barrier_of_nodes() {
  DDP_TRY(after_node(group_->barrier()));
  if (group_->rank() == 0) DDP_TRY(after_lane(lane_->barrier()));
  return after_node(group_->barrier());
}

NodeCommunicator::NodeCommunicator(NodeMap map, std::shared_ptr<ShmGroup> group,
                                   std::shared_ptr<TcpCommunicator> lane)
    : NodeTransport(std::move(map), std::move(group), std::move(lane)) {
  if (!lane_) return;
  // While blocked on one transport, keep the other alive. Neither calls the other while it is at work itself.
  group_->while_waiting([lane = std::weak_ptr(lane_)] {
    if (const auto there = lane.lock()) there->show_activity();
  });
  lane_->while_waiting([group = std::weak_ptr(group_)] {
    if (const auto there = group.lock()) there->show_activity();
  });
}

Result<> NodeCommunicator::all_reduce_sum(NumberSpan values) {
  group_->set_kind(CollectiveKind::kAllReduce);
  if (!many_nodes()) return after_node(group_->all_reduce(values.bytes, vector_sum(values)));
  const int lanes = lanes_for(values.bytes.size());
  DDP_TRY(after_node(group_->reduce_parts(values.bytes, vector_sum(values), lanes)));
  return sum_between(values, lanes);
}

Result<> NodeCommunicator::reduce_scatter_sum(NumberSpan values) {
  if (many_nodes()) return all_reduce_sum(values);
  group_->set_kind(CollectiveKind::kReduceScatter);
  auto done = group_->reduce_parts(values.bytes, vector_sum(values), group_->size());
  return after_node(std::move(done));
}

Result<> NodeCommunicator::all_gather_parts(std::span<std::byte> parts) {
  if (many_nodes()) return Communicator::all_gather_parts(parts);
  group_->set_kind(CollectiveKind::kAllGather);
  return after_node(group_->gather_parts(parts, 1, group_->size()));
}

Result<> NodeCommunicator::gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) {
  const auto [node, local] = map_.place_of(root);
  // The rows go over the lane of the nodes' first ranks, so only one of these can be the root.
  if (many_nodes() && local != 0) return Communicator::gather(mine, all, root);
  group_->set_kind(CollectiveKind::kGather);
  if (!many_nodes()) return after_node(group_->gather(mine, all, local));
  const std::size_t widest = map_.widest(), nodes = rank() == root ? map_.ranks.size() : 0;
  std::vector<std::byte> row, rows;  // of the node's ranks; of all nodes, each as long as the longest
  for (std::size_t at = 0; at < mine.size(); at += gather_piece()) {
    const auto piece = mine.subspan(at, std::min(gather_piece(), mine.size() - at));
    row.resize(group_->rank() == 0 ? piece.size() * widest : 0);
    rows.resize(row.size() * nodes);
    DDP_TRY(after_node(group_->gather(piece, row, 0)));
    if (group_->rank() != 0) continue;
    DDP_TRY(after_lane(lane_->gather(row, rows, node)));
    for (std::size_t from = 0; from < nodes; ++from) {
      const std::byte* next = rows.data() + from * row.size();
      for (const int of : map_.ranks[from]) {
        copy_bytes(all.data() + static_cast<std::size_t>(of) * mine.size() + at, next, piece.size());
        next += piece.size();
      }
    }
  }
  return {};
}

std::span<std::byte> NodeCommunicator::share_memory(std::size_t bytes) {
  group_->set_kind(CollectiveKind::kBarrier);
  const auto shared = group_->share(bytes);
  if (shared) return *shared;
  (void)after_node(shared.error());  // the next operation reports it
  return {};
}

Result<> NodeCommunicator::broadcast(std::span<std::byte> data, int root) {
  group_->set_kind(CollectiveKind::kBroadcast);
  const auto [node, local] = map_.place_of(root);
  // The root's node comes first: its first rank needs the data for the lane.
  if (map_.node == node) DDP_TRY(after_node(group_->broadcast(data, local)));
  if (many_nodes() && group_->rank() == 0) DDP_TRY(after_lane(lane_->broadcast(data, node)));
  if (map_.node == node) return {};
  return after_node(group_->broadcast(data, 0));
}

Result<std::vector<std::uint64_t>> NodeCommunicator::all_gather(std::span<const std::uint64_t> mine) {
  group_->set_kind(CollectiveKind::kAllGather);
  const std::size_t widest = map_.widest();  // every node's row gets the length of the longest
  std::vector<std::uint64_t> row(mine.size() * static_cast<std::size_t>(group_->size()));
  DDP_TRY(after_node(group_->all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(row)))));
  row.resize(mine.size() * widest);
  if (many_nodes()) row = DDP_TRY(gather_between(row));
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(world_size()));
  for (std::size_t node = 0; node < map_.ranks.size(); ++node) {
    for (std::size_t local = 0; local < map_.ranks[node].size(); ++local) {
      const auto from = row.begin() + static_cast<std::ptrdiff_t>((node * widest + local) * mine.size());
      std::copy_n(from, mine.size(),
                  all.begin() + map_.ranks[node][local] * static_cast<std::ptrdiff_t>(mine.size()));
    }
  }
  return all;
}

Result<> NodeCommunicator::barrier() {
  group_->set_kind(CollectiveKind::kBarrier);
  if (!many_nodes()) return after_node(group_->barrier());
  return barrier_of_nodes();
}

Result<> BetweenNodes::all_reduce_sum(NumberSpan values) {
  group_->set_kind(CollectiveKind::kAllReduce);
  return sum_between(values, lanes_for(values.bytes.size()));
}

Result<> BetweenNodes::broadcast(std::span<std::byte> data, int root) {
  group_->set_kind(CollectiveKind::kBroadcast);
  if (group_->rank() == 0) DDP_TRY(after_lane(lane_->broadcast(data, root)));
  return after_node(group_->broadcast(data, 0));
}

Result<std::vector<std::uint64_t>> BetweenNodes::all_gather(std::span<const std::uint64_t> mine) {
  group_->set_kind(CollectiveKind::kAllGather);
  return gather_between(mine);
}

Result<> BetweenNodes::barrier() {
  group_->set_kind(CollectiveKind::kBarrier);
  return barrier_of_nodes();
}

namespace {

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
  DDP_TRY(wait_readable(fds, deadline, interrupt));
  iovec part{data.data(), data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return connection_error(errno);
  // They are collected before any check, so that an error closes them.
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

/// Makes this rank's descriptors; the write end of its pipe goes to `node`.
Result<RankDescriptors> make_own(NodeDescriptors& node) {
  RankDescriptors own{UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), {}, {}};
  if (!own.doorbell) return system_error(errno, "eventfd");
  auto [read_end, write_end] = DDP_TRY(make_pipe("pipe"));
  own.liveness = std::move(read_end);
  node.own_liveness = std::move(write_end);
  own.buffer = DDP_TRY(make_shm_buffer());
  return own;
}

RankDescriptors descriptors_of(std::vector<UniqueFd>& received) {
  return {std::move(received[0]), std::move(received[1]), std::move(received[2])};
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

Result<NodePeer> hear_member(const GroupConfig& config, int listener, Deadline deadline) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd || !same_user(fd.get())) return NodePeer{};
  PeerHello hello{.magic = 0};
  const Deadline hello_deadline = std::min(deadline, std::chrono::steady_clock::now() + kHelloTimeout);
  auto fds = receive_with(fd.get(), bytes_of(hello), 3, hello_deadline, config.interrupt);
  if (!fds && fds.error().code == ErrorCode::kCancelled) return fds.error();
  if (!fds) return NodePeer{};
  const int rank = static_cast<int>(hello.rank);
  if (rank <= 0 || rank >= config.world_size || hello != hello_of(config, rank)) return NodePeer{};
  return NodePeer{rank, std::move(fd), std::move(*fds)};
}

Result<std::vector<NodePeer>> gather_members(const GroupConfig& config, int listener, Deadline deadline) {
  std::vector<NodePeer> members(static_cast<std::size_t>(config.world_size));
  for (int missing = config.world_size - 1; missing > 0;) {
    const int fds[] = {listener};
    const auto ready = wait_readable(fds, deadline, config.interrupt);
    if (!ready && ready.error().code == ErrorCode::kTimeout) {
      const auto absent =
          std::find_if(members.begin() + 1, members.end(), [](const NodePeer& m) { return !m.connection; });
      return error_of(ErrorCode::kTimeout, config.me(), " cannot find ",
                      config.rank_text(static_cast<int>(absent - members.begin())),
                      " of the same node; check that it started, and in the same "
                      "network namespace; --comm tcp needs no shared memory");
    }
    DDP_TRY(within(config.me(), ready));
    auto member = DDP_TRY(within(config.me(), hear_member(config, listener, deadline)));
    if (member.local_rank < 0) continue;
    NodePeer& entry = members[static_cast<std::size_t>(member.local_rank)];
    if (entry.connection) continue;  // a second connection of the same rank is a stray one
    entry = std::move(member);
    --missing;
  }
  return members;
}

Result<NodeDescriptors> lead(const GroupConfig& config, PeerDirectory& directory, const std::string& key,
                             Deadline deadline) {
  const auto name = "ddp-train-" + DDP_TRY(within(config.me(), random_text(16)));
  auto listener = DDP_TRY(within(config.me(), seqpacket_socket()));
  const auto [address, size] = abstract_address(name);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(listener.get(), config.world_size) != 0)
    return within(config.me(), system_error(errno, "unix socket"));

  NodeDescriptors node;
  auto memory = DDP_TRY(within(config.me(), ShmSegment::make(config.world_size)));
  node.memory = std::move(memory);
  auto own = DDP_TRY(within(config.me(), make_own(node)));
  DDP_TRY(within(config.me(), directory.share(key, name)));

  auto members = DDP_TRY(gather_members(config, listener.get(), deadline));
  node.ranks.push_back(std::move(own));
  for (std::size_t i = 1; i < members.size(); ++i)
    node.ranks.push_back(descriptors_of(members[i].fds));
  for (std::size_t i = 1; i < members.size(); ++i) {
    for (std::size_t whose = 0; whose < members.size(); ++whose) {
      const std::byte number[] = {std::byte(whose & 0xff), std::byte(whose >> 8)};
      const RankDescriptors& rank = node.ranks[whose];
      const int fds[] = {rank.doorbell.get(), rank.liveness.get(), rank.buffer.get(), node.memory.get()};
      DDP_TRY(
          within(config.me() + " lost " + config.rank_text(static_cast<int>(i)),
                 send_with(members[i].connection.get(), number, std::span(fds).first(whose == 0 ? 4 : 3))));
    }
    // One member at a time: the kernel limits how many descriptors of a user may be in flight.
    std::array<std::byte, 1> taken;
    DDP_TRY(within(config.me() + " lost " + config.rank_text(static_cast<int>(i)),
                   receive_with(members[i].connection.get(), taken, 0, deadline, config.interrupt)));
  }
  node.ranks[0].liveness.reset();
  return node;
}

Result<NodeDescriptors> follow(const GroupConfig& config, PeerDirectory& directory, const std::string& key,
                               Deadline deadline) {
  const std::string leader = config.rank_text(0);
  const auto name = DDP_TRY(
      find_shared(directory, key, std::chrono::milliseconds(milliseconds_left(deadline)), config.me(),
                  " cannot find " + leader + ": it did not share its memory in time; check that it started"));
  auto connection = DDP_TRY(within(config.me(), seqpacket_socket()));
  const auto [address, size] = abstract_address(name);
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    Error error = within(config.me() + " cannot share memory with " + leader,
                         system_error(errno, "connect", ErrorCode::kUnreachable));
    error.text += "; if it is on another machine or in another container, use --comm tcp";
    return error;
  }
  const std::string where = config.me() + " received no shared memory from " + leader;
  if (!same_user(connection.get()))
    return error_of(ErrorCode::kRefused, where, ": that process belongs to another user");
  NodeDescriptors node;
  const auto own = DDP_TRY(within(config.me(), make_own(node)));
  PeerHello hello = hello_of(config, config.rank);
  const int given[] = {own.doorbell.get(), own.liveness.get(), own.buffer.get()};
  DDP_TRY(within(where, send_with(connection.get(), bytes_of(hello), given)));

  // The socket keeps the order of the messages, so the number in them is not read. This rank's own
  // descriptors come back as well; the copies in `own` are closed at the end.
  for (int whose = 0; whose < config.world_size; ++whose) {
    std::array<std::byte, 2> number;
    auto fds = DDP_TRY(within(
        where, receive_with(connection.get(), number, whose == 0 ? 4 : 3, deadline, config.interrupt)));
    node.ranks.push_back(descriptors_of(fds));
    if (whose == 0) node.memory = std::move(fds[3]);
  }
  const std::byte taken[] = {std::byte{'t'}};
  DDP_TRY(within(where, write_all(connection.get(), taken, deadline, config.interrupt)));
  node.ranks[static_cast<std::size_t>(config.rank)].liveness.reset();
  return node;
}

}  // namespace

Result<NodeDescriptors> meet_node(const GroupConfig& config, PeerDirectory& directory) {
  const Deadline deadline = std::chrono::steady_clock::now() + config.start_timeout;
  const std::string key = config.group + "/shm";
  return config.rank == 0 ? lead(config, directory, key, deadline) : follow(config, directory, key, deadline);
}

}  // namespace ddp::train
