#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ddp::launcher {

/// The nodes' answers about a job that hangs, collected on the master (sans-IO).
class HangReport {
 public:
  /// `host`: the rank's node. An empty `state` changes nothing.
  void add(std::uint32_t rank, const std::string& host, const std::string& state);
  /// Adds a live rank, for which no answer may come.
  void expect(std::uint32_t rank, const std::string& host) { add(rank, host, "no answer"); }

  /// Adds the stacks of a rank. They are only searched for known causes (hint()).
  void add_stacks(std::uint32_t rank, const std::string& text);

  /// Adds the number of steps that a rank has completed.
  void add_step(std::uint32_t rank, std::uint64_t step) { steps_[rank] = step; }
  /// Ranks that have completed fewer steps than others; empty if all are equal or no steps are known.
  std::vector<std::uint32_t> behind() const;

  bool empty() const { return ranks_.empty(); }
  /// One line for each group of ranks that do the same, the smallest group first: "rank 7 on gpu02: running".
  std::vector<std::string> lines() const;
  /// "no worker printed anything or used CPU time for 60 s", the ranks that are behind if ranks report steps,
  /// and then lines().
  std::string text(std::chrono::nanoseconds quiet) const;
  /// A suggestion for the user, if the stacks show a known cause; else empty.
  std::string hint() const;

 private:
  struct RankState {
    std::string host;
    std::string state;
  };
  struct StateGroup {
    std::string state;
    std::vector<int> ranks;
    std::vector<std::string> hosts;  ///< sorted by their ranks, without duplicates
  };
  std::vector<StateGroup> groups() const;

  std::string behind_text() const;

  std::map<std::uint32_t, RankState> ranks_;
  std::map<std::uint32_t, std::uint64_t> steps_;
  std::vector<int> store_clients_;  ///< ranks that are still connecting to a store
};

}  // namespace ddp::launcher
