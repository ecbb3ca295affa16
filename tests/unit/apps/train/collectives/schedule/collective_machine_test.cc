#include "apps/train/collectives/schedule/collective_machine.h"

#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

// Whole worlds of machines in one thread. The wires are queues, and a seeded generator chooses which rank
// moves how far.

using namespace ddp;
using namespace ddp::train;

namespace {

class SimulatedWorld {
 public:
  SimulatedWorld(int world, std::uint32_t seed) : chance_(seed), world_(world) {
    for (int rank = 0; rank < world; ++rank) {
      std::map<int, CollectiveMachine::Name> known;
      for (const int peer : peers_of(rank, world))
        known[peer] = {peer, "10.0.0." + std::to_string(peer)};
      machines_.emplace_back(rank, known);
    }
    failures_.resize(world);
    signs_.assign(world, 30);
    gone_.resize(world);
  }

  CollectiveMachine& machine(int rank) { return machines_[rank]; }
  const std::optional<Error>& failure(int rank) const { return failures_[rank]; }
  /// Returns whether `who` failed in the middle of a message, so that a peer cannot know the reason.
  bool failed_mid_message(int who) const { return mid_message_.contains(who); }

  /// Like SIGKILL: bytes that were sent before still arrive.
  void kill(int rank) { gone_[rank] = true; }

  /// Runs until no rank can move. `deaths[rank]` is the number of moves after which that rank dies.
  void run(std::map<int, std::size_t> deaths = {}) {
    std::vector<std::size_t> moves(world_);
    std::size_t idle = 0;
    while (idle < 40 * static_cast<std::size_t>(world_)) {
      const int rank = static_cast<int>(chance_() % static_cast<unsigned>(world_));
      if (const auto death = deaths.find(rank); death != deaths.end() && moves[rank] >= death->second)
        kill(rank);
      if (!gone_[rank] && chance_() % 4 == 0) show_activity(rank);
      const bool moved = !gone_[rank] && (chance_() % 2 ? send(rank) : receive(rank));
      moves[rank] += moved;
      idle = moved ? 0 : idle + 1;
    }
  }

 private:
  using Wire = std::deque<std::byte>;

  std::size_t some(std::size_t most) { return 1 + chance_() % most; }

  template <class Byte>
  static std::size_t size_of(const CollectiveMachine::Pieces<Byte>& pieces) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < pieces.count; ++i)
      size += pieces.pieces[i].size();
    return size;
  }

  bool send(int rank) {
    const auto pieces = machines_[rank].to_send();
    if (pieces.count == 0) return false;
    if (gone_[pieces.peer]) {
      fail(rank, pieces.peer);
      return true;
    }
    Wire& wire = wires_[{rank, pieces.peer}];
    if (wire.size() > 5000) return false;  // full
    std::size_t left = some(size_of(pieces));
    const std::size_t sent = left;
    for (std::size_t i = 0; i < pieces.count; ++i) {
      for (std::size_t at = 0; at < pieces.pieces[i].size() && left > 0; ++at, --left)
        wire.push_back(pieces.pieces[i][at]);
    }
    machines_[rank].sent(sent);
    return true;
  }

  /// Sends a few heartbeats to every peer that can receive one, waiting or not.
  void show_activity(int rank) {
    if (signs_[rank]-- <= 0) return;
    for (const int peer : peers_of(rank, world_)) {
      if (!machines_[rank].between_messages(peer)) continue;
      for (const std::byte byte : CollectiveMachine::heartbeat())
        wires_[{rank, peer}].push_back(byte);
    }
  }

  bool receive(int rank) {
    const auto pieces = machines_[rank].to_receive();
    if (pieces.count == 0) return false;
    Wire& wire = wires_[{pieces.peer, rank}];
    if (wire.empty()) {
      if (!gone_[pieces.peer]) return false;
      fail(rank, pieces.peer);
      return true;
    }
    std::size_t left = std::min(some(size_of(pieces)), wire.size());
    const std::size_t got = left;
    for (std::size_t i = 0; i < pieces.count; ++i) {
      for (std::size_t at = 0; at < pieces.pieces[i].size() && left > 0; ++at, --left) {
        pieces.pieces[i][at] = wire.front();
        wire.pop_front();
      }
    }
    if (auto taken = machines_[rank].received(got); !taken) end(rank, taken.error());
    return true;
  }

  void fail(int rank, int peer) {
    Wire& wire = wires_[{peer, rank}];
    machines_[rank].read_last_message(peer, std::vector<std::byte>(wire.begin(), wire.end()));
    end(rank, machines_[rank].lost(peer, "connection closed"));
  }

  void end(int rank, Error error) {
    failures_[rank] = std::move(error);
    for (const int peer : peers_of(rank, world_)) {
      if (!machines_[rank].may_notify(peer)) {
        mid_message_.insert(rank);
        continue;
      }
      for (const std::byte byte : machines_[rank].last_message())
        wires_[{rank, peer}].push_back(byte);
    }
    gone_[rank] = true;
  }

  std::mt19937 chance_;
  int world_;
  std::vector<CollectiveMachine> machines_;
  std::vector<std::optional<Error>> failures_;
  std::vector<bool> gone_;
  std::vector<int> signs_;
  std::set<int> mid_message_;
  std::map<std::pair<int, int>, Wire> wires_;
};

template <class T>
std::vector<std::vector<T>> values_of(int world, std::size_t size, std::uint32_t seed) {
  std::mt19937 chance(seed);
  std::vector<std::vector<T>> values(world, std::vector<T>(size));
  for (auto& rank : values) {
    for (T& value : rank)
      value = static_cast<T>(chance()) / T(4e9) - T(0.5);
  }
  return values;
}

template <class T>
CollectiveOrder sum_order(std::vector<T>& values, int rank, int world, bool ring, bool gather) {
  CollectiveOrder order;
  order.kind = gather ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter;
  order.data = std::as_writable_bytes(std::span(values));
  order.element = sizeof(T);
  order.parts = world;
  order.add = vector_sum<T>().add;
  order.schedule = ring ? ring_reduce_scatter(rank, world) : halving_reduce_scatter(rank, world);
  const Schedule rest = ring ? ring_all_gather(rank, world) : doubling_all_gather(rank, world);
  if (gather) order.schedule.insert(order.schedule.end(), rest.begin(), rest.end());
  return order;
}

/// Tests all-reduce and, from the same values, reduce-scatter.
template <class T>
void check_sums(int world, std::size_t size, std::uint32_t seed) {
  const bool ring = seed % 2 != 0;
  auto summed = values_of<T>(world, size, seed);
  auto scattered = summed;
  const auto before = summed;
  SimulatedWorld simulated(world, seed);
  for (int rank = 0; rank < world; ++rank)
    simulated.machine(rank).start(sum_order(summed[rank], rank, world, ring, true));
  simulated.run();
  for (int rank = 0; rank < world; ++rank)
    REQUIRE(simulated.machine(rank).done());
  for (int rank = 0; rank < world; ++rank)
    simulated.machine(rank).start(sum_order(scattered[rank], rank, world, ring, false));
  simulated.run();

  double worst = 0;
  for (std::size_t i = 0; i < size; ++i) {
    double expected = 0;
    for (int rank = 0; rank < world; ++rank)
      expected += static_cast<double>(before[rank][i]);
    worst = std::max(worst, std::abs(static_cast<double>(summed[0][i]) - expected));
  }
  CHECK(worst < 1e-5);
  for (int rank = 0; rank < world; ++rank) {
    REQUIRE(simulated.machine(rank).done());
    CHECK_FALSE(simulated.failure(rank));
    CHECK(summed[rank] == summed[0]);
    const PartBounds own = part_bounds(size, world, rank);
    for (std::size_t i = own.begin; i < own.begin + own.size; ++i)
      REQUIRE(scattered[rank][i] == summed[0][i]);
  }
}

}  // namespace

TEST_CASE("sums are right and bit-equal on all ranks for any order of events, also in reduce-scatter") {
  std::uint32_t seed = 0;
  for (const int world : {2, 3, 4, 5, 6, 7, 8, 11}) {
    for (const std::size_t size : {0, 1, 3, 64, 1001}) {
      INFO("world " << world << ", size " << size << ", seed " << seed);
      check_sums<float>(world, size, seed++);
      check_sums<double>(world, size, seed++);
    }
  }
}

TEST_CASE("large messages are reduced in several chunks") {
  check_sums<float>(2, 300'001, 7);
  check_sums<double>(3, 200'003, 8);
}

TEST_CASE("consecutive operations do not mix, although ranks are several operations apart") {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const int world = 2 + static_cast<int>(seed % 5);
    SimulatedWorld simulated(world, seed);
    std::vector<std::vector<int>> rounds(world);
    std::vector<std::vector<std::byte>> data(world, std::vector<std::byte>(1000));
    const auto begin = [&](int rank, int round) {
      CollectiveOrder order;
      order.kind = CollectiveKind::kBroadcast;
      order.data = data[rank];
      const int root = round % world;
      if (rank == root) std::fill(data[rank].begin(), data[rank].end(), std::byte(round));
      order.parts = round % 2 ? 3 : 1;
      order.schedule = round % 2 ? chain_broadcast(rank, world, root, 3) : tree_broadcast(rank, world, root);
      simulated.machine(rank).start(order);
    };
    // A rank begins its next broadcast while others are still in an earlier one: a root waits for no rank.
    std::vector<int> round(world, 0);
    for (int rank = 0; rank < world; ++rank)
      begin(rank, 0);
    for (int turn = 0; turn < 200; ++turn) {
      simulated.run();
      for (int rank = 0; rank < world; ++rank) {
        if (!simulated.machine(rank).done() || round[rank] == 8) continue;
        CHECK(data[rank] == std::vector<std::byte>(1000, std::byte(round[rank])));
        if (++round[rank] < 8) begin(rank, round[rank]);
      }
    }
    CHECK(round == std::vector<int>(world, 8));
  }
}

TEST_CASE("a lost rank ends the operation of all others, which name the rank") {
  int named = 0, others = 0;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    const int world = 2 + static_cast<int>(seed % 9);
    const int dead = static_cast<int>(seed / 9) % world;
    auto values = values_of<float>(world, 500, seed);
    SimulatedWorld simulated(world, seed);
    for (int rank = 0; rank < world; ++rank)
      simulated.machine(rank).start(sum_order(values[rank], rank, world, seed % 2 != 0, true));
    simulated.run({{dead, seed % 7}});
    for (int rank = 0; rank < world; ++rank) {
      if (rank == dead) continue;
      INFO("world " << world << ", dead " << dead << ", rank " << rank << ", seed " << seed);
      // A rank that has finished before has not failed; no rank is left waiting.
      if (simulated.machine(rank).done()) continue;
      REQUIRE(simulated.failure(rank));
      const std::string& text = simulated.failure(rank)->text;
      const std::string start = "rank " + std::to_string(rank) + " lost rank ";
      REQUIRE(text.substr(0, start.size()) == start);
      const int name = std::stoi(text.substr(start.size()));
      ++(name == dead ? named : others);
      if (name != dead) CHECK(simulated.failed_mid_message(name));
    }
  }
  CHECK(named > 4 * others);
}

TEST_CASE("a lost rank at any step of any schedule leaves no rank waiting") {
  enum Algorithm { kRing, kHalving, kTree, kChain, kGather };
  int ended = 0;
  for (const int world : {2, 3, 5, 8}) {
    for (const Algorithm algorithm : {kRing, kHalving, kTree, kChain, kGather}) {
      for (const int dead : {0, world / 2}) {
        // The rank dies one move later each time, until it finishes its work before its death.
        for (std::size_t moves = 0;; ++moves) {
          auto values = values_of<float>(world, 40, 1);
          SimulatedWorld simulated(world, static_cast<std::uint32_t>(moves));
          for (int rank = 0; rank < world; ++rank) {
            CollectiveOrder order = sum_order(values[rank], rank, world, algorithm == kRing, true);
            if (algorithm == kTree || algorithm == kChain) {
              order.kind = CollectiveKind::kBroadcast;
              order.parts = algorithm == kChain ? 3 : 1;
              order.schedule =
                  algorithm == kChain ? chain_broadcast(rank, world, 0, 3) : tree_broadcast(rank, world, 0);
            }
            if (algorithm == kGather) {
              order.kind = CollectiveKind::kGather;
              order.schedule = tree_gather(rank, world, 0);
            }
            simulated.machine(rank).start(order);
          }
          simulated.run({{dead, moves}});
          if (simulated.machine(dead).done()) break;
          for (int rank = 0; rank < world; ++rank) {
            INFO("world " << world << ", way " << algorithm << ", dead " << dead << " after " << moves
                          << ", rank " << rank);
            if (rank == dead || simulated.machine(rank).done()) continue;
            REQUIRE(simulated.failure(rank));
            CHECK(simulated.failure(rank)->code == ErrorCode::kLinkLost);
            ++ended;
          }
        }
      }
    }
  }
  CHECK(ended > 1000);
}

TEST_CASE("a rank at another operation is an error, not a wrong sum") {
  std::vector<float> a(10), b(12);
  SimulatedWorld simulated(2, 1);
  simulated.machine(0).start(sum_order(a, 0, 2, true, true));
  simulated.machine(1).start(sum_order(b, 1, 2, true, true));
  simulated.run();
  int refused = 0;
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(simulated.failure(rank));
    refused += simulated.failure(rank)->code == ErrorCode::kProtocol;
  }
  CHECK(refused >= 1);
}

TEST_CASE("heartbeats before a message are not part of it, for any chunking of the bytes") {
  for (const bool adds : {false, true}) {
    for (std::size_t piece = 1; piece < 200; ++piece) {
      std::vector<float> mine(20, 1), theirs(20, 2);
      CollectiveMachine here(0, {{1, {1, "10.0.0.1:40"}}}), there(1, {{0, {0, "10.0.0.0:40"}}});
      const auto order = [adds](std::vector<float>& values, CollectiveStep step) {
        CollectiveOrder result;
        result.kind = CollectiveKind::kAllReduce;
        result.data = std::as_writable_bytes(std::span(values));
        result.element = sizeof(float);
        result.add = vector_sum<float>().add;
        step.add = adds;
        result.schedule = {step};
        return result;
      };
      there.start(order(theirs, {0, {0, 1}, CollectiveStep::kNobody, {}, false}));
      here.start(order(mine, {CollectiveStep::kNobody, {}, 1, {0, 1}, false}));
      std::vector<std::byte> stream;
      for (int sign = 0; sign < 3; ++sign) {
        const auto bytes = CollectiveMachine::heartbeat();
        stream.insert(stream.end(), bytes.begin(), bytes.end());
      }
      const auto message = there.to_send();
      for (std::size_t i = 0; i < message.count; ++i)
        stream.insert(stream.end(), message.pieces[i].begin(), message.pieces[i].end());
      for (std::size_t at = 0; at < stream.size();) {
        const auto room = here.to_receive();
        REQUIRE(room.count != 0);
        std::size_t got = 0;
        for (std::size_t i = 0; i < room.count; ++i) {
          for (std::byte& byte : room.pieces[i]) {
            if (got == piece || at + got == stream.size()) break;
            byte = stream[at + got++];
          }
        }
        at += got;
        REQUIRE(here.received(got).has_value());
      }
      CHECK(here.done());
      CHECK(mine == std::vector<float>(20, adds ? 3.0f : 2.0f));
    }
  }
}

TEST_CASE("a rank that a peer has given up reports this") {
  CollectiveMachine machine(2, {{1, {1, "10.0.0.1:40"}}});
  CollectiveMachine other(1, {{0, {2, "10.0.0.2:40"}}});
  (void)other.lost(0, "no data for 60 s");
  const auto word = other.last_message();
  machine.read_last_message(1, word);
  CHECK(machine.lost(1, "connection closed").text ==
        "rank 2 was reported lost by rank 1 as silent or in another collective (was this process stopped?) "
        "during barrier");
}

TEST_CASE("the last message of a peer is found behind a message that was still in transit") {
  CollectiveMachine machine(2, {{1, {1, "10.0.0.1:40"}}, {3, {3, "10.0.0.3:40"}}});
  CollectiveOrder order;
  order.kind = CollectiveKind::kBarrier;
  order.schedule = {{1, {0, 1}, 3, {0, 1}, false}};
  machine.start(order);
  CollectiveMachine other(1, {});
  other.start(order);
  std::vector<std::byte> stream;
  const auto message = other.to_send();
  stream.insert(stream.end(), message.pieces[0].begin(), message.pieces[0].end());
  other.sent(stream.size());
  (void)other.lost(7, "connection closed");
  CHECK(other.may_notify(2));
  const auto word = other.last_message();
  stream.insert(stream.end(), word.begin(), word.end());
  machine.read_last_message(1, stream);
  CHECK(machine.lost(1, "connection reset").text ==
        "rank 2 lost rank 7 (reported by rank 1): connection lost during barrier");
}
