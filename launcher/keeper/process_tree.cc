#include "launcher/keeper/process_tree.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "launcher/keeper/cgroup.h"
#include "launcher/keeper/mark_search.h"
#include "launcher/keeper/process_fd.h"

namespace ddp::launcher {
namespace {

/// A tree that does not come to rest in this time is killed while it runs.
constexpr std::chrono::milliseconds kFreezeBound{1000};
/// Descriptors kept free for reading /proc and for the caller.
constexpr rlim_t kSpareDescriptors = 32;
/// The time between two polls of a running search.
constexpr std::chrono::milliseconds kSearchPause{20};

/// Empty: no such process, or no free descriptor (sets `crowded`).
UniqueFd open_if_spare(pid_t pid, bool& crowded) {
  UniqueFd fd = open_process(pid);
  rlimit limit{};
  if (!fd) {
    crowded = crowded || errno == EMFILE || errno == ENFILE;
  } else if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
             static_cast<rlim_t>(fd.get()) + kSpareDescriptors > limit.rlim_cur) {
    crowded = true;
    fd.reset();
  }
  return fd;
}

bool is_ancestor_of_us(pid_t pid, const ProcessMap& table) {
  return find_upwards(table, getpid(), [pid](const ProcessInfo& info) { return info.parent == pid; }) != 0;
}

bool is_below_another_keeper(pid_t pid, const ProcessMap& table) {
  return find_upwards(table, pid, [](const ProcessInfo& info) {
           return info.comm == kKeeperName && info.pid != getpid();
         }) != 0;
}

}  // namespace

std::string LeftProcess::text() const {
  std::string text =
      std::to_string(pid) + " (" + comm + ", state " + state + ", uid " + std::to_string(uid) + ")";
  if (err == EPERM) text += ", no permission to signal it";
  return text;
}

TreeKill::TreeKill(TreeScope scope, std::chrono::milliseconds bound,
                   std::optional<std::vector<KnownProcess>> only)
    : scope_(std::move(scope)),
      chosen_(only.has_value()),
      give_up_(Clock::now() + bound),
      freeze_until_(Clock::now() + std::min(bound / 2, kFreezeBound)) {
  if (!only) return;
  for (KnownProcess& child : *only) {
    const auto info = read_process(child.pid);
    // Check the end after the read, so that `info` belongs to the descriptor's process.
    if (child.fd && info && info->parent == getpid() && !has_ended(child.fd.get()))
      adopt(child.pid, std::move(child.fd), false);
  }
}

TreeKill::TreeKill(TreeKill&&) noexcept = default;
TreeKill::~TreeKill() = default;

bool TreeKill::step() {
  if (phase_ == KillPhase::kDone) return true;
  crowded_ = false;
  drop_dead();
  std::size_t fresh = kill_cgroup();
  ProcessMap table;
  visit_processes([&](ProcessInfo&& info) {
    // Take it at once if its parent is known: a process that keeps forking and exiting is gone after the
    // pass. A process that we may not stop goes on forking, so waiting for it to rest would be in vain.
    const bool ours = (info.parent == getpid() || members_.contains(info.parent)) && !kept(info);
    if (ours && info.state == 'Z') {
      if (ended_meanwhile(info)) ++fresh;
    } else if (ours && !members_.contains(info.pid) && take(info.pid) && members_[info.pid].err == 0) {
      ++fresh;
    }
    table.emplace(info.pid, std::move(info));
  });
  fresh += take_new(table);
  fresh += take_marked(table);
  const auto now = Clock::now();
  bool retry_later = fresh > 0 || crowded_;
  if (phase_ == KillPhase::kFreeze &&
      ((fresh == 0 && all_stopped(table)) || crowded_ || now >= freeze_until_)) {
    phase_ = KillPhase::kKill;
    // Only a later pass proves that no process was forked in between.
    retry_later = !members_.empty();
    for (auto& [pid, member] : members_)
      signal(pid, member, SIGKILL);
  }
  drop_dead();
  const bool only_foreign =
      std::all_of(members_.begin(), members_.end(), [](const auto& m) { return m.second.err != 0; });
  const bool searched = phase_ == KillPhase::kKill && !retry_later && search(table);
  const bool over = searched && only_foreign;
  if (over || now >= give_up_) phase_ = KillPhase::kDone;
  complete_ = complete_ && (over || phase_ != KillPhase::kDone);
  if (phase_ == KillPhase::kDone) search_.reset();
  return phase_ == KillPhase::kDone;
}

/// Adopts the members of the control group, so that their end is waited for. The group's kill ends them; no
/// fork outruns it.
std::size_t TreeKill::kill_cgroup() {
  if (!scope_.cgroup) return 0;
  std::vector<KnownProcess> opened;
  for (const pid_t pid : scope_.cgroup->pids()) {
    if (!members_.contains(pid)) opened.push_back({pid, open_if_spare(pid, crowded_)});
  }
  // A pid that is listed again after its descriptor was opened was not reused.
  const std::vector<pid_t> listed = scope_.cgroup->pids();
  for (auto& [pid, fd] : opened) {
    if (!fd || has_ended(fd.get()) || !std::binary_search(listed.begin(), listed.end(), pid)) continue;
    adopt(pid, std::move(fd), true);
  }
  if (!listed.empty()) scope_.cgroup->kill();
  return opened.size();
}

/// A zombie that we did not kill may have forked just before it ended, too late for this pass to see the
/// child.
bool TreeKill::ended_meanwhile(const ProcessInfo& info) {
  const auto stat =
      taken_.contains(info.pid) ? std::nullopt : read_stat(info.pid);  // a zombie executes nothing
  return stat && std::exchange(ended_[info.pid], stat->started) != stat->started;
}

bool TreeKill::kept(const ProcessInfo& info) const {
  if (info.parent != getpid()) return false;
  return (chosen_ && !members_.contains(info.pid)) || is_search_reader(info.pid);
}

/// Takes in every descendant, from the top down, and the marked processes with their descendants.
std::size_t TreeKill::take_new(const ProcessMap& table) {
  std::multimap<pid_t, pid_t> children;
  for (const auto& [pid, info] : table)
    children.emplace(info.parent, pid);
  std::vector<pid_t> reached{getpid()};
  for (const auto& [pid, member] : members_)
    reached.push_back(pid);
  std::size_t fresh = 0;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const auto [from, to] = children.equal_range(reached[i]);
    for (auto child = from; child != to; ++child) {
      const pid_t pid = child->second;
      if (kept(table.at(pid))) continue;
      if (!members_.contains(pid)) {
        if (!take(pid)) {
          // The process ended during the pass; only the next pass shows its children.
          if (table.at(pid).state != 'Z') ++fresh;
          continue;
        }
        if (members_[pid].err == 0) ++fresh;
      }
      reached.push_back(pid);
    }
  }
  return fresh;
}

/// Returns true when no search is left to do: the last one found nothing.
bool TreeKill::search(const ProcessMap& table) {
  if (search_) return false;
  if (scope_.job_id.empty() || !std::exchange(search_again_, false)) return true;
  std::vector<ProcessInfo> suspects;
  for (const auto& [pid, info] : table) {
    if (!searched_.contains(pid) && may_be_marked(info, table)) suspects.push_back(info);
  }
  // Read processes in state D last: they may hold the locks that the reader needs.
  std::stable_partition(suspects.begin(), suspects.end(), [](const auto& info) { return info.state != 'D'; });
  std::vector<pid_t> pids;
  for (const ProcessInfo& info : suspects) {
    pids.push_back(info.pid);
    searched_.insert(info.pid);
  }
  if (pids.empty()) return true;
  search_ = std::make_unique<MarkSearch>(scope_.job_id, std::move(pids));
  return false;
}

bool TreeKill::may_be_marked(const ProcessInfo& info, const ProcessMap& table) const {
  return info.pid != getpid() && info.state != 'Z' && !members_.contains(info.pid) && !kept(info) &&
         info.uid == geteuid() && !is_ancestor_of_us(info.pid, table) &&
         !is_below_another_keeper(info.pid, table);
}

/// Adopts what the running search has found so far.
std::size_t TreeKill::take_marked(const ProcessMap& table) {
  if (!search_) return 0;
  std::size_t fresh = 0;
  for (MarkedProcess& found : search_->take_found())
    if (adopt_found(std::move(found), table)) ++fresh;
  complete_ = complete_ && !search_->skipped();
  if (search_->is_over()) search_.reset();
  return fresh;
}

/// True if the process has become a member. The order makes this safe: open a descriptor, read the process,
/// then check that its parent was still alive.
bool TreeKill::take(pid_t pid) {
  UniqueFd fd = open_if_spare(pid, crowded_);
  if (!fd || has_ended(fd.get())) return false;
  const auto info = read_process(pid);
  if (!info) return false;
  if (info->parent != getpid()) {
    const auto parent = members_.find(info->parent);
    if (parent == members_.end() || has_ended(parent->second.fd.get())) return false;
  }
  if (has_ended(fd.get())) return false;
  adopt(pid, std::move(fd), false);
  return true;
}

/// Adopts a process that carries the mark.
bool TreeKill::adopt_found(MarkedProcess found, const ProcessMap& table) {
  const auto info = table.find(found.pid);
  if (info == table.end() || !may_be_marked(info->second, table) || has_ended(found.fd.get())) return false;
  search_again_ = true;
  phase_ = KillPhase::kFreeze;  // it may fork, too
  freeze_until_ = Clock::now() + kFreezeBound;
  adopt(found.pid, std::move(found.fd), false);
  return true;
}

void TreeKill::adopt(pid_t pid, UniqueFd fd, bool grouped) {
  TreeProcess& member = members_[pid];
  member.grouped = grouped;
  member.fd = std::move(fd);
  if (taken_.insert(pid).second) ++found_;
  signal(pid, member, phase_ == KillPhase::kFreeze ? SIGSTOP : SIGKILL);
}

bool TreeKill::all_stopped(const ProcessMap& table) const {
  return std::all_of(members_.begin(), members_.end(), [&table](const auto& entry) {
    const auto info = table.find(entry.first);
    if (entry.second.err != 0 || info == table.end()) return true;
    // D is a parent inside vfork, or a process stuck in the kernel; SIGKILL takes effect before it can fork
    // again.
    return std::string_view("TtDZX").find(info->second.state) != std::string_view::npos;
  });
}

void TreeKill::signal(pid_t pid, TreeProcess& member, int number) {
  if (member.err != 0) return;
  const int err = signal_process(member.fd.get(), pid, number);
  if (err != ESRCH && !member.grouped) member.err = err;
}

void TreeKill::drop_dead() {
  std::erase_if(members_, [](const auto& entry) { return has_ended(entry.second.fd.get()); });
}

void TreeKill::wait(std::chrono::milliseconds limit) {
  if (phase_ == KillPhase::kFreeze) limit = std::min(limit, std::chrono::milliseconds(1));
  const auto until = std::min(Clock::now() + limit, give_up_);
  if (search_) return search_->wait(std::min(limit, kSearchPause));
  const auto rest = [until] {
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()),
                    std::chrono::milliseconds(0));
  };
  if (phase_ == KillPhase::kFreeze) {
    poll(nullptr, 0, static_cast<int>(rest().count()));
    return;
  }
  for (const auto& [pid, member] : members_) {
    if (member.err == 0) wait_for_end(member.fd.get(), rest());
  }
}

std::vector<LeftProcess> TreeKill::left() const {
  std::vector<LeftProcess> left;
  for (ProcessInfo& info : list_processes()) {
    const auto member = members_.find(info.pid);
    const bool known = member != members_.end() && !has_ended(member->second.fd.get());
    // A process that always exited before it could be stopped has been re-parented to us.
    const bool escaped = info.parent == getpid() && info.state != 'Z' && !kept(info);
    if (!known && !escaped) continue;
    const int err = known ? member->second.err : 0;
    left.push_back({info.pid, info.uid, info.state, std::move(info.comm), err});
  }
  return left;
}

std::vector<LeftProcess> kill_own_tree(const TreeScope& scope, std::chrono::milliseconds bound) {
  TreeKill kill(scope, bound);
  while (!kill.step())
    kill.wait(bound);
  return kill.left();
}

bool has_children() {
  siginfo_t info = {};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

std::size_t reap_adopted(std::span<const pid_t> owned) {
  const auto is_owned = [owned](pid_t pid) {
    return std::find(owned.begin(), owned.end(), pid) != owned.end();
  };
  std::size_t reaped = 0;
  for (;;) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return reaped;
    if (is_owned(info.si_pid)) break;
    if (waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG) == 0) ++reaped;
  }
  // An owned zombie that comes first hides the others; only /proc shows them.
  for (const ProcessInfo& process : list_processes()) {
    if (process.parent != getpid() || process.state != 'Z' || is_owned(process.pid)) continue;
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0)
      ++reaped;
  }
  return reaped;
}

}  // namespace ddp::launcher
