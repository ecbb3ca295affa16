#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "rendezvous/protocol/message.h"

/// What goes into the Supervisor and what comes out of it. Plain data. A node is its host's index in the
/// job's list; `incarnation` counts the links to that host, from 1.
namespace ddp::launcher::job {

using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC

// ---- events
struct NodeUp {  ///< its agent said hello
  std::size_t node;
  rendezvous::Hello hello;
  std::string connected;  ///< address it was reached at; empty: not known
  std::uint32_t incarnation = 1;
};
struct NodeFailed {  ///< it could not be reached, or no agent answered there
  std::size_t node;
  Error error;
};
struct NodeHeartbeat {  ///< any byte of it
  std::size_t node;
  std::uint32_t incarnation = 1;
};
struct FromNode {
  std::size_t node;
  rendezvous::Message message;
  Time happened;  ///< when it happened by the master's clock, as well as the offset is known
  Time error{0};  ///< ± of `happened`
  std::uint32_t incarnation = 1;
};
struct LinkEnded {  ///< nothing comes from it any more; NodeGone follows when it is known why
  std::size_t node;
  Error error;
  std::uint32_t incarnation = 1;
};
struct NodeGone {  ///< its link ended; expected after Leave, a lost node otherwise
  std::size_t node;
  Error error;
  bool workers_dead = false;  ///< it is certain that none of its workers lives
  std::uint32_t incarnation = 1;
  bool workers_left = false;  ///< its keeper could not end them all
};
struct UserSignal {
  int number;
};
struct Tick {};
using Event =
    std::variant<NodeUp, NodeFailed, NodeHeartbeat, FromNode, LinkEnded, NodeGone, UserSignal, Tick>;

// ---- actions
struct ToNode {
  std::size_t node;
  rendezvous::Message message;
};
struct Disconnect {  ///< stop trying to reach it, or drop its link
  std::size_t node;
};
struct Recall {  ///< try to reach it again: NodeUp with a new incarnation, or NodeFailed, is the answer
  std::size_t node;
};
struct PrintLine {  ///< for the user, one line
  std::string text;
};
struct Detail {  ///< a step done, for who asked for --verbose
  std::string text;
};
struct Dump {  ///< what is known of a rank that hangs: to be added to its file in the job directory
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::string text;
};
using Action = std::variant<ToNode, Disconnect, Recall, PrintLine, Detail, Dump>;
using Actions = std::vector<Action>;

}  // namespace ddp::launcher::job
