#include "apps/train/collectives/schedule/collective_machine.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "base/result.h"

namespace ddp::train {
namespace {

int wrap(int number, int world) {
  return (number % world + world) % world;
}

/// Each step passes on the part of the one before. A sum begins with the neighbor's part, so that it ends
/// with the own one.
Schedule ring_steps(int rank, int world, bool add) {
  Schedule steps;
  const int next = wrap(rank + 1, world), previous = wrap(rank - 1, world);
  for (int part = wrap(rank - (add ? 1 : 0), world), s = 1; s < world; ++s, part = wrap(part - 1, world))
    steps.push_back({next, {part, 1}, previous, {wrap(part - 1, world), 1}, add});
  return steps;
}

/// Returns the distances and then the world size: the limits that steps may reach up to.
std::vector<int> distances_and_world(int world) {
  std::vector<int> result = halving_distances(world);
  result.push_back(world);
  return result;
}

}  // namespace

std::vector<int> halving_distances(int world) {
  std::vector<int> distances;
  for (int distance = world; distance > 1;) {
    distance = (distance + 1) / 2;
    distances.push_back(distance);
  }
  std::reverse(distances.begin(), distances.end());
  return distances;
}

Schedule ring_reduce_scatter(int rank, int world) {
  return ring_steps(rank, world, true);
}

Schedule ring_all_gather(int rank, int world) {
  return ring_steps(rank, world, false);
}

Schedule halving_reduce_scatter(int rank, int world) {
  Schedule steps;
  const auto reach = distances_and_world(world);
  // Sums of the parts rank … rank+reach are on their way here; each step halves the reach.
  for (std::size_t k = reach.size() - 1; k-- > 0;) {
    const int distance = reach[k];
    const int count = reach[k + 1] - distance;
    const int to = wrap(rank + distance, world);
    steps.push_back({to, {to, count}, wrap(rank - distance, world), {rank, count}, true});
  }
  return steps;
}

Schedule doubling_all_gather(int rank, int world) {
  Schedule steps;
  const auto reach = distances_and_world(world);
  for (std::size_t k = 0; k + 1 < reach.size(); ++k) {
    const int distance = reach[k];
    const int count = reach[k + 1] - distance;
    const int from = wrap(rank + distance, world);
    steps.push_back({wrap(rank - distance, world), {rank, count}, from, {from, count}, false});
  }
  return steps;
}

Schedule tree_gather(int rank, int world, int root) {
  const auto distances = halving_distances(world);
  const auto parent_of = [&](int place) {
    for (const int distance : distances)
      if (place == distance || place == world - distance) return 0;
    return place - *std::prev(std::ranges::upper_bound(distances, place));
  };
  const int place = wrap(rank - root, world);
  Schedule steps(1);
  // A rank sends its own part first, and each part from behind while it receives the next one. All ranks do
  // so in the order of the places; a parent's place is smaller.
  if (place > 0) {
    steps[0].send_to = wrap(parent_of(place) + root, world);
    steps[0].sent = {rank, 1};
  }
  for (int from = place + 1; from < world; ++from) {
    int child = from;
    while (child != 0 && parent_of(child) != place)
      child = parent_of(child);
    if (child == 0) continue;
    const PartRange part{wrap(from + root, world), 1};
    steps.back().receive_from = wrap(child + root, world);
    steps.back().received = part;
    if (place > 0)
      steps.push_back({steps[0].send_to, part, CollectiveStep::kNobody, {}, false});
    else
      steps.emplace_back();
  }
  if (steps.back() == CollectiveStep{}) steps.pop_back();
  return steps;
}

Schedule tree_broadcast(int rank, int world, int root) {
  Schedule steps;
  const auto reach = distances_and_world(world);
  const int place = wrap(root - rank, world);  // the path of part `root` in doubling_all_gather
  for (std::size_t k = 0; k + 1 < reach.size(); ++k) {
    const int distance = reach[k];
    const int count = reach[k + 1] - distance;
    if (place < count)
      steps.push_back({wrap(rank - distance, world), {0, 1}, CollectiveStep::kNobody, {}, false});
    if (place >= distance && place < reach[k + 1])
      steps.push_back({CollectiveStep::kNobody, {}, wrap(rank + distance, world), {0, 1}, false});
  }
  return steps;
}

Schedule chain_broadcast(int rank, int world, int root, int parts) {
  Schedule steps;
  const int place = wrap(rank - root, world);
  const bool receives = place > 0;
  const bool sends = place + 1 < world;
  for (int part = 0; part <= parts; ++part) {
    CollectiveStep step;
    if (receives && part < parts) {
      step.receive_from = wrap(rank - 1, world);
      step.received = {part, 1};
    }
    if (sends && part > 0) {
      step.send_to = wrap(rank + 1, world);
      step.sent = {part - 1, 1};
    }
    if (step != CollectiveStep{}) steps.push_back(step);
  }
  return steps;
}

std::vector<int> peers_of(int rank, int world) {
  std::vector<int> peers;
  for (const int distance : halving_distances(world)) {
    peers.push_back(wrap(rank + distance, world));
    peers.push_back(wrap(rank - distance, world));
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

PartBounds part_bounds(std::size_t count, int parts, int number) {
  const std::size_t base = count / static_cast<std::size_t>(parts);
  const std::size_t larger = count % static_cast<std::size_t>(parts);
  const std::size_t n = static_cast<std::size_t>(number);
  return {n * base + std::min(n, larger), base + (n < larger ? 1 : 0)};
}

namespace {

/// Bytes added at once: large enough for few system calls, small enough for the second-level cache.
constexpr std::size_t kChunk = 256 * 1024;

struct MessageHead {
  std::uint32_t number = 0;
  std::uint32_t kind = 0;
  std::uint64_t size = 0;
};

CollectiveMachine::Header make_header(std::uint32_t number, CollectiveKind kind, std::uint64_t size) {
  return std::bit_cast<CollectiveMachine::Header>(
      MessageHead{number, static_cast<std::uint32_t>(kind), size});
}

MessageHead read_header(const std::byte* from) {
  MessageHead header;
  std::memcpy(&header, from, sizeof header);
  return header;
}

bool is_lost(const MessageHead& header) {
  return header.kind == static_cast<std::uint32_t>(CollectiveKind::kLost) && header.size < 1u << 31;
}

/// Appends the bytes of two pieces laid end to end, from `skip` on, at most `size`.
template <class Byte>
void append_rest(const std::array<std::span<std::byte>, 2>& payload, std::size_t skip, std::size_t size,
                 CollectiveMachine::Pieces<Byte>& into) {
  for (const std::span<std::byte>& piece : payload) {
    const std::size_t begin = std::min(skip, piece.size());
    const std::size_t taken = std::min(size, piece.size() - begin);
    if (taken != 0) into.pieces[into.count++] = piece.subspan(begin, taken);
    skip -= begin;
    size -= taken;
  }
}

}  // namespace

std::string_view kind_text(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce: return "all-reduce";
    case CollectiveKind::kBroadcast: return "broadcast";
    case CollectiveKind::kAllGather: return "all-gather";
    case CollectiveKind::kBarrier: return "barrier";
    case CollectiveKind::kReduceScatter: return "reduce-scatter";
    case CollectiveKind::kGather: return "gather";
    case CollectiveKind::kAllToAll: return "all-to-all";
    case CollectiveKind::kSendReceive: return "send/receive";
    case CollectiveKind::kAlive:
    case CollectiveKind::kLost: break;
  }
  return "?";
}

CollectiveMachine::CollectiveMachine(int rank, std::map<int, Name> peers)
    : rank_(rank), peers_(std::move(peers)) {}

void CollectiveMachine::start(CollectiveOrder order) {
  DDP_REQUIRE(done(), at_, order_.schedule.size(), order.kind);
  DDP_REQUIRE(order.parts > 0 && order.element > 0 && order.data.size() % order.element == 0, order.parts,
              order.data.size(), order.element);
  order_ = std::move(order);
  ++number_;
  at_ = 0;
  enter_step();
}

CollectiveMachine::Direction CollectiveMachine::half_of(const PartRange& range) const {
  const std::size_t elements = order_.data.size() / order_.element;
  const int straight = std::min(range.count, order_.parts - range.first);
  const auto piece = [&](int first, int count) -> std::span<std::byte> {
    if (count <= 0) return {};
    const PartBounds begin = part_bounds(elements, order_.parts, first);
    const PartBounds last = part_bounds(elements, order_.parts, first + count - 1);
    return order_.data.subspan(begin.begin * order_.element,
                               (last.begin + last.size - begin.begin) * order_.element);
  };
  Direction half;
  half.payload = {piece(range.first, straight), piece(0, range.count - straight)};
  const std::size_t size = half.payload[0].size() + half.payload[1].size();
  half.header = make_header(number_, order_.kind, size);
  half.total = kHeaderSize + size;
  return half;
}

void CollectiveMachine::enter_step() {
  out_ = {};
  in_ = {};
  scratch_size_ = 0;
  scratch_done_ = 0;
  if (done()) return;
  if (step().send_to != CollectiveStep::kNobody) out_ = half_of(step().sent);
  if (step().receive_from != CollectiveStep::kNobody) in_ = half_of(step().received);
}

void CollectiveMachine::advance() {
  if (!out_.complete() || !in_.complete()) return;
  // No loop: each step has a message, with a header at least, so the next one cannot be complete yet.
  ++at_;
  enter_step();
}

CollectiveMachine::Pieces<const std::byte> CollectiveMachine::to_send() {
  Pieces<const std::byte> result;
  if (done() || out_.complete()) return result;
  result.peer = step().send_to;
  if (out_.done < kHeaderSize) result.pieces[result.count++] = std::span(out_.header).subspan(out_.done);
  append_rest(out_.payload, out_.paid(), out_.total, result);
  return result;
}

void CollectiveMachine::sent(std::size_t bytes) {
  DDP_REQUIRE(bytes <= out_.total - out_.done, bytes, out_.done, out_.total);
  out_.done += bytes;
  advance();
}

CollectiveMachine::Pieces<std::byte> CollectiveMachine::to_receive() {
  Pieces<std::byte> result;
  if (done() || in_.complete()) return result;
  result.peer = step().receive_from;
  if (in_.done < kHeaderSize) result.pieces[result.count++] = std::span(heard_).subspan(in_.done);
  if (!step().add) {
    append_rest(in_.payload, in_.paid(), in_.total, result);
    return result;
  }
  if (scratch_done_ == scratch_size_) {
    scratch_done_ = 0;
    scratch_size_ = std::min(kChunk, in_.total - kHeaderSize - in_.paid());
    if (scratch_.size() < scratch_size_) scratch_ = AlignedBuffer<std::byte>(kChunk);
  }
  if (scratch_size_ != 0)
    result.pieces[result.count++] = scratch_.span().subspan(scratch_done_, scratch_size_ - scratch_done_);
  return result;
}

/// Adds the received chunk to this rank's values, which end at the position of in_.
void CollectiveMachine::add_scratch() {
  Pieces<std::byte> own;
  append_rest(in_.payload, in_.paid() - scratch_size_, scratch_size_, own);
  std::size_t from = 0;
  for (std::size_t i = 0; i < own.count; ++i) {
    order_.add(own.pieces[i].data(), scratch_.data() + from, own.pieces[i].size());
    from += own.pieces[i].size();
  }
}

Result<> CollectiveMachine::received(std::size_t bytes) {
  const std::size_t paid_before = in_.paid();
  DDP_REQUIRE(bytes <= in_.total - in_.done, bytes, in_.done, in_.total);
  in_.done += bytes;
  if (in_.done >= kHeaderSize && heard_ == heartbeat()) return skip_heartbeat();
  // Bytes behind a foreign header may already lie in the order's data: they are of no use after an error.
  if (in_.done >= kHeaderSize && heard_ != in_.header) {
    const int peer = step().receive_from;
    const MessageHead header = read_header(heard_.data());
    if (!is_lost(header)) {
      return lost(peer, "it runs another collective (were all ranks started with the same options?)",
                  ErrorCode::kProtocol);
    }
    lost_ = static_cast<int>(header.size);
    reporter_ = name_of(peer);
    return lost(peer, "connection closed");
  }
  if (step().add) {
    scratch_done_ += in_.paid() - paid_before;
    if (scratch_size_ != 0 && scratch_done_ == scratch_size_) add_scratch();
  }
  advance();
  return {};
}

/// The bytes after the heartbeat lie where the payload belongs, and begin with the next header.
Result<> CollectiveMachine::skip_heartbeat() {
  std::vector<std::byte> behind;
  behind.reserve(in_.paid());
  if (step().add) {
    behind.assign(scratch_.data(), scratch_.data() + in_.paid());
  } else {
    Pieces<std::byte> pieces;
    append_rest(in_.payload, 0, in_.paid(), pieces);
    for (std::size_t i = 0; i < pieces.count; ++i)
      behind.insert(behind.end(), pieces.pieces[i].begin(), pieces.pieces[i].end());
  }
  in_.done = 0;
  scratch_size_ = scratch_done_ = 0;
  for (std::span<const std::byte> left = behind; !left.empty();) {
    const auto room = to_receive();
    std::size_t put = 0;
    for (std::size_t i = 0; i < room.count; ++i) {
      const auto part = left.subspan(put, std::min(left.size() - put, room.pieces[i].size()));
      std::copy(part.begin(), part.end(), room.pieces[i].begin());
      put += part.size();
    }
    left = left.subspan(put);
    // These are fewer bytes than a whole message, so the step does not end in this loop.
    DDP_TRY(received(put));
  }
  return {};
}

void CollectiveMachine::read_last_message(int peer, std::span<const std::byte> left) {
  // A message that was in flight when the peer failed comes before the peer's last message.
  if (!done() && step().receive_from == peer && in_.done > 0)
    left = left.subspan(std::min(left.size(), in_.total - in_.done));
  while (left.size() >= kHeaderSize) {
    const MessageHead header = read_header(left.data());
    if (is_lost(header)) {
      lost_ = static_cast<int>(header.size);
      reporter_ = name_of(peer);
      return;
    }
    left = left.subspan(std::min<std::uint64_t>(left.size(), kHeaderSize + header.size));
  }
}

int CollectiveMachine::name_of(int peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? peer : found->second.rank;
}

Error CollectiveMachine::lost(int peer, std::string_view reason, ErrorCode code) {
  const int name = name_of(peer);
  if (lost_ == rank_ && reporter_ >= 0) {
    return {code, concat("rank ", rank_, " was reported lost by rank ", reporter_,
                         " as silent or in another collective (was this process stopped?) during ",
                         kind_text(order_.kind))};
  }
  if (lost_ < 0) {
    lost_ = name;
    reporter_ = -1;
  }
  std::string text = concat("rank ", rank_, " lost rank ", lost_, " (");
  const auto known = std::find_if(peers_.begin(), peers_.end(),
                                  [this](const auto& entry) { return entry.second.rank == lost_; });
  if (known != peers_.end()) {
    text += known->second.address + "): " + std::string(reason);
  } else {
    text += concat("reported by rank ", reporter_ < 0 ? name : reporter_, "): connection lost");
  }
  return {code, text + " during " + std::string(kind_text(order_.kind))};
}

Error CollectiveMachine::lost_elsewhere(int rank) {
  lost_ = rank;
  return error_of(ErrorCode::kLinkLost, "rank ", rank_, " lost rank ", rank, " during ",
                  kind_text(order_.kind));
}

Error CollectiveMachine::revoked() const {
  return error_of(ErrorCode::kCancelled, "rank ", rank_, " was revoked during ", kind_text(order_.kind));
}

bool CollectiveMachine::between_messages(int peer) const {
  return done() || step().send_to != peer || out_.done == 0 || out_.complete();
}

CollectiveMachine::Header CollectiveMachine::heartbeat() {
  return make_header(0, CollectiveKind::kAlive, 0);
}

CollectiveMachine::Header CollectiveMachine::last_message() const {
  return make_header(number_, CollectiveKind::kLost, static_cast<std::uint64_t>(lost_));
}

namespace {

template <class T>
void add(std::byte* to, const std::byte* from, std::size_t bytes) {
  T* a = reinterpret_cast<T*>(to);
  const T* b = reinterpret_cast<const T*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(T); ++i)
    a[i] += b[i];
}

template <class T>
void sum(std::byte* to, const std::byte* left, const std::byte* right, std::size_t bytes) {
  T* result = reinterpret_cast<T*>(to);
  const T* a = reinterpret_cast<const T*>(left);
  const T* b = reinterpret_cast<const T*>(right);
  for (std::size_t i = 0; i < bytes / sizeof(T); ++i)
    result[i] = a[i] + b[i];
}

}  // namespace

template <class T>
VectorSum vector_sum() {
  return {sizeof(T), &add<T>, &sum<T>};
}

template VectorSum vector_sum<float>();
template VectorSum vector_sum<double>();

}  // namespace ddp::train
