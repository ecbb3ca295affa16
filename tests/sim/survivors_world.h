#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "launcher/supervisor/supervisor.h"
#include "tests/sim/survivors_history.h"
#include "tests/sim/survivors_node.h"
#include "tests/sim/survivors_simulation.h"

namespace ddp::sim {

/// The implementation of simulate_survivors: the drivers of the master and of the nodes'
/// agents, the workers, and the faults. Events are a queue of functions, in the order of their times.
class SurvivorsWorld {
 public:
  SurvivorsWorld(const SurvivorsSetup& setup, std::uint64_t seed);
  SurvivorsReport run();

 private:
  using Act = std::function<void()>;
  struct Event {
    Time at;
    std::uint64_t order;
    Act act;
    std::optional<std::size_t> host = {};  ///< waits while this machine is suspended
  };
  static bool later(const Event& a, const Event& b) { return a.at != b.at ? a.at > b.at : a.order > b.order; }

  // Time and chance.
  void after(Time wait, Act act) { queue_.push_back({now_ + wait, order_++, std::move(act), {}}), sift(); }
  void after_on(std::size_t host, Time wait, Act act) {
    queue_.push_back({now_ + wait, order_++, std::move(act), host}), sift();
  }
  void after_on(const SimWorker& worker, Time wait, Act act) {
    after_on(agents_[worker.agent].host, wait, std::move(act));
  }
  void sift() { std::push_heap(queue_.begin(), queue_.end(), later); }
  Time some(Time from, Time to);
  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  void fail(const std::string& what);
  std::string what_workers_do() const;

  // The master (survivors_world.cc).
  void at_master(Act act);
  void feed(const launcher::job::Event& event);
  void carry_out(launcher::job::Actions actions);
  void carry_out(const launcher::job::ToNode& send);
  void carry_out(const launcher::job::Disconnect& drop);
  void recall(std::size_t host);
  void check_spawn(std::size_t host, SimAgent& agent, rendezvous::Spawn& spawn);
  void check_nodes(const rendezvous::Spawn& spawn);
  void check_fence(std::uint32_t attempt);
  void heard_by_user(const std::string& text);
  void arm_tick();
  void ping();
  void probe();
  void sweep(std::size_t host);
  void from_node(std::uint32_t agent, const rendezvous::Message& message, Time happened);
  void link_ended(std::uint32_t agent, bool gone, bool workers_dead, const std::string& why);
  SimAgent* link_of(std::size_t host);
  void check_end();
  bool is_true(const launcher::Failure& failure) const;

  // Nodes (survivors_agent.cc).
  void start_agent(std::size_t host, std::uint32_t incarnation);
  void to_node(SimAgent& agent, rendezvous::Message message);
  void to_master(SimAgent& agent, rendezvous::Message message);
  bool delayed(Time cut, Time& last, Time& at);
  Time global(const SimAgent& agent, Time local) const;
  void when_awake(std::uint32_t agent, Act act);
  void receive(SimAgent& agent, const rendezvous::Message& message);
  bool predecessor_gone(const std::vector<std::uint32_t>& pids) const;
  void feed(SimAgent& agent, const launcher::node::Event& event);
  bool is_lease_over(const SimAgent& agent) const;
  void feed_later(std::uint32_t agent, Time wait, launcher::node::Event event);
  void perform(SimAgent& agent, const launcher::node::Send& action);
  void perform(SimAgent& agent, const launcher::node::OpenStore& action);
  void perform(SimAgent& agent, const launcher::node::PrepareAttempt& action);
  void perform(SimAgent& agent, const launcher::node::StartWorkers& action);
  void perform(SimAgent& agent, const launcher::node::OrderAttempt& action);
  void perform(SimAgent& agent, const launcher::node::OrderLeave& action);
  void perform(SimAgent& agent, const launcher::node::TerminateWorker& action);
  void perform(SimAgent& agent, const launcher::node::KillWorker& action);
  void perform(SimAgent& agent, const launcher::node::KillLeftovers& action);
  void perform(SimAgent& agent, const launcher::node::ReadOutput& action);
  void perform(SimAgent& agent, const launcher::node::ReportLosses& action);
  void perform(SimAgent& agent, const launcher::node::StopWorkers& action);
  void perform(SimAgent& agent, const launcher::node::CleanUp& action);
  void perform(SimAgent& agent, const launcher::node::SetLease& action);
  void perform(SimAgent&, const launcher::node::RenewKeeper&) {}
  void perform(SimAgent& agent, const launcher::node::CloseLink& action);
  void perform(SimAgent&, const launcher::node::StopPreparing&) {}
  void perform(SimAgent& agent, const launcher::node::Quit& action);
  void start_worker(SimAgent& agent, std::uint32_t local);
  void check_ended(SimAgent& agent);
  void end_soon(std::uint32_t worker, Time wait, int signal);
  void worker_says(std::uint32_t agent, std::uint32_t local, std::uint32_t worker, const std::string& line);
  void flush(SimAgent& agent, std::uint32_t local);
  void quit(SimAgent& agent);
  void heartbeat(std::uint32_t agent);
  void keeper_checks_lease(std::uint32_t agent);
  void keeper_cleans(std::uint32_t agent);
  void reap(std::uint32_t agent, std::uint32_t local, std::uint32_t worker);
  void check_resumed(std::size_t host);

  // Workers (survivors_worker.cc).
  void say(SimWorker& worker, const rendezvous::WorkerMessage& word);
  void hear(SimWorker& worker, const std::string& lines);
  void next_attempt(SimWorker& worker);
  void enter(SimWorker& worker);
  void complete(SimRound& round, std::uint32_t attempt);
  bool share(SimRound& round, SimAttempt& attempt);
  bool one_step(SimRound& round, SimAttempt& attempt);
  void round_done(SimWorker& worker, const SimOutcome& outcome);
  void plan_next_round(SimWorker& worker);
  void trouble(SimWorker& worker, const std::string& why, std::vector<std::uint32_t> peers);
  void release(SimWorker& worker);
  void leave_attempt(SimWorker& worker, bool seen);
  void look_for_stall(std::uint32_t attempt);
  void die(SimWorker& worker, SimDeath::By by, int code, int signal);
  bool cut_off(const SimWorker& one) const;
  bool fences(const SimWorker& worker, std::uint32_t attempt) const;

  // Faults (survivors_fault.cc).
  void next_mishap();
  void happen(SimulatedFault kind);
  bool befall_worker(SimulatedFault kind);
  bool befall_node(SimulatedFault kind);
  bool befall_node(SimAgent& agent, SimulatedFault kind, Time until);
  bool befall_master(SimulatedFault kind);
  void stale();
  SimWorker* some_worker();
  SimAgent* some_agent();
  void kill_one_of(SimulatedFault armed, std::uint32_t agent);
  void happened(SimulatedFault kind, std::size_t host, Time until);

  const SurvivorsSetup setup_;
  std::mt19937_64 random_;
  std::vector<Event> queue_;
  std::uint64_t order_ = 0;
  Time now_{0};
  SurvivorsReport report_;

  const launcher::JobSpec spec_;  ///< of the job as the Supervisor has it, which may have the injected bug
  launcher::Supervisor supervisor_;
  Time asleep_until_{0};
  std::optional<Time> tick_at_;
  int growths_ = 0;
  std::vector<SimHost> hosts_;
  std::deque<SimAgent> agents_;
  std::deque<SimWorker> workers_;
  std::map<std::uint32_t, SimAttempt> attempts_;
  std::vector<SimDeath> deaths_;
  std::vector<SimFault> mishaps_;
  std::vector<PeerCut> peer_cuts_;
  std::set<SimulatedFault> armed_;  ///< faults for the next occasion
  int mishaps_left_ = 0;
  TrainingHistory history_;
  TrainingState checkpoint_ = TrainingHistory::beginning();
  std::optional<std::uint32_t> latest_round_;  ///< attempt of the last complete round
};

}  // namespace ddp::sim
