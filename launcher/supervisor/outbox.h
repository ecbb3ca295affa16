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
    for (std::size_t i = 0; i < std::min(groups_.size(), kGroupsCompared); ++i)
      if (join_group(groups_[i].second, node, text)) return;
    groups_.emplace_back(actions_.size(), make_group(node, text));
    say({});
  }
  void notify_of(const std::string& node, const std::string& text) {
    quiet_ ? detail(node + ' ' + text) : say_of(node, text);
  }

  /// Returns the actions since the last call.
  job::Actions take() {
    for (const auto& [at, group] : groups_)
      actions_[at] = job::PrintLine{group_hosts_text(group) + ' ' + reason_text(group)};
    groups_.clear();
    return std::exchange(actions_, {});
  }

 private:
  bool quiet_;
  job::Actions actions_;
  std::vector<std::pair<std::size_t, StartGroup>> groups_;  ///< each with the index of its line
};

}  // namespace ddp::launcher
