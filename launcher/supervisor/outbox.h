#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "launcher/report/start_failures.h"
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
  job::Actions take() {
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
