// The end of an attempt's own tree first. Then what a clean-up or a sweep of a host needs: keepers of dead
// agents, processes that nobody can attribute, and the three calls that use both.
#include "launcher/keeper/attempt_tree.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "base/files.h"
#include "base/text.h"
#include "launcher/keeper/process_table.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {
namespace {

/// The time between two passes of a kill.
constexpr std::chrono::milliseconds kPause{1};
/// The last process to die counts as a member of its group for a moment longer.
constexpr int kRemoveTries = 100;

}  // namespace

AttemptTree::AttemptTree(asio::any_io_executor executor, KeeperSocket& keeper)
    : executor_(std::move(executor)), keeper_(keeper) {}

const TreeScope& AttemptTree::begin(std::uint32_t attempt) {
  // A failure is common (SSH sessions, containers) and costs only this safeguard, so it is a text for
  // --verbose and no error.
  auto group = Cgroup::make(own_cgroups(), scope_.job_id, attempt);
  if (group) {
    scope_.cgroup = std::make_shared<Cgroup>(std::move(*group));
    // Before anything runs in the group: if the agent dies now, its keeper already knows what to kill.
    keeper_.set_cgroup(scope_.cgroup->path());
    how_ = "the workers run in the control group " + scope_.cgroup->path();
  } else {
    scope_.cgroup.reset();
    how_ =
        "no control group for the workers; they are found by the process tree (" + group.error().text + ")";
  }
  return scope_;
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

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::milliseconds kLookPause{5};
/// Between two searches for processes that a keeper is ending.
constexpr std::chrono::milliseconds kSearchPause{100};
/// An agent gives its workers 5 s after SIGTERM.
constexpr std::chrono::seconds kTermTime{8};
/// The time for the end of a killed keeper's agent.
constexpr std::chrono::seconds kKillTime{3};
/// The time for the keeper of a lost node, within the master's bound for a sweep.
constexpr std::chrono::seconds kLostTermTime{3};
constexpr std::size_t kMaxCgroup = 64u << 10;

ProcessMap all_processes() {
  ProcessMap table;
  visit_processes([&table](ProcessInfo&& info) { table.emplace(info.pid, std::move(info)); });
  return table;
}

/// Returns the keeper above a process, which is another one than ours; 0: there is none.
pid_t keeper_of(pid_t pid, const ProcessMap& table) {
  return find_upwards(table, pid, [](const ProcessInfo& info) {
    return info.comm == kKeeperName && info.pid != ::getppid();
  });
}

bool is_below(const std::set<pid_t>& keepers, pid_t pid, const ProcessMap& table) {
  return find_upwards(table, pid, [&](const ProcessInfo& info) { return keepers.contains(info.pid); }) != 0;
}

/// Marked processes below keepers, by keeper. Their ends are not waited for.
using Guarded = std::map<pid_t, std::set<pid_t>>;

Awaitable<Guarded> find_guarded(asio::any_io_executor executor, std::string job_id, std::set<pid_t> spared) {
  const ProcessMap table = all_processes();
  std::vector<pid_t> suspects;
  for (const auto& [pid, info] : table) {
    if (info.uid == ::geteuid() && info.state != 'Z' && keeper_of(pid, table) != 0 &&
        !is_below(spared, pid, table))
      suspects.push_back(pid);
  }
  MarkSearch search(job_id, std::move(suspects));
  Guarded guarded;
  for (bool over = false; !over;) {
    for (const MarkedProcess& found : search.take_found())
      guarded[keeper_of(found.pid, table)].insert(found.pid);
    over = search.is_over();
    if (!over) co_await pause_for(executor, kLookPause);
  }
  co_return guarded;
}

/// Signals a keeper that still has its number and its name.
void signal_keeper(pid_t pid, int number) {
  const UniqueFd fd = open_process(pid);
  const auto info = read_process(pid);
  if (fd && info && info->comm == kKeeperName && !has_ended(fd.get()))
    (void)signal_process(fd.get(), pid, number);
}

/// Processes in another PID namespace have other numbers there, so the master's list does not name them.
bool has_our_pids(pid_t pid) {
  struct stat ours {};
  struct stat its {};
  return ::stat("/proc/self/ns/pid", &ours) == 0 &&
         ::stat(("/proc/" + std::to_string(pid) + "/ns/pid").c_str(), &its) == 0 && ours.st_ino == its.st_ino;
}

struct StoppedKeepers {
  std::size_t found = 0;           ///< processes that they guarded
  std::vector<std::string> alive;  ///< keepers that still guard some
};

/// `only`: keepers that may be stopped; unset: all, also in other PID namespaces.
Awaitable<StoppedKeepers> stop_keepers_except(asio::any_io_executor executor, std::string job_id,
                                              std::set<pid_t> spared, std::optional<std::set<pid_t>> only,
                                              milliseconds term_time, const bool* stop) {
  std::set<pid_t> found;
  std::set<pid_t> terminated;
  StoppedKeepers stopped;
  const auto kill_at = Clock::now() + term_time;
  bool killed = false;
  while (!*stop) {
    const Guarded guarded = co_await find_guarded(executor, job_id, spared);
    stopped.alive.clear();
    bool may_end = false;
    const bool kill_now = !killed && Clock::now() >= kill_at;
    // Each pass searches again: a keeper is done when nothing marked is left below it.
    for (const auto& [keeper, marked] : guarded) {
      stopped.alive.push_back(counted(marked.size(), "process", "processes") + " below " +
                              std::string(kKeeperName) + ' ' + std::to_string(keeper));
      if (only && !(only->contains(keeper) && has_our_pids(keeper))) continue;
      may_end = true;
      found.insert(marked.begin(), marked.end());
      // SIGTERM once, since it makes the agent end its workers. SIGKILL is for a keeper that hangs: its agent
      // sees that and ends the tree itself.
      if (terminated.insert(keeper).second) signal_keeper(keeper, SIGTERM);
      if (kill_now) signal_keeper(keeper, SIGKILL);
    }
    killed = killed || kill_now;
    if (!may_end || Clock::now() >= kill_at + kKillTime) break;
    co_await pause_for(executor, kSearchPause);
  }
  stopped.found = found.size();
  co_return stopped;
}

/// Returns whether the process may have come from a dead agent: it is an orphan. The reapers of orphans are
/// process 1, the user's systemd, Slurm's, and ancestors of this agent, which was started in the same way. A
/// server of logins is no reaper.
bool is_orphan(const ProcessInfo& info, const std::set<pid_t>& old, const std::set<pid_t>& above_us,
               const ProcessMap& table) {
  pid_t at = info.pid;
  for (std::size_t left = table.size(); left > 0; --left) {
    const auto found = table.find(at);
    if (found == table.end()) return true;  // its parent ended meanwhile
    const pid_t parent = found->second.parent;
    if (parent == 1) return true;
    if (parent == 0) return false;  // the kernel's, or of another container
    const auto above = table.find(parent);
    if (above == table.end()) return true;
    if (old.contains(parent)) {
      const std::string& comm = above->second.comm;
      return !comm.starts_with("sshd") &&
             (comm == "systemd" || comm == "slurmstepd" || above_us.contains(parent));
    }
    at = parent;
  }
  return true;
}

std::string unit_of(pid_t pid) {
  return systemd_unit(read_start("/proc/" + std::to_string(pid) + "/cgroup", kMaxCgroup));
}

/// Names the processes that could belong to the lost node and were not ended: orphans of other users, and
/// those whose environment does not name another job.
Awaitable<std::vector<std::string>> find_unproven(asio::any_io_executor executor, LostNode node) {
  const std::uint64_t since =
      node.since_ns / (1'000'000'000ULL / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK)));
  const ProcessMap table = all_processes();
  std::set<pid_t> old;
  std::set<pid_t> above_us{1};
  for (const auto& [pid, info] : table) {
    // /proc/PID/stat of a process in state D may block for ever. Such a process counts as young, which at
    // worst prevents a proof.
    const auto stat = info.state == 'D' ? std::nullopt : read_stat(pid);
    if (stat && stat->started < since) old.insert(pid);
  }
  (void)find_upwards(table, ::getpid(), [&](const ProcessInfo& info) {
    above_us.insert(info.pid);
    return false;
  });
  const std::string our_unit = unit_of(::getpid());  // and that of the lost agent, which was started alike
  std::vector<pid_t> unproven;
  std::vector<pid_t> suspects;
  for (const auto& [pid, info] : table) {
    if (info.state == 'Z' || old.contains(pid) || above_us.contains(pid) ||
        is_below({::getpid()}, pid, table) || is_below(node.live_keepers, pid, table) ||
        !is_orphan(info, old, above_us, table))
      continue;
    if (const std::string unit = unit_of(pid); !unit.empty() && !our_unit.empty() && unit != our_unit)
      continue;
    (info.uid == ::geteuid() ? suspects : unproven).push_back(pid);
  }
  MarkSearch search(node.job_id, std::move(suspects));
  for (bool over = false; !over;) {
    for (const MarkedProcess& found : search.take_found())
      unproven.push_back(found.pid);
    over = search.is_over();
    if (!over) co_await pause_for(executor, kLookPause);
  }
  const std::vector<pid_t> unmarked = search.take_unproven();
  unproven.insert(unproven.end(), unmarked.begin(), unmarked.end());
  std::vector<std::string> names;
  // With hidepid even process 1 is invisible, so nothing that was found, or not found, is a proof (I3).
  if (!read_stat(1)) names.emplace_back("any that /proc hides from this user");
  for (const pid_t pid : unproven) {
    const auto info = read_process(pid);
    if (info && info->state != 'Z')
      names.push_back(LeftProcess{pid, info->uid, info->state, info->comm}.text() + ", an orphan");
  }
  co_return names;
}

}  // namespace

std::string systemd_unit(std::string_view groups) {
  // Version 1 has the hierarchy "name=systemd", version 2 the line "0::". The former counts where both exist.
  std::size_t at = groups.find("name=systemd:/");
  if (at == std::string_view::npos) at = groups.starts_with("0::/") ? 0 : groups.find("\n0::/");
  if (at == std::string_view::npos) return {};
  std::string_view path = groups.substr(groups.find('/', at));
  path = path.substr(0, path.find('\n'));
  constexpr std::string_view kUser = "/user.slice/user-";
  // The lost agent and this one belong to different logins of one user, so all sessions of a user count as
  // one unit.
  std::size_t end = path.starts_with(kUser) ? path.find(".slice/", kUser.size()) : std::string_view::npos;
  for (const char* kind : {".service", ".scope"})
    if (end == std::string_view::npos) end = path.find(kind);
  return end == std::string_view::npos ? std::string() : std::string(path.substr(0, path.find('/', end)));
}

Awaitable<std::size_t> stop_keepers(asio::any_io_executor executor, std::string job_id, const bool* stop) {
  const StoppedKeepers stopped =
      co_await stop_keepers_except(executor, std::move(job_id), {}, std::nullopt, kTermTime, stop);
  co_return stopped.found;
}

Awaitable<SweptJob> sweep_lost_node(asio::any_io_executor executor, LostNode node, const bool* stop) {
  StoppedKeepers stopped =
      co_await stop_keepers_except(executor, node.job_id, node.live_keepers, node.own, kLostTermTime, stop);
  SweptJob swept = co_await sweep_job(executor, node.job_id, stop);
  swept.found += stopped.found;
  swept.left.insert(swept.left.end(), stopped.alive.begin(), stopped.alive.end());
  if (*stop) co_return swept;
  const std::vector<std::string> unproven = co_await find_unproven(executor, std::move(node));
  swept.left.insert(swept.left.end(), unproven.begin(), unproven.end());
  co_return swept;
}

Awaitable<SweptJob> sweep_job(asio::any_io_executor executor, std::string job_id, const bool* stop) {
  TreeScope scope;
  scope.job_id = std::move(job_id);
  TreeKill kill(std::move(scope), kKillBound, std::vector<KnownProcess>{});  // none of our own children
  SweptJob swept;
  while (!kill.step()) {
    if (*stop) {
      swept.left.emplace_back("the search was ended");
      co_return swept;
    }
    co_await pause_for(executor, kLookPause);
  }
  swept.found = kill.found();
  for (const LeftProcess& process : kill.left())
    swept.left.push_back(process.text());
  if (!kill.complete() && swept.left.empty()) swept.left.emplace_back("some processes could not be examined");
  co_return swept;
}

}  // namespace ddp::launcher
