#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "launcher/report/journal.h"
#include "rendezvous/protocol/message.h"

/// Events and actions of the Supervisor, as plain data. A node is its host's index in the job's list.
/// `incarnation` counts the links to that host, from 1.
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
  bool now = false;  ///< `ddplaunch stop --now`: the workers get no more time
};
struct Tick {};
using Event = std::variant<NodeUp, NodeFailed, NodeHeartbeat, NodeReachable, FromNode, LinkEnded, NodeGone,
                           NodeSwept, UserSignal, Tick>;

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
using Action =
    std::variant<ToNode, Disconnect, Recall, SweepNode, PrintLine, Waiting, Detail, Dump, JournalEvent>;
using Actions = std::vector<Action>;

}  // namespace ddp::launcher::job
