#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/asio.h"
#include "launcher/keeper/cgroup.h"
#include "launcher/keeper/keeper_link.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {

/// Ends the processes of one attempt after another on this node. Makes the attempt's control group where
/// possible, and reports the group to the keeper. Loop thread.
class AttemptTree {
 public:
  /// `keeper` must outlive the object.
  AttemptTree(asio::any_io_executor executor, KeeperLink& keeper);

  void set_job(std::string job_id);

  /// Makes the control group of the workers; call before they start. A missing group is no failure, because
  /// the process tree is walked in any case.
  const TreeScope& begin(std::uint32_t attempt);
  const TreeScope& scope() const { return scope_; }
  /// Returns how the attempt will be ended, as text: the control group's path, or why the attempt has none.
  const std::string& how() const { return how_; }

  /// Ends and reaps what the workers left (daemons, loaders in sessions of their own), then removes the
  /// group. Call after the last worker was reaped. Returns what could not be ended within kKillBound, without
  /// zombies.
  Awaitable<std::vector<LeftProcess>> end();

 private:
  bool anything_left() const;

  asio::any_io_executor executor_;
  KeeperLink& keeper_;
  TreeScope scope_;
  std::string how_;
};

}  // namespace ddp::launcher
