#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apps/train/collectives/communicator.h"

namespace ddp::train {

/// Ranks as threads of one process, for tests: sums in rank order, and a record of each rank's calls.
class ThreadWorld {
 public:
  explicit ThreadWorld(int ranks) : ranks_(ranks), given_(ranks) {}

  class Rank final : public Communicator {
   public:
    Rank(ThreadWorld& world, int rank) : world_(world), rank_(rank) {}
    int rank() const override { return rank_; }
    int world_size() const override { return world_.ranks_; }
    Result<> all_reduce_sum(NumberSpan values) override {
      return values.typed([this](auto numbers) { return sum(numbers); });
    }
    Result<> broadcast(std::span<std::byte> data, int root) override {
      const auto all = world_.exchange(rank_, {data.begin(), data.end()});
      std::memcpy(data.data(), all[root].data(), data.size());
      return {};
    }
    Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override {
      ++world_.gathers;
      const auto bytes = std::as_bytes(mine);
      std::vector<std::uint64_t> numbers;
      for (const auto& part : world_.exchange(rank_, {bytes.begin(), bytes.end()})) {
        numbers.resize(numbers.size() + mine.size());
        std::memcpy(&*(numbers.end() - static_cast<std::ptrdiff_t>(mine.size())), part.data(), part.size());
      }
      return numbers;
    }
    Result<> barrier() override {
      world_.exchange(rank_, {});
      return {};
    }
    Result<Handle> start_all_reduce(NumberSpan values) override {
      return values.typed([this](auto numbers) { return start(numbers); });
    }
    Result<> wait(Handle handle) override {
      events.push_back("wait " + std::to_string(handle));
      return {};
    }

    std::vector<std::string> events;

   private:
    template <class T>
    Result<Handle> start(std::span<T> values) {
      events.push_back("start " + std::to_string(values.size()));
      if (auto done = sum(values); !done) return done.error();
      return ++handles_;
    }
    template <class T>
    Result<> sum(std::span<T> values) {
      const auto bytes = std::as_bytes(values);
      const auto all = world_.exchange(rank_, {bytes.begin(), bytes.end()});
      for (std::size_t i = 0; i < values.size(); ++i) {
        T total = 0;
        for (const auto& part : all) {
          T one;
          std::memcpy(&one, part.data() + i * sizeof(T), sizeof(T));
          total += one;
        }
        values[i] = total;
      }
      return {};
    }

    ThreadWorld& world_;
    int rank_;
    Handle handles_ = 0;
  };

  std::atomic<int> gathers = 0;  ///< all_gather calls of all ranks

  /// Calls body(communicator) on a thread per rank.
  void run(const std::function<void(Rank&)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        Rank communicator(*this, rank);
        body(communicator);
      });
    }
    for (std::thread& thread : threads)
      thread.join();
  }

 private:
  std::vector<std::vector<std::byte>> exchange(int rank, std::vector<std::byte> mine) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !leaving_; });
    given_[rank] = std::move(mine);
    if (++arrived_ == ranks_) {
      leaving_ = true;
      changed_.notify_all();
    }
    changed_.wait(lock, [this] { return leaving_; });
    auto all = given_;
    if (--arrived_ == 0) {
      leaving_ = false;
      changed_.notify_all();
    }
    return all;
  }

  int ranks_;
  std::vector<std::vector<std::byte>> given_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  bool leaving_ = false;
};

}  // namespace ddp::train
