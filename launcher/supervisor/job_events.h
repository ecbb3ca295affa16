#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "launcher/report/host_texts.h"
#include "launcher/report/journal.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher::job {

using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC

// ---- events
struct NodeUp {  ///< the node's agent said hello
  std::size_t node;
  rendezvous::Hello hello;
  std::string connected;  ///< address at which the node was reached; empty: unknown
  std::uint32_t incarnation = 1;
  bool probed = false;  ///< while the node is silent, a missing NodeReachable means that nothing reaches it
};
struct NodeFailed {  ///< the node could not be reached, or no agent answered
  std::size_t node;
  Error error;
};
struct NodeHeartbeat {  ///< any byte from the node
  std::size_t node;
  std::uint32_t incarnation = 1;
};
/// The kernel of a silent node has answered a probe. The network reaches the node, but TCP may still wait
/// before it repeats what an outage has lost. It comes about once a second after 3 s of silence.
struct NodeReachable {
  std::size_t node;
  std::uint32_t incarnation = 1;
};
struct FromNode {
  std::size_t node;
  rendezvous::Message message;
  Time happened;  ///< by the master's clock, as exactly as the offset is known
  Time error{0};  ///< ± of `happened`
  std::uint32_t incarnation = 1;
};
/// A line of a worker's output matches a rule of --watch: the first one of the rank in this attempt.
struct WatchedLine {
  std::size_t node;
  std::uint32_t attempt;
  std::uint32_t rank;
  std::size_t rule;  ///< index in JobSpec::watch
  std::string line;  ///< its begin, raw
  Time happened;     ///< as in FromNode
  Time error{0};
};
struct LinkEnded {  ///< the node sends nothing more; NodeGone follows with the reason
  std::size_t node;
  Error error;
  std::uint32_t incarnation = 1;
};
struct NodeGone {  ///< the link of a node that was up ended; expected after Leave, else the node is lost
  std::size_t node;
  Error error;
  bool workers_dead = false;  ///< it is certain that no worker of the node lives
  std::uint32_t incarnation = 1;
  bool workers_left = false;  ///< the node's keeper could not kill all workers
};
struct NodeSwept {  ///< answer to SweepNode, within about 10 s
  std::size_t node;
  std::uint32_t incarnation = 1;  ///< of the lost link
  std::string text;               ///< what was found, or why nobody could look and what to run
  bool empty = false;             ///< proven: no process of the lost incarnation lives
  bool found = false;             ///< some lived
};
struct UserSignal {
  int number;
  bool now = false;     ///< `ddplaunch stop --now`: the workers get no more time
  std::string by = "";  ///< JobEnd::stopped_by
};
struct AskHang {};  ///< a user asks what the ranks wait for; HangAnswered follows
struct Tick {};
using Event = std::variant<NodeUp, NodeFailed, NodeHeartbeat, NodeReachable, FromNode, WatchedLine, LinkEnded,
                           NodeGone, NodeSwept, UserSignal, AskHang, Tick>;

// ---- actions
struct ToNode {
  std::size_t node;
  rendezvous::Message message;
};
struct Disconnect {  ///< stop trying to reach the node, or drop its link
  std::size_t node;
};
struct Recall {  ///< try to reach the host again; answer: NodeUp (new incarnation) or NodeFailed
  std::size_t node;
};
struct SweepNode {  ///< end what the node's lost agent left on its host; answer: NodeSwept. Its link has
                    ///< ended, and no Recall of the host runs or comes before the answer
  std::size_t node;
};
struct PrintLine {  ///< one line for the user
  std::string text;
  bool terminal_only = false;  ///< only where somebody watches: on a terminal
};
struct Waiting {     ///< what the start waits for, about once a second; replaces the last one
  std::string text;  ///< empty: for nothing any more
  bool due = false;  ///< also shown where lines cannot be replaced
};
struct Detail {  ///< a completed step, shown with --verbose
  std::string text;
};
struct Dump {  ///< state of a hanging rank, for its file in the job directory
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::string text;
};
struct HangAnswered {};  ///< JobEnd::hang answers all AskHang events; if it is unset, no worker runs
using Action = std::variant<ToNode, Disconnect, Recall, SweepNode, PrintLine, Waiting, Detail, Dump,
                            HangAnswered, JournalEvent>;
using Actions = std::vector<Action>;

}  // namespace ddp::launcher::job

namespace ddp::launcher {

/// Collects the actions of one step, in their order.
class Outbox {
 public:
  /// `quiet`: the user wants no notices (--quiet).
  explicit Outbox(bool quiet) : quiet_(quiet) {}

  void add(job::Action action) { actions_.push_back(std::move(action)); }
  void send(std::size_t node, rendezvous::Message message) { add(job::ToNode{node, std::move(message)}); }
  void disconnect(std::size_t node) { add(job::Disconnect{node}); }
  void detail(std::string text) { add(job::Detail{std::move(text)}); }
  void say(std::string text) { add(job::PrintLine{std::move(text)}); }
  /// For the user, unless --quiet.
  void notify(std::string text) { quiet_ ? detail(std::move(text)) : say(std::move(text)); }

  /// Says that `node` `text`. Nodes of which a step says the same share the line of the first.
  void say_of(const std::string& node, const std::string& text) {
    if (add_to_groups(groups_, node, text) < lines_.size()) return;
    lines_.push_back(actions_.size());
    say({});
  }
  void notify_of(const std::string& node, const std::string& text) {
    quiet_ ? detail(node + ' ' + text) : say_of(node, text);
  }

  /// Returns the actions since the last call.
  job::Actions take_actions() {
    for (std::size_t i = 0; i < groups_.size(); ++i)
      actions_[lines_[i]] = job::PrintLine{group_hosts_text(groups_[i]) + ' ' + reason_text(groups_[i])};
    groups_.clear();
    lines_.clear();
    return std::exchange(actions_, {});
  }

 private:
  bool quiet_;
  job::Actions actions_;
  std::vector<StartGroup> groups_;
  std::vector<std::size_t> lines_;  ///< of each group, the index of its line
};

}  // namespace ddp::launcher
