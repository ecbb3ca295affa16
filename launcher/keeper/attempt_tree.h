#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/asio.h"
#include "launcher/keeper/cgroup.h"
#include "launcher/keeper/keeper.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {

/// The processes of one attempt after another on this node, as far as they must be gone at its end: what a
/// kill reaches, the control group they live in where we may make one, and what the keeper knows of it. Loop
/// thread.
class AttemptTree {
 public:
  /// `keeper` outlives us.
  AttemptTree(asio::any_io_executor executor, KeeperLink& keeper);

  void set_job(std::string job_id);

  /// Before the workers of an attempt start. Makes their control group; that there is none is no failure, for
  /// the tree is walked all the same.
  const TreeScope& begin(std::uint32_t attempt);
  /// In words, how the attempt will be ended: by which group, or why by none.
  const std::string& how() const { return how_; }
  /// The directory of the attempt's group; empty: it has none.
  std::string cgroup() const { return scope_.cgroup ? scope_.cgroup->path() : std::string(); }

  /// After the last worker was reaped: ends what they left (daemons, loaders in sessions of their own), reaps
  /// it, removes the group. Gives what could not be ended in kKillBound; zombies are none of it.
  Awaitable<std::vector<LeftProcess>> end();

 private:
  bool anything_left() const;

  asio::any_io_executor executor_;
  KeeperLink& keeper_;
  TreeScope scope_;
  std::string how_;
};

}  // namespace ddp::launcher
