#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "launcher/agent/job_preparation.h"
#include "launcher/agent/node_facts.h"
#include "launcher/agent/node_store.h"
#include "launcher/agent/node_workers.h"
#include "launcher/agent_core/agent_core.h"
#include "launcher/job/job_spec.h"
#include "launcher/keeper/keeper.h"
#include "rendezvous/link/connection.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The process on a node that owns its workers for one job. It serves the master over the control link and
/// ends with that link. AgentCore decides. JobPreparation acts before the workers, NodeWorkers on them. This
/// class passes messages, actions and events between them. One loop thread; call only the constructor and
/// run().
class Agent {
 public:
  struct Options {
    std::string directory;  ///< directory of this program and of `train`
    NodeFacts facts;
    std::optional<JoinJob> own =
        {};  ///< set: this node was started by itself and joins with a job of its own
  };

  /// `stream` is the control link after the hello line. `keeper` must outlive the agent.
  Agent(asio::io_context& loop, std::unique_ptr<ByteStream> stream, KeeperLink& keeper, Options options);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Serves until the master sends Leave, the link or the keeper is lost, or a signal arrives. No worker is
  /// alive when it returns. Returns the exit code: 0 after Leave, or the whole job's code for a node with a
  /// job of its own.
  int run();
  /// The master's text about the job's end from Leave; else why this agent had to leave, if known.
  const std::string& last_message() const { return core_.last_message(); }

 private:
  using Clock = std::chrono::steady_clock;

  Awaitable<> serve();
  Awaitable<> heartbeat();
  Awaitable<> watch_keeper();
  std::string keeper_died() const;
  Awaitable<> watch_signals();
  Awaitable<> go_down();

  // ---- the core: its events, and its actions
  void feed(const node::Event& event);
  void arm_timer();
  void perform(const node::Send& action) { link_.send(action.message); }
  void perform(const node::OpenStore& action);
  void perform(const node::StartWorkers& action);
  void perform(const node::SetLease& action);
  void perform(const node::RenewKeeper&) { keeper_.renew(); }
  void perform(const node::CloseLink& action);
  void perform(const node::StopPreparing&) { preparation_.stop(); }
  void perform(const node::Quit&) { spawn(loop_.get_executor(), go_down()); }
  template <class A>
  void perform(const A& action) {
    workers_.perform(action);
  }

  // ---- messages of the master
  void handle(const rendezvous::JobStart& message);
  void handle(const rendezvous::NodeCheck& message);
  void handle(const rendezvous::Probe& message);
  void handle(const rendezvous::Spawn& message);
  void handle(const rendezvous::Ping& message);
  void handle(const rendezvous::OpenStore& message) { feed(message); }
  void handle(const rendezvous::Revoke& message) { feed(message); }
  void handle(const rendezvous::Stop& message) { feed(message); }
  void handle(const rendezvous::Leave& message) { feed(message); }
  void handle(const rendezvous::Signal& message) { workers_.handle(message); }
  void handle(const rendezvous::Credit& message) { workers_.handle(message); }
  void handle(const rendezvous::Stdin& message) { workers_.handle(message); }
  void handle(const rendezvous::Inspect& message) { workers_.handle(message); }
  void handle(const rendezvous::Query& message);
  void handle(const rendezvous::CancelQuery& message) { workers_.handle(message); }
  template <class M>
  void handle(const M&) {}  ///< ignores messages of the other direction

  Awaitable<> probe(rendezvous::Probe request);
  void begin_preparing(const rendezvous::JobStart& job);
  void accept(const rendezvous::JobStart& message, NodeJob job, bool predecessor_gone);
  void refuse(const Error& error);

  asio::io_context& loop_;
  Options options_;
  KeeperLink& keeper_;
  rendezvous::Connection link_;
  AgentCore core_;
  std::deque<node::Action> actions_;  ///< decided, but not carried out
  asio::steady_timer core_timer_;     ///< for the core's deadline
  NodeStore store_;
  BlockingCalls disk_;  ///< for the job's paths on this node's disks
  JobPreparation preparation_;
  NodeWorkers workers_;
  bool down_ = false;  ///< all workers have ended; only the last messages remain
  asio::steady_timer tick_;
  asio::posix::stream_descriptor keeper_fd_;
  asio::signal_set signals_;
};

}  // namespace ddp::launcher
