#include "launcher/keeper/attempt_tree.h"

#include <chrono>
#include <utility>

namespace ddp::launcher {
namespace {

/// The time between two passes of a kill.
constexpr std::chrono::milliseconds kPause{1};
/// The last process to die counts as a member of its group for a moment longer.
constexpr int kRemoveTries = 100;

}  // namespace

AttemptTree::AttemptTree(asio::any_io_executor executor, KeeperLink& keeper)
    : executor_(std::move(executor)), keeper_(keeper) {}

void AttemptTree::set_job(std::string job_id) {
  scope_.job_id = std::move(job_id);
}

const TreeScope& AttemptTree::begin(std::uint32_t attempt) {
  auto group = Cgroup::make(own_cgroups(), scope_.job_id, attempt);
  if (group) {
    scope_.cgroup = std::make_shared<Cgroup>(std::move(*group));
    keeper_.set_cgroup(scope_.cgroup->path());
    how_ = "the workers run in the control group " + scope_.cgroup->path();
  } else {
    scope_.cgroup.reset();
    how_ =
        "no control group for the workers; they are found by the process tree (" + group.error().text + ")";
  }
  return scope_;
}

bool AttemptTree::anything_left() const {
  return has_children() || (scope_.cgroup && !scope_.cgroup->pids().empty());
}

Awaitable<std::vector<LeftProcess>> AttemptTree::end() {
  std::vector<LeftProcess> left;
  reap_adopted({});
  if (anything_left()) {
    TreeKill kill(scope_, kKillBound);
    while (!kill.step()) {
      co_await pause_for(executor_, kPause);
    }
    left = kill.left();
    reap_adopted({});
  }
  if (!scope_.cgroup) co_return left;
  bool removed = scope_.cgroup->remove();
  for (int tries = 0; !removed && left.empty() && tries < kRemoveTries; ++tries) {
    co_await pause_for(executor_, kPause);
    removed = scope_.cgroup->remove();
  }
  // Otherwise the keeper removes the group.
  if (removed) keeper_.drop_cgroup(scope_.cgroup->path());
  scope_.cgroup.reset();
  co_return left;
}

}  // namespace ddp::launcher
