#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/asio.h"
#include "launcher/master/node_link.h"
#include "remote/start/fan_out.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// What an agent found that swept a host.
struct SweptHost {
  rendezvous::Hello hello;  ///< of that agent
  std::size_t found = 0;
  std::vector<std::string> left;  ///< what lives, or may live; empty: nothing
};

/// Receives what happens on the links of a master. All calls come on the loop thread.
class NodeEvents {
 public:
  /// The agent runs; its link opens after this call.
  virtual void agent_started(NodeLink& node, const remote::StartedAgent& agent) = 0;
  /// The agent could not be started.
  virtual void start_failed(std::size_t node, Error why) = 0;
  /// Any message but a Pong. An error ends the link.
  virtual Result<> on_message(NodeLink& node, const rendezvous::Message& message) = 0;
  /// All messages that have arrived were taken.
  virtual void all_taken(NodeLink&) {}
  /// Any bytes count as a heartbeat.
  virtual void bytes_arrived(const NodeLink&) {}
  /// The kernel of a silent node has answered a probe (ReachabilityProbe).
  virtual void reachable(const NodeLink&) {}
  /// Completed lines of the agent's stderr, as NodeLink::error_lines returns them.
  virtual void agent_errors(const std::string& lines) = 0;
  /// The link broke. link_gone follows, with a better reason.
  virtual void link_broken(const NodeLink&, const Error&) {}
  /// Called once for each link that was opened.
  virtual void link_gone(NodeLink& node, NodeLink::LinkEnd end) = 0;
  virtual void before_pings() {}
  /// The end of MasterLinks::sweep. Error: nobody could look.
  virtual void node_swept(std::size_t, std::uint32_t, const Result<SweptHost>&) {}

 protected:
  ~NodeEvents() = default;
};

/// The links of a master to all nodes: starts the agents, reads and writes the links, and measures the nodes'
/// clocks. It runs on the loop thread.
class MasterLinks {
 public:
  using Link = std::shared_ptr<NodeLink>;

  /// Links to the first `count` of `hosts`. `options` apply to each start, except their deadline. References
  /// outlive this.
  MasterLinks(asio::io_context& loop, const std::vector<remote::Host>& hosts, std::size_t count,
              remote::Transport& remote, remote::Transport& local, remote::FanOutOptions options,
              NodeEvents& events);

  std::size_t size() const { return links_.size(); }
  const Link& operator[](std::size_t node) const { return links_[node]; }
  auto begin() const { return links_.begin(); }
  auto end() const { return links_.end(); }

  /// Starts the agents of all hosts. Each has `limit` to say hello.
  void start_all(std::chrono::milliseconds limit);
  /// Replaces the link of a host by a new one and starts its agent again.
  void start_again(std::size_t node, const std::string& name, std::chrono::milliseconds limit);
  void cancel_starts();
  /// Starts an agent on the node's host beside its link, which has ended, and makes it end what is left of
  /// the lost agent (JobStart::predecessor, of which `order` names at least one). node_swept has the answer,
  /// within kSweepTime.
  void sweep(std::size_t node, rendezvous::JobStart order);
  static constexpr std::chrono::seconds kSweepTime{10};
  /// Returns the hosts whose agents are being started, and the step of each.
  std::vector<remote::FanOut::PendingHost> starting() const;

  /// Pings all nodes from now on. An agent leaves when its master is silent for too long.
  void ping_every(std::chrono::milliseconds interval);

  /// Ends all links and tasks; the loop must run a little longer for them.
  void close();

 private:
  void start(std::vector<std::size_t> nodes, std::chrono::milliseconds limit);
  Awaitable<> run_start(std::shared_ptr<remote::FanOut> fan_out, std::vector<std::size_t> nodes);
  void on_started(std::size_t node, Result<remote::StartedAgent> outcome);
  Awaitable<> read_link(Link node);
  Awaitable<> read_errors(Link node);
  Awaitable<> ping_nodes(std::chrono::milliseconds interval);
  Result<> read_messages(NodeLink& node);
  Result<> admit(NodeLink& node, rendezvous::Message& message);
  void report_end(NodeLink& node, NodeLink::LinkEnd end);
  struct Sweep;
  Awaitable<> run_sweep(std::shared_ptr<Sweep> sweep, rendezvous::JobStart order);
  static Awaitable<Result<SweptHost>> ask_sweeper(Link link, rendezvous::JobStart order);
  Link make_link(std::size_t node, const std::string& name, std::uint32_t incarnation);

  struct AgentStart {
    std::shared_ptr<remote::FanOut> fan_out;
    std::vector<std::size_t> nodes;  ///< by its host index
  };

  asio::io_context& loop_;
  const std::vector<remote::Host>& hosts_;
  remote::Transport& remote_;
  remote::Transport& local_;
  const remote::FanOutOptions options_;
  NodeEvents& events_;
  std::vector<AgentStart> starts_;  ///< running starts: the first one and later ones
  std::vector<Link> links_;
  std::vector<std::shared_ptr<Sweep>> sweeps_;  ///< running ones
  asio::steady_timer ping_timer_;
  std::uint64_t ping_sequence_ = 0;
  bool closed_ = false;
};

}  // namespace ddp::launcher
