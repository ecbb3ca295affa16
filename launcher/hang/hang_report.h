#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ddp::launcher {

/// What the nodes told of a job that hangs, collected on the master (sans-IO).
class HangReport {
 public:
  /// `host`: where the rank runs. An empty `state` changes nothing.
  void add(std::uint32_t rank, const std::string& host, const std::string& state);
  /// A living rank of which nothing may come any more.
  void expect(std::uint32_t rank, const std::string& host) { add(rank, host, "no answer"); }

  /// Stacks of a rank: looked at only for what is worth a hint.
  void add_stacks(std::uint32_t rank, const std::string& text);

  /// Steps that a rank has completed.
  void add_step(std::uint32_t rank, std::uint64_t step) { steps_[rank] = step; }
  /// Ranks that have completed fewer than others; none: they are equal, or not known.
  std::vector<std::uint32_t> behind() const;

  bool empty() const { return ranks_.empty(); }
  /// Ranks that do the same in one line, who differs first: "rank 7 on gpu02: running".
  std::vector<std::string> lines() const;
  /// "no worker printed anything or used CPU time for 60 s", or of ranks that report their steps who is
  /// behind; and the first lines.
  std::string text(std::chrono::nanoseconds quiet) const;
  /// What to try, where the stacks tell; empty: they do not.
  std::string hint() const;

 private:
  struct RankState {
    std::string host;
    std::string state;
  };
  struct StateGroup {
    std::string state;
    std::vector<int> ranks;
    std::vector<std::string> hosts;  ///< in the order of their ranks, each once
  };
  std::vector<StateGroup> groups() const;

  std::string behind_text() const;

  std::map<std::uint32_t, RankState> ranks_;
  std::map<std::uint32_t, std::uint64_t> steps_;
  std::vector<int> store_clients_;  ///< ranks that are still connecting to a store
};

}  // namespace ddp::launcher
