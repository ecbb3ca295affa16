#include "apps/train/collectives/cpu/node_communicator.h"

#include <algorithm>
#include <utility>

namespace ddp::train {

namespace {

/// A sum up to this size uses one lane: more connections would only wake more ranks.
constexpr std::size_t kOneLaneBytes = 64 * 1024;

bool is_loss(ErrorCode code) {
  return code != ErrorCode::kCancelled;
}

/// A failed lane ends its node, and a failed node ends its lanes. The loss that the node recorded takes
/// precedence: a lane may only see the end of ranks that left because of it.
Result<> after_lane(Result<> done, ShmGroup& group, const TcpCommunicator& lane, int own) {
  if (done || !is_loss(done.error().code)) return done;
  if (group.lost_rank() >= 0 && group.lost_rank() != lane.lost_rank()) return group.ended_by_mark();
  group.abandon(lane.lost_rank() >= 0 ? lane.lost_rank() : own);
  return done;
}

Result<> after_node(Result<> done, const ShmGroup& group, TcpCommunicator* lane) {
  if (!done && lane && is_loss(done.error().code) && group.lost_rank() >= 0) lane->abandon(group.lost_rank());
  return done;
}

template <class T>
std::span<T> part_of(std::span<T> values, int parts, int number) {
  const PartBounds bounds = part_bounds(values.size(), parts, number);
  return values.subspan(bounds.begin, bounds.size);
}

/// Sums the parts over the nodes, then gives all parts to all ranks of the node.
template <class T>
Result<> sum_between(std::span<T> values, int lanes, int own, ShmGroup& group, TcpCommunicator* lane) {
  if (group.rank() < lanes) {
    auto done = after_lane(lane->all_reduce_sum(part_of(values, lanes, group.rank())), group, *lane, own);
    if (!done) return done;
  }
  return after_node(group.gather_parts(std::as_writable_bytes(values), sizeof(T), lanes), group, lane);
}

int lanes_for(std::size_t bytes, const NodeMap& map) {
  return bytes <= kOneLaneBytes ? 1 : map.lanes();
}

/// Gathers one row of numbers from each node's first rank to all ranks of all nodes.
Result<std::vector<std::uint64_t>> gather_between(std::span<const std::uint64_t> row, const NodeMap& map,
                                                  ShmGroup& group, TcpCommunicator* lane) {
  std::vector<std::uint64_t> all(row.size() * map.ranks.size());
  if (group.rank() == 0) {
    auto gathered = lane->all_gather(row);
    if (!gathered) return after_lane(gathered.error(), group, *lane, map.rank()).error();
    all = std::move(*gathered);
  }
  auto done = after_node(group.broadcast(std::as_writable_bytes(std::span(all)), 0), group, lane);
  if (!done) return done.error();
  return all;
}

Result<> barrier_of_nodes(const NodeMap& map, ShmGroup& group, TcpCommunicator* lane) {
  if (auto done = after_node(group.barrier(), group, lane); !done) return done;
  if (group.rank() == 0) {
    if (auto done = after_lane(lane->barrier(), group, *lane, map.rank()); !done) return done;
  }
  return after_node(group.barrier(), group, lane);
}

}  // namespace

int NodeMap::world_size() const {
  std::size_t size = 0;
  for (const auto& of_node : ranks)
    size += of_node.size();
  return static_cast<int>(size);
}

int NodeMap::lanes() const {
  std::size_t least = ranks.front().size();
  for (const auto& of_node : ranks)
    least = std::min(least, of_node.size());
  return static_cast<int>(least);
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
  return std::ranges::max(ranks, {}, &std::vector<int>::size).size();
}

std::vector<int> NodeMap::lane() const {
  std::vector<int> result;
  if (local_rank >= lanes()) return result;
  for (const auto& of_node : ranks)
    result.push_back(of_node[static_cast<std::size_t>(local_rank)]);
  return result;
}

NodeCommunicator::NodeCommunicator(NodeMap map, std::shared_ptr<ShmGroup> group,
                                   std::shared_ptr<TcpCommunicator> lane)
    : map_(std::move(map)), group_(std::move(group)), lane_(std::move(lane)) {
  if (!lane_) return;
  // While blocked on one transport, keep the other alive. Neither calls the other while it is at work itself.
  group_->while_waiting([lane = std::weak_ptr(lane_)] {
    if (const auto there = lane.lock()) there->show_activity();
  });
  lane_->while_waiting([group = std::weak_ptr(group_)] {
    if (const auto there = group.lock()) there->show_activity();
  });
}

int NodeCommunicator::lost_rank() const {
  const int here = group_->lost_rank();
  return here >= 0 || !lane_ ? here : lane_->lost_rank();
}

template <class T>
Result<> NodeCommunicator::reduce(std::span<T> values) {
  group_->call_it(CollectiveKind::kAllReduce);
  const auto bytes = std::as_writable_bytes(values);
  if (!many_nodes()) return after_node(group_->all_reduce(bytes, vector_sum<T>()), *group_, lane_.get());
  const int lanes = lanes_for(bytes.size(), map_);
  auto done = after_node(group_->reduce_parts(bytes, vector_sum<T>(), lanes), *group_, lane_.get());
  if (!done) return done;
  return sum_between(values, lanes, rank(), *group_, lane_.get());
}

Result<> NodeCommunicator::all_reduce_sum(std::span<float> values) {
  return reduce(values);
}
Result<> NodeCommunicator::all_reduce_sum(std::span<double> values) {
  return reduce(values);
}

template <class T>
Result<> NodeCommunicator::scatter(std::span<T> values) {
  if (many_nodes()) return reduce(values);
  group_->call_it(CollectiveKind::kReduceScatter);
  auto done = group_->reduce_parts(std::as_writable_bytes(values), vector_sum<T>(), group_->size());
  return after_node(std::move(done), *group_, lane_.get());
}

Result<> NodeCommunicator::reduce_scatter_sum(std::span<float> values) {
  return scatter(values);
}
Result<> NodeCommunicator::reduce_scatter_sum(std::span<double> values) {
  return scatter(values);
}

Result<> NodeCommunicator::all_gather_parts(std::span<std::byte> parts) {
  if (many_nodes()) return Communicator::all_gather_parts(parts);
  group_->call_it(CollectiveKind::kAllGather);
  return after_node(group_->gather_parts(parts, 1, group_->size()), *group_, lane_.get());
}

Result<> NodeCommunicator::gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) {
  const auto [node, local] = map_.place_of(root);
  if (many_nodes() && local != 0) return Communicator::gather(mine, all, root);
  group_->call_it(CollectiveKind::kGather);
  if (!many_nodes()) return after_node(group_->gather(mine, all, local), *group_, lane_.get());
  const std::size_t widest = map_.widest(), nodes = rank() == root ? map_.ranks.size() : 0;
  std::vector<std::byte> row, rows;  // of the node's ranks; of all nodes, each as long as the longest
  for (std::size_t at = 0; at < mine.size(); at += gather_piece()) {
    const auto piece = mine.subspan(at, std::min(gather_piece(), mine.size() - at));
    row.resize(group_->rank() == 0 ? piece.size() * widest : 0);
    rows.resize(row.size() * nodes);
    if (auto done = after_node(group_->gather(piece, row, 0), *group_, lane_.get()); !done) return done;
    if (group_->rank() != 0) continue;
    if (auto done = after_lane(lane_->gather(row, rows, node), *group_, *lane_, rank()); !done) return done;
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
  group_->call_it(CollectiveKind::kBarrier);
  const auto shared = group_->share(bytes);
  if (shared) return *shared;
  (void)after_node(shared.error(), *group_, lane_.get());  // the next operation reports it
  return {};
}

Result<> NodeCommunicator::broadcast(std::span<std::byte> data, int root) {
  group_->call_it(CollectiveKind::kBroadcast);
  const auto [node, local] = map_.place_of(root);
  if (map_.node == node) {
    auto done = after_node(group_->broadcast(data, local), *group_, lane_.get());
    if (!done) return done;
  }
  if (many_nodes() && group_->rank() == 0) {
    if (auto done = after_lane(lane_->broadcast(data, node), *group_, *lane_, rank()); !done) return done;
  }
  if (map_.node == node) return {};
  return after_node(group_->broadcast(data, 0), *group_, lane_.get());
}

Result<std::vector<std::uint64_t>> NodeCommunicator::all_gather(std::span<const std::uint64_t> mine) {
  group_->call_it(CollectiveKind::kAllGather);
  const std::size_t widest = map_.widest();  // every node's row gets the length of the longest
  std::vector<std::uint64_t> row(mine.size() * static_cast<std::size_t>(group_->size()));
  auto done = after_node(group_->all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(row))),
                         *group_, lane_.get());
  if (!done) return done.error();
  row.resize(mine.size() * widest);
  if (many_nodes()) {
    auto rows = gather_between(row, map_, *group_, lane_.get());
    if (!rows) return rows.error();
    row = std::move(*rows);
  }
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
  group_->call_it(CollectiveKind::kBarrier);
  if (!many_nodes()) return after_node(group_->barrier(), *group_, lane_.get());
  return barrier_of_nodes(map_, *group_, lane_.get());
}

BetweenNodes::BetweenNodes(NodeMap map, std::shared_ptr<ShmGroup> group,
                           std::shared_ptr<TcpCommunicator> lane)
    : map_(std::move(map)), group_(std::move(group)), lane_(std::move(lane)) {}

int BetweenNodes::lost_rank() const {
  const int here = group_->lost_rank();
  return here >= 0 || !lane_ ? here : lane_->lost_rank();
}

template <class T>
Result<> BetweenNodes::reduce(std::span<T> values) {
  group_->call_it(CollectiveKind::kAllReduce);
  return sum_between(values, lanes_for(values.size_bytes(), map_), map_.rank(), *group_, lane_.get());
}

Result<> BetweenNodes::all_reduce_sum(std::span<float> values) {
  return reduce(values);
}
Result<> BetweenNodes::all_reduce_sum(std::span<double> values) {
  return reduce(values);
}

Result<> BetweenNodes::broadcast(std::span<std::byte> data, int root) {
  group_->call_it(CollectiveKind::kBroadcast);
  if (group_->rank() == 0) {
    if (auto done = after_lane(lane_->broadcast(data, root), *group_, *lane_, map_.rank()); !done)
      return done;
  }
  return after_node(group_->broadcast(data, 0), *group_, lane_.get());
}

Result<std::vector<std::uint64_t>> BetweenNodes::all_gather(std::span<const std::uint64_t> mine) {
  group_->call_it(CollectiveKind::kAllGather);
  return gather_between(mine, map_, *group_, lane_.get());
}

Result<> BetweenNodes::barrier() {
  group_->call_it(CollectiveKind::kBarrier);
  return barrier_of_nodes(map_, *group_, lane_.get());
}

}  // namespace ddp::train
