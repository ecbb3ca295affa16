#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/membership/membership_types.h"
#include "rendezvous/membership/slot_table.h"

namespace ddp::rendezvous {

/// Decides, on the master, which nodes are in the job (sans-IO; docs/developers/states.md, "Membership").
/// Decides when an attempt begins, is stopped, is followed by another, or is the last. The Supervisor drives
/// Membership and handles everything between Begin and the end of an attempt (store, probes, spawn, hangs,
/// root cause).
///
/// The driver's duties:
///   1. call `step` for every event in order, the first one a Tick; `now` never goes back;
///   2. carry out all actions of a step, in order, before the next event;
///   3. send a Tick no later than `deadline()`. A Tick that is a second late means that this machine slept;
///      silence of others during that time does not count;
///   4. close a dropped link before the host's next incarnation joins; Ping a node only when it has answered
///      the last Ping, since its lease depends on that (NodeLease);
///   5. after EndJob, end all nodes; later events are ignored.
///
/// Events of another job, of an earlier incarnation of a host, of another attempt, and repeated ones are
/// ignored. A hello to the wrong job, or too late, is the exception: its link is dropped with the reason.
class Membership {
 public:
  using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC
  using Actions = std::vector<MemberAction>;

  enum class State : std::uint8_t { kGathering, kRunning, kStopping, kBackingOff, kEnded };

  explicit Membership(MembershipRules rules);

  Actions step(const Sender& from, const MemberEvent& event, Time now);
  std::optional<Time> deadline() const;

  State state() const { return state_; }
  std::uint32_t attempt() const { return attempt_; }
  int present() const { return present_; }
  int restarts() const { return restarts_; }  ///< charged to the budget, over the whole job
  bool restart_left() const { return restarts_ < rules_.max_restarts; }

 private:
  /// Part of a node in the attempt. kWaiting: it has left the attempt, and its workers survive.
  enum class Participation : std::uint8_t { kNone, kRunning, kWaiting, kEnded };
  struct Node {
    std::string name;
    std::uint32_t incarnation = 0;
    int slots = 0;
    bool present = false;
    bool coming = false;  ///< its start has not been answered yet
    bool suspect = false;
    Participation participation = Participation::kNone;
    Time heard{0};
    Time busy_until{0};                  ///< workers of the last lost incarnation may run until then
    std::uint32_t busy_incarnation = 0;  ///< the last lost incarnation
    Time fenced_until{0};                ///< like busy_until, if the workers may write a checkpoint
    Time excluded_until{0};
    std::deque<Time> faults;
    std::string absence;  ///< why it is not present
    std::optional<Time> recall_at;
    int recalls = 0;
  };
  struct AttemptEnd {
    Outcome outcome = Outcome::kDone;
    std::string reason;
    bool non_retryable = false;
    std::optional<StopCause> cause;  ///< set if the attempt was stopped
  };

  void take(const Sender& from, const Joined& event, Time now);
  void take(const Sender& from, const Heartbeat& event, Time now);
  void take(const Sender& from, const LinkLost& event, Time now);
  void take(const Sender& from, const WorkersGone& event, Time now);
  void take(const Sender& from, const Absent& event, Time now);
  void take(const Sender& from, const WorkerFailed& event, Time now);
  void take(const Sender& from, const NodeEnded& event, Time now);
  void take(const Sender& from, const NodeWaits& event, Time now);
  void take(const Sender& from, const NodeRefused& event, Time now);
  void take(const Sender& from, const AttemptProgress& event, Time now);
  void take(const Sender& from, const AttemptFailed& event, Time now);
  void take(const Sender& from, const UserStop& event, Time now);
  void take(const Sender& from, const Tick& event, Time now);

  Node* host_of(const Sender& from);
  Node* known(const Sender& from);
  Node* in_attempt(const Sender& from);
  bool admit(const Sender& from, const Joined& event);
  void refuse(const Sender& from, std::string reason);
  void lose(HostNumber host, const std::string& why, bool workers_dead, Time now);
  void workers_gone(HostNumber host, std::uint32_t incarnation, Time now);
  bool fences(HostNumber host) const;
  void drop_silent(Time now);
  void lose_unended(Time now);
  void charge(HostNumber host, Time now);
  void recall_later(Node& node, Time now);
  void recall_due(Time now);
  void fail_early(Time now);
  void stop(StopCause cause, Outcome outcome, std::string reason, bool non_retryable, Time now);
  void attempt_over(Time now);
  bool another_follows(StopCause cause, bool non_retryable);
  bool some_wait() const;
  void gather(Time now);
  void try_begin(Time now);
  void begin(SlotTable slot_table, Time now);
  void report_change(const World& world);
  bool nodes_are_ready(Time now);
  bool wait_for_leases(Time Node::*until, const std::string& which, Time now);
  std::vector<SlotTable::Candidate> candidates(bool excluded_too, Time now) const;
  std::optional<SlotTable> assign_slots(Time now) const;
  bool enough(const SlotTable& slot_table) const;
  void consider_growth(Time now);
  void on_join_limit(Time now);
  void end(Outcome outcome, std::string reason, std::string no_restart = {});
  std::string missing() const;
  void wait_for(std::string what, std::optional<Time> until);
  void notify(std::string text) { actions_.emplace_back(NotifyUser{std::move(text)}); }

  const MembershipRules rules_;
  std::vector<Node> nodes_;
  SlotTable slot_table_;
  World world_;
  State state_ = State::kGathering;
  std::uint32_t attempt_ = 0;  ///< the running one, or the next one
  int present_ = 0;
  int coming_ = 0;
  int running_slots_ = 0;
  int restarts_ = 0;
  int no_progress_ = 0;
  bool fruitful_ = false;
  std::optional<std::string> user_stop_;  ///< reason, as text
  std::string leftovers_;
  AttemptEnd attempt_end_;
  Time began_{0};
  Time join_limit_at_{0};
  Time awake_since_{0};
  std::optional<Time> started_;
  std::optional<Time> phase_end_;  ///< join limit, stop time, back-off
  std::optional<Time> retry_at_;   ///< admission window, debounce, leases
  std::optional<Time> admission_window_;
  std::optional<Time> growth_at_;
  Time watch_at_{0};  ///< next check for silent nodes
  std::string waiting_for_;
  Actions actions_;
};

}  // namespace ddp::rendezvous
