#pragma once

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/report/job_end.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// A process of a worker's tree, as one sample saw it.
struct ProcessTime {
  pid_t pid = 0;
  std::uint64_t started = 0;        ///< identifies the process, together with the pid
  std::chrono::nanoseconds cpu{0};  ///< used since its start, by it and by its children that have ended
  bool traced = false;              ///< a debugger has stopped it at the moment
  bool leader = false;              ///< a live worker: nobody has reaped it, so its pid is no stranger's
  /// It belongs to a rank that waited in a collective when its recorder was last read. What it does may be
  /// no progress, since such ranks may spin, or it has gone on since.
  bool waits = false;
  std::optional<std::uint64_t> io =
      {};  ///< bytes that it has read and written since its start; unset: not read
};

/// Decides on a node whether its workers are active (sans-IO; docs/users/hang.md). Activity is any of: bytes
/// that a worker wrote, CPU time and files beyond those of an idle process, a debugger at work in a worker,
/// output that the agent holds back. Activity is observed only when sampling.
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

  /// Returns the time between two samples: an eighth of the timeout, between 0.2 s and 3 s.
  static std::chrono::milliseconds period(std::chrono::milliseconds timeout);

  void record_activity(Time now);
  /// Starts a sample. If it comes far too late, this process was stopped, and perhaps the workers, too:
  /// counting then begins anew.
  void begin_sample(Time now);
  /// Returns true if one of the processes was active since the last sample. A sample that is not `whole`
  /// counts only leaders and processes of the last whole one: another pid may be a stranger's by now.
  bool add_sample(std::span<const ProcessTime> processes, bool whole, Time now);
  /// Processes with `waits` that were at work in the last sample. The caller finds out whether they spin, and
  /// calls `record_activity` if not.
  const std::vector<pid_t>& in_doubt() const { return in_doubt_; }
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
  bool is_quiet(Time now) const { return now - last_activity_ >= timeout_ / 2; }
  /// Returns whether poll_change will report that the workers are quiet.
  bool turns_quiet(Time now) const { return !reported_quiet_ && is_quiet(now); }

  Time last_activity() const { return last_activity_; }

 private:
  /// A leaky bucket: CPU time flows in, the share of an idle process flows out, and an overflow means
  /// activity.
  struct Meter {
    std::uint64_t started = 0;
    Time seen{0};
    Time cpu{0};
    Time level{0};
    std::optional<std::uint64_t> io;  ///< as of io_seen
    Time io_seen{0};
    std::uint64_t io_level = 0;  ///< of a second bucket, in bytes
  };
  bool fill(Meter& meter, const ProcessTime& process, Time now) const;
  static bool fill_io(Meter& meter, const ProcessTime& process, Time now);

  Time timeout_;
  Time burst_;  ///< capacity of the bucket
  Time last_whole_;
  Time last_activity_;
  Time last_sample_;
  bool sampled_whole_ = false;
  std::map<pid_t, Meter> meters_;  ///< of the leaders and the processes of the last whole sample
  std::uint64_t newest_ = 0;       ///< the latest ProcessTime::started of that sample
  std::vector<pid_t> pacemakers_;
  std::vector<pid_t> in_doubt_;
  bool reported_quiet_ = false;
};

/// What NCCL's RAS threads find wrong, in one line of at most kRasBytes: of their text (VERBOSE STATUS) the
/// sections Errors and Warnings; of their JSON (NCCL 2.28.7 or newer) what differs between the ranks of a
/// communicator. Empty: nothing. Unset: JSON that is cut, or not NCCL's.
std::optional<std::string> ras_findings(std::string_view text);
inline constexpr std::size_t kRasBytes = 500;
/// Begins the line with ras_findings in an Inspection::text.
inline constexpr std::string_view kRasFindings = "NCCL finds: ";

/// The nodes' answers about a job that hangs, collected on the master (sans-IO).
class HangReport {
 public:
  /// `host`: the rank's node. An empty `state` changes nothing.
  void add(std::uint32_t rank, const std::string& host, const std::string& state) {
    if (!state.empty()) ranks_[rank] = RankState{host, state};
  }
  /// Adds a live rank, for which no answer may come.
  void expect(std::uint32_t rank, const std::string& host) { add(rank, host, "no answer"); }

  /// Adds the stacks of a rank. They are only searched for known causes (hint()) and for NCCL's findings.
  void add_stacks(std::uint32_t rank, const std::string& text);

  void add_step(std::uint32_t rank, std::uint64_t step) { steps_[rank] = step; }
  /// Ranks that have completed fewer steps than others; empty if all are equal or no steps are known.
  std::vector<std::uint32_t> behind() const;

  bool empty() const { return ranks_.empty(); }
  /// One line for each group of ranks that do the same, the smallest group first: "rank 7 on gpu02: running".
  std::vector<std::string> lines() const;
  /// "no worker printed anything or used CPU time for 60 s".
  std::string activity(std::chrono::nanoseconds quiet) const;
  /// "rank 3 is behind: the last reported step is 11, that of other ranks is 12"; empty if no rank is behind.
  std::string behind_text() const;
  /// Ranks that are stopped by a signal; empty if all are.
  std::vector<int> stopped() const;
  std::size_t ranks() const { return ranks_.size(); }
  const std::string& ras() const { return ras_; }
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

  std::map<std::uint32_t, RankState> ranks_;
  std::map<std::uint32_t, std::uint64_t> steps_;
  std::string ras_;                 ///< ras_findings of the first node that has any
  std::vector<int> store_clients_;  ///< ranks that are still connecting to a store
};

/// The silences that a master acts on.
struct HangLimits {
  std::chrono::milliseconds hang{0};  ///< the attempt is ended; 0: never
  bool hang_by_steps = false;         ///< only where all workers report their steps
  std::chrono::milliseconds stall{
      0};  ///< the user is told, and again after the multiples of kStallReports; 0: never

  /// Returns the shorter time, at which nodes must notice; 0: none is set.
  std::chrono::milliseconds shortest() const {
    return hang.count() == 0 || stall.count() == 0 ? std::max(hang, stall) : std::min(hang, stall);
  }
};

/// Decides on the master whether the job makes progress (sans-IO). It makes none when every node with workers
/// has reported that it is quiet, and the last activity of all nodes is older than a limit. One object for
/// each attempt.
///
/// The driver's duties: pass every event in the order of arrival; call `check` no later than `deadline()`,
/// and `resume` when it could not for a while; do not call it again after kHang.
class HangDetector {
 public:
  using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC
  enum class Finding : std::uint8_t { kNone, kStall, kHang };
  /// A stall is reported at these multiples of HangLimits::stall: after 10, 30 and 60 minutes.
  static constexpr std::array kStallReports{1, 3, 6};

  HangDetector() = default;  ///< never finds a hang
  /// `ranks`: how many workers each node starts. Without limits it finds nothing.
  HangDetector(HangLimits limits, std::vector<std::uint32_t> ranks, Time now);

  /// `since`: the latest possible time of the node's last activity, on the master's clock. `by_steps`: all
  /// its workers report steps.
  void quiet(std::size_t node, Time since, bool by_steps);
  void alive(std::size_t node);  ///< active again, until a time that its next `quiet` reports
  /// The end of a rank is activity, too. A node without workers is ignored from then on.
  void rank_ended(std::size_t node, Time now);
  void node_gone(std::size_t node, Time now);

  /// When `check` finds something without further activity; unset while a node is active.
  std::optional<Time> deadline() const;
  /// A call that comes much too late means that the master was stopped, with messages unread and output held
  /// back: counting then begins anew.
  Finding check(Time now);
  /// From here on `check` is called in time again.
  void resume(Time now) { resumed_ = now; }

  Time last_activity() const { return last_activity_; }
  /// Returns whether no node is active.
  bool all_quiet() const;
  bool has_ranks(std::size_t node) const { return node < nodes_.size() && nodes_[node].ranks > 0; }

 private:
  struct Node {
    std::uint32_t ranks = 0;
    bool quiet = false;
    bool by_steps = false;
  };
  void active_at(Time when);
  std::optional<Time> hang_due() const;
  std::optional<Time> stall_due() const;

  std::vector<Node> nodes_;
  HangLimits limits_;
  Time margin_{0};  ///< the master may learn of activity this much later
  Time last_activity_{0};
  Time resumed_{0};
  std::size_t stalls_ = 0;  ///< reported since the last activity
};

/// The master's part in hang detection, for one attempt (sans-IO): detects a hang, selects the nodes to
/// inspect, and makes a verdict of their answers.
class HangInvestigation {
 public:
  using Time = HangDetector::Time;
  struct NodeShare {
    std::string host;
    std::uint32_t first_rank = 0;
    std::uint32_t ranks = 0;
  };
  /// Why the nodes are asked.
  enum class Purpose : std::uint8_t {
    kAsked,   ///< by a user
    kStall,   ///< to report a stall
    kHang,    ///< before the attempt is ended
    kFailed,  ///< a rank gave up waiting for others; the attempt is ended when they have answered
  };

  /// Additional time for the answers to arrive.
  static constexpr std::chrono::seconds kInspectSlack{1};
  /// Returns the time for the nodes to inspect their workers. For a hang py-spy and gdb take seconds each.
  static std::chrono::milliseconds inspect_time(Purpose purpose);
  /// The verdict on a hang waits for other witnesses than debuggers, and at most for this time.
  static constexpr std::chrono::seconds kVerdictTime{4};

  HangInvestigation() = default;  ///< never finds a hang
  /// Without limits it finds no hang, but can inspect.
  HangInvestigation(HangLimits limits, std::vector<NodeShare> nodes, Time now);

  void quiet(std::size_t node, Time since, bool by_steps) { detector_.quiet(node, since, by_steps); }
  void alive(std::size_t node) { detector_.alive(node); }
  /// A rank of the node has ended: call it once for each.
  void rank_ended(std::size_t node, Time now) {
    detector_.rank_ended(node, now);
    if (!detector_.has_ranks(node)) forget(node);  // its agent may have no worker to ask
  }
  void node_gone(std::size_t node, Time now) {
    detector_.node_gone(node, now);
    forget(node);
  }

  /// When to call `check`; during an inspection, when `names_now` or `complete` holds without the missing
  /// answers.
  std::optional<Time> deadline() const {
    if (!inspect_due_) return detector_.deadline();
    return verdict_due_ ? verdict_due_ : inspect_due_;
  }
  HangDetector::Finding check(Time now) { return detector_.check(now); }

  /// Starts the inspection. Returns the nodes with live workers; the caller sends `order` to each of them.
  /// `ended`: ranks that have ended. `cause`: why the job counts as hanging although its workers may be
  /// active; empty: they are not.
  std::vector<std::size_t> begin(Purpose purpose, const std::set<std::uint32_t>& ended, Time now,
                                 std::string cause = {});
  rendezvous::Inspect order(std::uint32_t attempt) const;
  bool inspecting() const { return inspect_due_.has_value(); }
  Purpose purpose() const { return purpose_; }
  /// Returns whether an inspection runs after which the attempt ends.
  bool ends_attempt() const {
    return inspecting() && (purpose_ == Purpose::kHang || purpose_ == Purpose::kFailed);
  }
  void answer(std::size_t node, const rendezvous::Inspection& inspection);
  /// Returns whether a verdict can be given, once, although stacks are still to come.
  bool names_now(Time now) const {
    return inspecting() && verdict_due_ && (facts_missing_.empty() || now >= *verdict_due_);
  }
  /// Returns the verdict as of now. It knows nothing of flight recorders, and is never kHung, because the
  /// attempt may still end for another reason. `files`: see HangVerdict.
  HangVerdict name_now(const std::string& files) {
    verdict_due_.reset();
    return verdict(files);
  }
  /// Returns whether the inspection is over: every asked node has answered completely or is lost, or its time
  /// is up.
  bool complete(Time now) const { return inspecting() && (asked_.empty() || now >= *inspect_due_); }
  /// The job makes progress again. Returns false if no inspection runs that this ends: activity refutes
  /// no `cause`.
  bool cancel();
  /// Ends an inspection without a verdict. Returns false if none runs.
  bool abandon() { return std::exchange(inspect_due_, std::nullopt).has_value(); }
  /// Returns when the job hung: at the last activity of a worker.
  Time last_activity() const { return last_activity_; }
  /// Returns when the hang was found, before the inspection.
  Time found_at() const { return last_activity_ + quiet_for_; }
  /// Ends the inspection. Returns the verdict: after one for a hang kHung, else as name_now does.
  HangVerdict conclude(const std::string& files, Time now);
  /// Returns "the job hung: no worker printed anything or used CPU time for 60 s", then one line for each
  /// group of ranks that do the same, the place of the stacks, and a hint if there is one.
  std::string hung_text(const std::string& files) const;
  /// Returns the lines about groups of ranks alone.
  std::vector<std::string> lines() const { return report_.lines(); }
  /// Returns the rank that must be killed, since it alone is behind the others in steps; empty: none, or the
  /// job has not hung. When several ranks are behind, some may only wait for another of them: for the rank
  /// through which their node hears of the others. Ranks that answer a revoke survive; the others are killed
  /// at its deadline.
  const std::vector<std::uint32_t>& hung() const { return hung_; }

 private:
  HangVerdict verdict(const std::string& files) const;
  void forget(std::size_t node) {
    asked_.erase(node);
    facts_missing_.erase(node);
  }

  std::vector<NodeShare> nodes_;
  HangDetector detector_;
  HangReport report_;
  Purpose purpose_ = Purpose::kAsked;
  std::optional<Time> inspect_due_;      ///< set while the nodes inspect their workers
  std::optional<Time> verdict_due_;      ///< set while name_now is to come
  std::set<std::size_t> asked_;          ///< nodes whose answer is not complete
  std::set<std::size_t> facts_missing_;  ///< those of them of which more than stacks is missing
  std::string cause_;                    ///< of begin()
  Time quiet_for_{0};
  Time last_activity_{0};
  std::vector<std::uint32_t> hung_;
};

}  // namespace ddp::launcher
