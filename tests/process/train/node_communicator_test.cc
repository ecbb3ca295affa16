#include "apps/train/collectives/cpu/node_communicator.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "apps/train/collectives/cpu/shm_group.h"
#include "apps/train/collectives/cpu/tcp_communicator.h"
#include "apps/train/data/hash.h"
#include "tests/support/catch.h"
#include "tests/unit/apps/train/collectives/rank_threads.h"

// Nodes of ranks as threads (each maps the memory itself) and as processes.

using namespace ddp;
using namespace ddp::train;
using namespace std::chrono_literals;

namespace {

/// Returns nodes of these sizes; ranks are numbered node by node.
NodeMap map_of(const std::vector<int>& sizes, int rank) {
  NodeMap map;
  int next = 0;
  for (const int size : sizes) {
    map.ranks.emplace_back();
    for (int local = 0; local < size; ++local, ++next) {
      if (next == rank) {
        map.node = static_cast<int>(map.ranks.size()) - 1;
        map.local_rank = local;
      }
      map.ranks.back().push_back(next);
    }
  }
  return map;
}

struct Rank {
  NodeMap map;
  std::shared_ptr<ShmGroup> group;
  std::shared_ptr<TcpCommunicator> lane;
  std::unique_ptr<Communicator> world;
};

GroupConfig node_config(const NodeMap& map) {
  GroupConfig config;
  config.job_id = "test";
  config.group = "node" + std::to_string(map.node);
  config.rank = map.local_rank;
  config.names = map.ranks[map.node];
  config.world_size = static_cast<int>(config.names.size());
  config.start_timeout = 200s;
  config.step_timeout = 200s;
  return config;
}

using Change = std::function<void(GroupConfig&)>;

Result<Rank> join(const std::vector<int>& sizes, int rank, PeerDirectory& directory, const Change& change) {
  Rank result;
  result.map = map_of(sizes, rank);
  GroupConfig config = node_config(result.map);
  if (change) change(config);
  auto descriptors = meet_node(config, directory);
  if (!descriptors) return descriptors.error();
  auto group = ShmGroup::open(config, std::move(*descriptors));
  if (!group) return group.error();
  result.group = std::make_shared<ShmGroup>(std::move(*group));
  const auto lane = result.map.lane();
  if (sizes.size() > 1 && !lane.empty()) {
    GroupConfig peers;
    peers.job_id = "test";
    peers.rank = result.map.node;
    peers.world_size = static_cast<int>(sizes.size());
    peers.group = "lane" + std::to_string(result.map.local_rank);
    peers.names = lane;
    peers.start_timeout = 200s;
    peers.step_timeout = config.step_timeout;
    peers.interrupt = config.interrupt;
    auto connected = connect_peers(peers, directory);
    if (!connected) return connected.error();
    result.lane = std::move(*connected);
  }
  result.world = std::make_unique<NodeCommunicator>(result.map, result.group, result.lane);
  return result;
}

using Body = std::function<std::string(Rank)>;

std::vector<std::string> run_nodes(const std::vector<int>& sizes, const Body& body,
                                   const Change& change = {}) {
  const auto in_nodes = [&](int rank, PeerDirectory& directory) {
    return join(sizes, rank, directory, change);
  };
  return run_joined(std::accumulate(sizes.begin(), sizes.end(), 0), in_nodes, body);
}

const std::vector<std::vector<int>> kShapes = {{1}, {2}, {3}, {5}, {2, 2}, {3, 1, 2}, {1, 1}};

}  // namespace

TEST_CASE("sums over shared memory and nodes of any size are right and bit-equal") {
  for (const auto& sizes : kShapes) {
    for (const std::size_t size : {0, 1, 7, 1001, 29'035, 700'001}) {
      std::vector<std::vector<float>> results(16);
      std::atomic<int> world = 0;
      const auto said = run_nodes(sizes, [&](Rank rank) -> std::string {
        Communicator& all = *rank.world;
        world = all.world_size();
        std::vector<float> values = values_of(all.rank(), size);
        std::vector<double> doubles(values.begin(), values.end());
        if (auto done = all.all_reduce_sum(values); !done) return done.error().text;
        if (auto done = all.all_reduce_sum(doubles); !done) return done.error().text;
        for (std::size_t i = 0; i < size; ++i) {
          if (std::abs(values[i] - doubles[i]) > 1e-6) return "wrong sum at " + std::to_string(i);
        }
        results[all.rank()] = std::move(values);
        return "";
      });
      INFO("nodes " << sizes.size() << ", world " << world << ", size " << size);
      CHECK(said == std::vector<std::string>(world));
      double worst = 0;
      for (std::size_t i = 0; i < size; i += 97) {
        double expected = 0;
        for (int rank = 0; rank < world; ++rank)
          expected += static_cast<double>(static_cast<float>(random_unit(3, rank, i) - 0.5));
        worst = std::max(worst, std::abs(results[0][i] - expected));
      }
      CHECK(worst < 1e-5);
      for (int rank = 1; rank < world; ++rank)
        CHECK(results[rank] == results[0]);
    }
  }
}

TEST_CASE("sums over shared memory have the same bits as over TCP") {
  for (const auto& sizes : kShapes) {
    std::atomic<int> world = 0;
    const auto said = run_nodes(sizes, [&](Rank rank) -> std::string {
      Communicator& all = *rank.world;
      world = all.world_size();
      const std::size_t part = 70'003, most = part * static_cast<std::size_t>(all.world_size()) + 1;
      const auto memory = all.share_memory(most * sizeof(float));
      const bool alone = rank.map.ranks[static_cast<std::size_t>(rank.map.node)].size() == 1;
      if (alone != memory.empty()) return "no shared memory";
      if (alone && !all.share_memory(8).empty()) return "memory of one";
      const std::vector<float> mine = values_of(all.rank(), most);
      std::vector<float> own(most);
      const std::span<float> place =
          alone ? std::span<float>(own) : std::span(reinterpret_cast<float*>(memory.data()), most);
      // Ranges that do not start at the beginning, and sums too small for shared memory, are tested, too.
      for (const auto& [at, size] :
           {std::pair<std::size_t, std::size_t>{0, most}, {1, most - 1}, {30'000, most - 30'001}, {5, 9}}) {
        std::vector<float> elsewhere(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(size));
        const std::span<float> values = place.subspan(at, size);
        for (int again = 0; again < 2; ++again) {
          std::copy_n(mine.begin(), size, values.begin());
          if (again == 0) {
            if (auto done = all.all_reduce_sum(elsewhere); !done) return done.error().text;
          }
          if (auto done = all.all_reduce_sum(values); !done) return done.error().text;
          if (!std::ranges::equal(values, elsewhere)) return "other bits";
        }
      }
      std::vector<float> elsewhere = values_of(all.rank(), most - 1);
      const std::span<float> parts = place.subspan(1, most - 1);
      std::ranges::copy(elsewhere, parts.begin());
      if (auto done = all.all_reduce_sum(elsewhere); !done) return done.error().text;
      if (auto done = all.reduce_scatter_sum(parts); !done) return done.error().text;
      if (auto done = all.all_gather_parts(std::as_writable_bytes(parts)); !done) return done.error().text;
      return std::ranges::equal(parts, elsewhere) ? ""
                                                  : "reduce-scatter and all-gather are not the all-reduce";
    });
    INFO("nodes " << sizes.size() << ", world " << world);
    CHECK(said == std::vector<std::string>(world));
  }
}

TEST_CASE("ranks that reduce different parts of the shared memory get an error") {
  const auto said = run_nodes({2}, [](Rank rank) -> std::string {
    const auto memory = rank.world->share_memory(4'000'000);
    const std::span<float> values(reinterpret_cast<float*>(memory.data()), 1'000'000);
    return text_of(rank.world->all_reduce_sum(values.subspan(rank.world->rank() == 0 ? 0 : 64, 500'000)));
  });
  CHECK_THAT(said[0] + said[1], Catch::Matchers::ContainsSubstring("runs another collective"));
}

TEST_CASE("broadcast, gather, all-gather, reduce-scatter and barrier over nodes") {
  for (const auto& sizes : kShapes) {
    const auto said = run_nodes(sizes, [](Rank rank) { return collectives_are_right(*rank.world); });
    CAPTURE(sizes);
    CHECK(said == std::vector<std::string>(said.size()));
  }
}

TEST_CASE("a communicator between nodes sums one contribution of each node") {
  const auto said = run_nodes({2, 3}, [](Rank rank) -> std::string {
    BetweenNodes nodes(rank.map, rank.group, rank.lane);
    if (nodes.world_size() != 2 || nodes.rank() != rank.map.node) return "wrong world";
    for (const std::size_t size : {10, 100'000}) {
      std::vector<float> values(size, rank.map.node == 0 ? 1.5f : 2.25f);
      if (auto done = nodes.all_reduce_sum(values); !done) return done.error().text;
      if (values != std::vector<float>(size, 3.75f)) return "wrong sum";
    }
    std::vector<std::byte> data(100, std::byte(nodes.rank()));
    if (auto done = nodes.broadcast(data, 1); !done) return done.error().text;
    if (data[99] != std::byte{1}) return "wrong broadcast";
    const std::uint64_t mine[] = {7ull + nodes.rank()};
    const auto all = nodes.all_gather(mine);
    if (!all || *all != std::vector<std::uint64_t>{7, 8}) return "wrong all-gather";
    return text_of(nodes.barrier());
  });
  CHECK(said == std::vector<std::string>(5));
}

TEST_CASE("no rank leaves a barrier in shared memory before all ranks have entered it") {
  std::atomic<int> arrived = 0;
  CHECK(run_nodes({4}, [&](Rank rank) { return barriers_hold(*rank.world, arrived); }) ==
        std::vector<std::string>(4));
}

TEST_CASE("all ranks of all nodes name a rank whose process was killed, at once") {
  check_that_all_name_a_killed_rank(
      5, 3, [](int rank, PeerDirectory& directory) -> Result<std::unique_ptr<Communicator>> {
        auto joined = join({2, 3}, rank, directory, {});
        if (!joined) return joined.error();
        return std::move(joined->world);
      });
}

TEST_CASE("a rank of the node that ends is named by its number in the world") {
  const auto said = run_nodes({1, 3}, [](Rank rank) -> std::string {
    if (rank.world->rank() == 2) return text_of(rank.world->barrier());
    if (auto done = rank.world->barrier(); !done) return done.error().text;
    std::string text = text_of(rank.world->barrier());
    return text.substr(0, text.find(')') + 1);
  });
  CHECK(said[2].empty());
  CHECK(said[1] == "rank 1 lost rank 2 (on this node)");
  CHECK(said[3] == "rank 3 lost rank 2 (on this node)");
  CHECK(said[0].substr(0, 18) == "rank 0 lost rank 2");
}

TEST_CASE("a rank that ends during an operation inside its node is named on the other node too") {
  const auto said = run_nodes({2, 2}, [](Rank rank) -> std::string {
    if (rank.world->rank() == 3) return text_of(rank.world->barrier());
    if (auto done = rank.world->barrier(); !done) return done.error().text;
    NodeMap alone;
    alone.ranks = {{0, 1}};
    alone.local_rank = rank.map.local_rank;
    NodeCommunicator node(alone, rank.group, rank.lane);
    std::string text = text_of(node.barrier());
    // The other node's ranks notice the loss only when they communicate with this one.
    if (text.empty()) text = text_of(rank.world->barrier());
    return text.substr(0, 18);
  });
  CHECK(said ==
        std::vector<std::string>{"rank 0 lost rank 3", "rank 1 lost rank 3", "rank 2 lost rank 3", ""});
}

TEST_CASE("a rank that leaves in the middle of a gather ends it on all ranks of all nodes") {
  int revoke[2];
  REQUIRE(::pipe(revoke) == 0);
  for (const auto& sizes : {std::vector<int>{4}, std::vector<int>{2, 2}}) {
    std::promise<void> left;
    const std::shared_future<void> has_left = left.get_future().share();
    const auto said = run_nodes(
        sizes,
        [&](Rank rank) -> std::string {
          if (auto done = rank.world->barrier(); !done) return done.error().text;
          if (rank.world->rank() == 3) (void)!::write(revoke[1], "x", 1);
          // Rank 3 cannot complete the gather without rank 2, and so is still in it when it is revoked.
          if (rank.world->rank() == 2) has_left.wait();
          const std::string text = gather_is_right(*rank.world, 16'000'000, 0);
          if (rank.world->rank() == 3) left.set_value();
          return text;
        },
        [&](GroupConfig& config) {
          config.interrupt = config.names[static_cast<std::size_t>(config.rank)] == 3 ? revoke[0] : -1;
        });
    char byte;
    REQUIRE(::read(revoke[0], &byte, 1) == 1);
    CHECK(said[3] == "rank 3 was revoked during gather");
    for (const int rank : {0, 1, 2}) {
      CHECK_THAT(said[rank], Catch::Matchers::StartsWith("rank " + std::to_string(rank) + " lost rank 3 (") &&
                                 Catch::Matchers::EndsWith(" during gather"));
    }
  }
  ::close(revoke[0]);
  ::close(revoke[1]);
}

TEST_CASE("ranks of a node at different operations get an error") {
  const auto said = run_nodes({2}, [](Rank rank) -> std::string {
    std::vector<float> values(10);
    if (rank.world->rank() == 0) return text_of(rank.world->all_reduce_sum(values));
    return text_of(rank.world->barrier());
  });
  CHECK_THAT(said[0] + said[1],
             Catch::Matchers::ContainsSubstring("(on this node): it runs another collective (were all ranks "
                                                "started with the same options?) during "));
}

TEST_CASE("a silent rank of the node ends the wait at its deadline") {
  std::atomic<bool> over = false;
  const auto said = run_nodes(
      {2},
      [&](Rank rank) -> std::string {
        if (rank.world->rank() == 1) {
          while (!over)
            std::this_thread::yield();
          return "";
        }
        const auto start = std::chrono::steady_clock::now();
        const auto done = rank.world->barrier();
        over = true;
        if (std::chrono::steady_clock::now() - start < 100ms) return "too early";
        return text_of(done);
      },
      [](GroupConfig& config) { config.step_timeout = 100ms; });
  CHECK(said[0] == "rank 0 lost rank 1 (on this node): no progress for 0.1 s during barrier");
}

TEST_CASE("the interrupt ends a wait in shared memory at once") {
  int revoke[2];
  REQUIRE(::pipe2(revoke, O_CLOEXEC) == 0);
  std::atomic<bool> ready = false, over = false;
  const auto start = std::chrono::steady_clock::now();
  const auto said = run_nodes(
      {2},
      [&](Rank rank) -> std::string {
        const std::string met = text_of(rank.world->barrier());
        if (rank.world->rank() == 1) {
          while (!ready)
            std::this_thread::yield();
          (void)!::write(revoke[1], "x", 1);
          while (!over)
            std::this_thread::yield();
          return met;
        }
        ready = true;
        const std::string text = text_of(rank.world->barrier());
        over = true;
        return met + text;
      },
      [&](GroupConfig& config) {
        if (config.rank == 0) config.interrupt = revoke[0];
      });
  CHECK(std::chrono::steady_clock::now() - start < 100s);
  CHECK(said == std::vector<std::string>{"rank 0 was revoked during barrier", ""});
  ::close(revoke[0]);
  ::close(revoke[1]);
}

TEST_CASE("a rank of the node that never starts is named") {
  MemoryDirectory directory;
  const auto short_wait = [](GroupConfig& config) { config.start_timeout = 100ms; };
  const auto leader = join({3}, 0, directory, short_wait);
  REQUIRE_FALSE(leader.has_value());
  CHECK(
      leader.error().text ==
      "rank 0 cannot find rank 1 of the same node; check that it started, and in the same network namespace; "
      "--comm tcp needs no shared memory");
  MemoryDirectory empty;
  const auto member = join({3}, 2, empty, short_wait);
  REQUIRE_FALSE(member.has_value());
  CHECK(member.error().text ==
        "rank 2 cannot find rank 0: it did not share its memory in time; check that it started");
}

TEST_CASE("unrelated connections to the node's socket are refused and do no harm") {
  MemoryDirectory directory;
  std::vector<std::string> said(2);
  const auto start = [&](int rank) {
    return std::thread([&, rank] {
      auto joined = join({2}, rank, directory, {});
      said[rank] = joined ? text_of(joined->world->barrier()) : joined.error().text;
    });
  };
  std::thread zero = start(0);
  const std::string name = *directory.find("node0/shm", 200s);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  std::vector<UniqueFd> strays;
  for (const std::string& rubbish : {std::string("hello"), std::string(36, 'x')}) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) == 0);
    (void)::send(fd.get(), rubbish.data(), rubbish.size(), MSG_NOSIGNAL);
    strays.push_back(std::move(fd));
  }
  std::thread one = start(1);
  zero.join();
  one.join();
  CHECK(said == std::vector<std::string>{"", ""});
}

TEST_CASE("memory of another size is refused, and no rank can shrink it") {
  auto memory = ShmSegment::make(3);
  REQUIRE(memory.has_value());
  CHECK(::ftruncate(memory->get(), 4096) != 0);
  const auto mapped = ShmSegment::map(memory->get(), 2);
  REQUIRE_FALSE(mapped.has_value());
  CHECK_THAT(mapped.error().text,
             Catch::Matchers::EndsWith("; check that all ranks run the same version of train"));
}
