#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/check/check_diagnosis.h"
#include "launcher/job/job_spec.h"
#include "launcher/supervisor/net_choice.h"
#include "remote/start/fan_out.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

struct CheckScope {
  bool inspect = true;       ///< ask for NodeChecked, not only for the hello
  bool has_program = false;  ///< spec.command must be searched for
  bool clean = false;        ///< end what is left of the job instead, and ask nothing else
};

/// Asks all hosts of a job and returns their answers, at most a few seconds for goodbyes after
/// --start-timeout. The agents are started as a job starts them, but none starts a worker. Takes the
/// `options` of a job, and sets their deadline itself. `show` receives the output of hosts and agents as
/// whole lines, each prefixed with the host's name; for stderr. Runs the loop.
CheckResult check_hosts(asio::io_context& loop, const JobSpec& spec, CheckScope scope,
                        remote::Transport& remote, remote::Transport& local, remote::FanOutOptions options,
                        std::function<void(std::string_view lines)> show);

/// The check of all hosts, beside their links: asks each host that answers, probes the routes to node 0 as a
/// job would, then lets all agents leave. A failing host neither ends the check of the others nor delays it
/// beyond the deadline. Loop thread; it outlives run().
class HostCheck {
 public:
  /// What the check does with a node. A message to a lost node is dropped.
  struct Nodes {
    std::function<void(std::size_t node, const rendezvous::Message& message)> send;
    std::function<void(std::size_t node)> drop;  ///< gives the node up, or drops its link
  };

  /// `spec` must outlive this object. Only the hosts that a job would use are checked.
  HostCheck(const asio::any_io_executor& executor, const JobSpec& spec, CheckScope scope, Nodes nodes);

  /// The whole check, from the start of the agents until all have left.
  Awaitable<> run();

  void node_up(std::size_t node, const rendezvous::Hello& hello, std::string connected);
  void node_failed(std::size_t node, Error error);  ///< not reached, or its link ended
  void on_message(std::size_t node, const rendezvous::Message& message);
  /// A signal of the user ends the check early. A second one means: do not wait for the nodes to leave.
  void interrupt(int signal);

  /// The time after the start in which hosts may answer. The rest of --start-timeout is for the network
  /// between them.
  std::chrono::milliseconds answer_time() const;
  /// Sets the step of a host whose agent is being started.
  void set_start_step(std::size_t node, const char* step) { start_steps_[node] = step; }
  /// Returns the hosts that the check waits for, as attempt_start.h does. Empty: none.
  std::string awaited_text() const;
  std::size_t node_count() const { return result_.nodes.size(); }
  CheckResult take_result() { return std::move(result_); }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase : std::uint8_t { kAsking, kOpeningStore, kProbing, kLeaving };
  enum class Stage : std::uint8_t { kConnecting, kAsked, kAnswered, kLeaving, kGone };

  template <class Condition>
  Awaitable<> wait_until(Clock::time_point deadline, Condition over);
  bool choose_network();
  Result<rendezvous::RankPlan> plan(std::vector<rendezvous::NodeSlots> slots) const;
  Awaitable<> probe_network();
  void take_probe(std::size_t index, const rendezvous::ProbeResult& probed);
  void send_probes(const std::vector<MasterAddress::AddressProbe>& probes);
  void note_route();
  Awaitable<> leave();

  bool stopped() const { return result_.stop_signal != 0; }
  bool is_open(std::size_t node) const {  ///< it has neither answered nor failed
    return stage_[node] == Stage::kConnecting || stage_[node] == Stage::kAsked;
  }
  bool usable(std::size_t node) const { return stage_[node] == Stage::kAnswered; }
  bool is_probing(std::size_t node) const {
    return usable(node) && result_.nodes[node].reach == CheckedNode::Reach::kNotTried;
  }
  bool has_setup(std::size_t node) const { return !spec_.setup.empty() || !spec_.hosts[node].setup.empty(); }
  Error too_late(std::size_t node) const;
  void give_up(std::size_t node, Error error);

  const JobSpec& spec_;
  const CheckScope scope_;
  const Nodes nodes_;
  CheckResult result_;
  Phase phase_ = Phase::kAsking;
  std::vector<Stage> stage_;
  std::vector<const char*> start_steps_;  ///< of kConnecting
  std::vector<std::size_t> probing_;      ///< nodes by their index in MasterAddress
  MasterAddress master_;
  rendezvous::OpenStore store_order_;
  std::string store_token_;
  int interrupts_ = 0;
  const Clock::time_point began_ = Clock::now();
  asio::steady_timer changed_;  ///< cancelled when what run() waits for may have changed
};

}  // namespace ddp::launcher
