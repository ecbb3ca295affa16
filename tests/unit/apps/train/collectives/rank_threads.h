#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/hash.h"
#include "apps/train/world/store_host.h"
#include "tests/support/catch.h"
#include "tests/unit/apps/train/collectives/memory_directory.h"

// Ranks as threads of a test. What a rank has to say is a text, since Catch's macros belong to the main
// thread.

namespace ddp::train {

template <class T = float>
std::vector<T> values_of(int rank, std::size_t size) {
  std::vector<T> values(size);
  for (std::size_t i = 0; i < size; ++i)
    values[i] = static_cast<T>(random_unit(3, static_cast<std::uint64_t>(rank), i) - 0.5);
  return values;
}

inline std::string text_of(const Result<>& result) {
  return result ? "" : result.error().text;
}

/// Runs one thread per rank. Returns the text of each `body(join(rank, directory))`, or the error of `join`.
template <class Join, class Body>
std::vector<std::string> run_joined(int world, const Join& join, const Body& body) {
  MemoryDirectory directory;
  std::vector<std::string> said(static_cast<std::size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      auto joined = join(rank, directory);
      said[static_cast<std::size_t>(rank)] = joined ? body(std::move(*joined)) : joined.error().text;
    });
  }
  for (auto& thread : ranks)
    thread.join();
  return said;
}

/// Gathers `size` bytes of each rank to `root`. All ranks call it. Returns the error; empty: the bytes are
/// right.
inline std::string gather_is_right(Communicator& all, std::size_t size, int root) {
  const auto byte_of = [](int rank, std::size_t at) {
    return static_cast<std::byte>(at * 7 + at / 1000 + static_cast<std::size_t>(rank));
  };
  std::vector<std::byte> mine(size);
  for (std::size_t at = 0; at < size; ++at)
    mine[at] = byte_of(all.rank(), at);
  const auto world = static_cast<std::size_t>(all.world_size());
  std::vector<std::byte> whole(all.rank() == root ? size * world : 0);
  if (auto done = all.gather(mine, whole, root); !done) return done.error().text;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (whole[i] != byte_of(static_cast<int>(i / size), i % size)) return "wrong byte " + std::to_string(i);
  }
  return "";
}

/// Runs every collective except the all-reduce, of small and large messages. Returns the first mistake.
inline std::string collectives_are_right(Communicator& all) {
  const int world = all.world_size();
  for (int root = 0; root < world; ++root) {
    const bool large = root == 0 || root == world - 1;  // large parts take long
    for (const std::size_t size :
         large ? std::vector<std::size_t>{100'003, 1'000'003} : std::vector<std::size_t>{1003}) {
      std::vector<std::byte> data(size, std::byte(all.rank()));
      if (auto done = all.broadcast(data, root); !done) return done.error().text;
      if (data != std::vector<std::byte>(size, std::byte(root))) return "wrong broadcast";
    }
    for (const std::size_t size :
         large ? std::vector<std::size_t>{0, 1, 2'500'003} : std::vector<std::size_t>{0, 1}) {
      if (auto wrong = gather_is_right(all, size, root); !wrong.empty()) return wrong;
    }
  }
  const std::uint64_t mine[] = {1000ull + all.rank(), ~0ull - all.rank()};
  const auto gathered = all.all_gather(mine);
  if (!gathered) return gathered.error().text;
  for (int rank = 0; rank < world; ++rank) {
    if ((*gathered)[2 * rank] != 1000ull + rank || (*gathered)[2 * rank + 1] != ~0ull - rank)
      return "wrong all-gather";
  }
  for (const std::size_t part : {1000, 50'000}) {
    std::vector<float> values = values_of(all.rank(), static_cast<std::size_t>(world) * part);
    std::vector<float> parts = values;
    if (auto done = all.all_reduce_sum(values); !done) return done.error().text;
    if (auto done = all.reduce_scatter_sum(std::span(parts)); !done) return done.error().text;
    if (auto done = all.all_gather_parts(std::as_writable_bytes(std::span(parts))); !done)
      return done.error().text;
    if (parts != values) return "reduce-scatter and all-gather are not the all-reduce";
  }
  return text_of(all.barrier());
}

/// Four ranks call it. Returns a text if a rank leaves a barrier before all have entered it.
inline std::string barriers_hold(Communicator& all, std::atomic<int>& arrived) {
  for (int round = 1; round <= 200; ++round) {
    ++arrived;
    if (auto done = all.barrier(); !done) return done.error().text;
    if (arrived < 4 * round) return "left early in round " + std::to_string(round);
    if (auto done = all.barrier(); !done) return done.error().text;
  }
  return "";
}

/// Ranks meet through a real store and sum until one of them, which is a process, kills itself behind its
/// 17th sum. Checks that all others name it at once.
template <class Join>
void check_that_all_name_a_killed_rank(int world, int dead, const Join& join) {
  using namespace std::chrono_literals;
  const auto joined = [&](int rank, std::uint16_t port) -> Result<std::unique_ptr<Communicator>> {
    auto client = rendezvous::TcpStoreClient::connect("127.0.0.1", port, 200s);
    if (!client) return client.error();
    auto directory = StoreDirectory::open(std::move(*client), "job-1", 2, rank, 200s);
    if (!directory) return directory.error();
    return join(rank, **directory);
  };
  int port_pipe[2];
  REQUIRE(::pipe(port_pipe) == 0);
  // The fork precedes all threads of this process; the port arrives when the store exists.
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::uint16_t port = 0;
    if (::read(port_pipe[0], &port, sizeof port) != sizeof port) ::_exit(1);
    const auto ranks = joined(dead, port);
    if (!ranks) ::_exit(1);
    std::vector<float> values(100'000, 1.0f);
    for (int step = 0; step < 17; ++step)
      (void)(*ranks)->all_reduce_sum(values);
    ::raise(SIGKILL);
  }
  auto store = StoreHost::open(0);
  REQUIRE(store.has_value());
  const std::uint16_t port = (*store)->port();
  REQUIRE(::write(port_pipe[1], &port, sizeof port) == sizeof port);
  std::vector<std::string> said(static_cast<std::size_t>(world));
  std::vector<int> steps(said.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    if (rank == dead) continue;
    threads.emplace_back([&, rank] {
      const auto ranks = joined(rank, port);
      std::vector<float> values(100'000, 1.0f);
      Result<> done = ranks ? Result<>() : Result<>(ranks.error());
      for (; done; ++steps[rank])
        done = (*ranks)->all_reduce_sum(values);
      said[rank] = done.error().text;
    });
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  const auto death = std::chrono::steady_clock::now();
  for (auto& thread : threads)
    thread.join();
  CHECK(std::chrono::steady_clock::now() - death < 100s);  // far below the step's deadline of 200 s
  ::close(port_pipe[0]);
  ::close(port_pipe[1]);
  CHECK(WIFSIGNALED(status));
  for (int rank = 0; rank < world; ++rank) {
    if (rank == dead) continue;
    INFO("rank " << rank);
    // A rank may see the death while the end of its 17th sum is still in transit. The last sum failed.
    CHECK((steps[rank] == 17 || steps[rank] == 18));
    CHECK_THAT(said[rank], Catch::Matchers::StartsWith("rank " + std::to_string(rank) + " lost rank " +
                                                       std::to_string(dead) + " ("));
    CHECK_THAT(said[rank], Catch::Matchers::EndsWith(" during all-reduce"));
  }
}

}  // namespace ddp::train
