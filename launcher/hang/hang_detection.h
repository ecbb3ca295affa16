#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// A process of a worker's tree, as one sample saw it.
struct ProcessTime {
  pid_t pid = 0;
  std::uint64_t started = 0;        ///< identifies the process, together with the pid
  std::chrono::nanoseconds cpu{0};  ///< used since its start, by it and by its children that have ended
  bool traced = false;              ///< a debugger has stopped it at the moment
  bool leader = false;              ///< a live worker: nobody has reaped it, so its pid is no stranger's
};

/// Decides on a node whether its workers are active (sans-IO; docs/users/hang.md). Activity is any of: bytes
/// that a worker wrote, CPU time beyond that of an idle process, a debugger at work in a worker, output that
/// the agent holds back. Activity is observed only when sampling.
///
/// The driver's duties, every period():
///   1. Call `begin_sample`.
///   2. Call `add_sample` for the leaders and `pacemakers()`. If that shows no activity, call it for the
///      other processes of the last whole sample. If these show none either and `whole_due`, call it for the
///      whole trees.
///   3. Call `settle`, and notify the master if it returns a change.
/// Between samples the driver calls `record_activity` for activity that it observes.
class ActivityTracker {
 public:
  using Time = std::chrono::nanoseconds;  ///< the node's CLOCK_MONOTONIC

  /// An idle process runs watchdogs and timers: an idle PyTorch worker with its loaders was measured at 0.2 %
  /// of a core, mostly gloo's thread, which wakes 100 times a second.
  static constexpr int kIdleShare = 100;  ///< one hundredth of a core counts as idle

  ActivityTracker(std::chrono::milliseconds timeout, Time now);

  /// Returns the time between two samples: an eighth of the timeout, between 0.2 s and 5 s.
  static std::chrono::milliseconds period(std::chrono::milliseconds timeout);

  /// Records activity at `now`.
  void record_activity(Time now);
  /// Starts a sample. If it comes far too late, this process was stopped, and perhaps the workers, too:
  /// counting then begins anew.
  void begin_sample(Time now);
  /// Returns true if one of the processes was active since the last sample. A sample that is not `whole`
  /// counts only leaders and processes of the last whole one: another pid may be a stranger's by now.
  bool add_sample(std::span<const ProcessTime> processes, bool whole, Time now);
  /// Finding the trees reads every process of the machine. Therefore a quarter of the timeout lies between
  /// two whole samples, a minute at most.
  bool whole_due(Time now) const;
  /// Processes that were seen at work, and were in the trees at the last whole sample. If sampling them first
  /// shows activity, no other process is sampled.
  const std::vector<pid_t>& pacemakers() const { return pacemakers_; }

  struct QuietChange {
    bool quiet = false;
    Time since{0};  ///< time of the last activity
    bool operator==(const QuietChange&) const = default;
  };
  /// Returns the state for the master if it has changed. Quiet is reported after half of the timeout, so that
  /// a short pause of the job causes no traffic.
  std::optional<QuietChange> poll_change(Time now);

  Time last_activity() const { return last_activity_; }

 private:
  /// A leaky bucket: CPU time flows in, the share of an idle process flows out, and an overflow means
  /// activity.
  struct Meter {
    std::uint64_t started = 0;
    Time seen{0};
    Time cpu{0};
    Time level{0};
  };
  bool fill(Meter& meter, const ProcessTime& process, Time now) const;

  Time timeout_;
  Time burst_;  ///< capacity of the bucket
  Time last_whole_;
  Time last_activity_;
  Time last_sample_;
  bool sampled_whole_ = false;
  std::map<pid_t, Meter> meters_;  ///< of the leaders and the processes of the last whole sample
  std::uint64_t newest_ = 0;       ///< the latest ProcessTime::started of that sample
  std::vector<pid_t> pacemakers_;
  bool reported_quiet_ = false;
};

/// The nodes' answers about a job that hangs, collected on the master (sans-IO).
class HangReport {
 public:
  /// `host`: the rank's node. An empty `state` changes nothing.
  void add(std::uint32_t rank, const std::string& host, const std::string& state) {
    if (!state.empty()) ranks_[rank] = RankState{host, state};
  }
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

/// Decides on the master whether the job hangs (sans-IO). It hangs when every node with workers has reported
/// that it is quiet, and the last activity of all nodes is older than the timeout. One object for each
/// attempt.
///
/// The driver's duties: pass every event in the order of arrival; call `hangs` no later than `deadline()`; do
/// not call it again after it returned true.
class HangDetector {
 public:
  using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC

  HangDetector() = default;  ///< never finds a hang
  /// `ranks`: how many workers each node starts.
  HangDetector(std::chrono::milliseconds timeout, std::vector<std::uint32_t> ranks, Time now);

  /// `since`: the latest possible time of the node's last activity, on the master's clock.
  void quiet(std::size_t node, Time since);
  void alive(std::size_t node) {  ///< active again, until a time that its next `quiet` reports
    if (node < nodes_.size()) nodes_[node].quiet = false;
  }
  /// The end of a rank is activity, too. A node without workers is ignored from then on.
  void rank_ended(std::size_t node, Time now);
  void node_gone(std::size_t node, Time now);

  /// When the job counts as hanging without further activity; unset while a node is active.
  std::optional<Time> deadline() const;
  /// True: the job hangs. A call that comes much too late means that the master was stopped, with messages
  /// unread and output held back: counting then begins anew.
  bool hangs(Time now);

  Time last_activity() const { return last_activity_; }
  bool has_ranks(std::size_t node) const { return node < nodes_.size() && nodes_[node].ranks > 0; }

 private:
  struct Node {
    std::uint32_t ranks = 0;
    bool quiet = false;
  };
  std::vector<Node> nodes_;
  Time timeout_{0};
  Time margin_{0};  ///< the master may learn of activity this much later
  Time last_activity_{0};
};

/// The master's part in hang detection, for one attempt (sans-IO): detects a hang, selects the nodes to
/// inspect, and summarizes their answers as text.
class HangInvestigation {
 public:
  using Time = HangDetector::Time;
  struct NodeShare {
    std::string host;
    std::uint32_t first_rank = 0;
    std::uint32_t ranks = 0;
  };

  /// Time for the nodes to inspect their workers; py-spy and gdb take seconds each.
  static constexpr std::chrono::seconds kInspectTime{14};
  /// Additional time for the answers to arrive.
  static constexpr std::chrono::seconds kInspectSlack{1};

  HangInvestigation() = default;  ///< never finds a hang
  HangInvestigation(std::chrono::milliseconds timeout, std::vector<NodeShare> nodes, Time now);

  void quiet(std::size_t node, Time since) { detector_.quiet(node, since); }
  void alive(std::size_t node) { detector_.alive(node); }
  /// A rank of the node has ended: call it once for each.
  void rank_ended(std::size_t node, Time now) { detector_.rank_ended(node, now); }
  void node_gone(std::size_t node, Time now) {
    detector_.node_gone(node, now);
    asked_.erase(node);
  }

  /// When to call `hangs`; during an inspection, when it is over without the missing answers.
  std::optional<Time> deadline() const { return inspect_due_ ? inspect_due_ : detector_.deadline(); }
  bool hangs(Time now) { return detector_.hangs(now); }

  /// Starts the inspection. Returns the nodes with live workers; the caller sends each of them an Inspect
  /// with kInspectTime. `ended`: ranks that have ended.
  std::vector<std::size_t> begin(const std::set<std::uint32_t>& ended, Time now);
  bool inspecting() const { return inspect_due_.has_value(); }
  void answer(std::size_t node, const rendezvous::Inspection& inspection);
  /// Returns whether the inspection is over: every asked node has answered completely or is lost, or its time
  /// is up.
  bool complete(Time now) const { return inspecting() && (asked_.empty() || now >= *inspect_due_); }
  /// The job makes progress again. Returns false if no inspection runs.
  bool cancel() { return std::exchange(inspect_due_, std::nullopt).has_value(); }
  /// Returns when the job hung: at the last activity of a worker.
  Time last_activity() const { return last_activity_; }
  /// Returns when the hang was found, before the inspection.
  Time found_at() const { return last_activity_ + quiet_for_; }
  /// Ends the inspection: the job has hung. Returns "the job hung: no worker printed anything or used CPU
  /// time for 60 s", then one line for each group of ranks that do the same, the place of the stacks
  /// (`files`), and a hint if there is one.
  std::string conclude(const std::string& files);
  /// Returns the lines about groups of ranks alone.
  std::vector<std::string> lines() const { return report_.lines(); }
  /// Returns the rank that must be killed, since it alone is behind the others in steps; empty: none, or the
  /// job has not hung. When several ranks are behind, some may only wait for another of them: for the rank
  /// through which their node hears of the others. Ranks that answer a revoke survive; the others are killed
  /// at its deadline.
  const std::vector<std::uint32_t>& hung() const { return hung_; }

 private:
  std::vector<NodeShare> nodes_;
  HangDetector detector_;
  HangReport report_;
  std::optional<Time> inspect_due_;  ///< set while the nodes inspect their workers
  std::set<std::size_t> asked_;      ///< nodes whose answer is not complete
  Time quiet_for_{0};
  Time last_activity_{0};
  std::vector<std::uint32_t> hung_;
};

}  // namespace ddp::launcher
