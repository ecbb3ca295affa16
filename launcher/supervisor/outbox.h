#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "launcher/supervisor/job_events.h"

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

  /// Returns the actions since the last call.
  job::Actions take() { return std::exchange(actions_, {}); }

 private:
  bool quiet_;
  job::Actions actions_;
};

}  // namespace ddp::launcher
