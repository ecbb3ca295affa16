#include "launcher/keeper/job_sweep.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "launcher/keeper/mark_search.h"
#include "launcher/keeper/process_fd.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookPause{5};
/// Between two searches for processes that a keeper is ending.
constexpr std::chrono::milliseconds kSearchPause{100};
/// An agent gives its workers 5 s after SIGTERM.
constexpr std::chrono::seconds kTermTime{8};
/// The time for the end of a killed keeper's agent.
constexpr std::chrono::seconds kKillTime{3};

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

/// Marked processes below keepers, by keeper. Their ends are not waited for.
using Guarded = std::map<pid_t, std::set<pid_t>>;

Awaitable<Guarded> find_guarded(asio::any_io_executor executor, std::string job_id) {
  const ProcessMap table = all_processes();
  std::vector<pid_t> suspects;
  for (const auto& [pid, info] : table) {
    if (info.uid == ::geteuid() && info.state != 'Z' && keeper_of(pid, table) != 0) suspects.push_back(pid);
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

}  // namespace

Awaitable<std::size_t> stop_keepers(asio::any_io_executor executor, std::string job_id, const bool* stop) {
  std::set<pid_t> found;
  std::set<pid_t> terminated;
  const auto kill_at = Clock::now() + kTermTime;
  bool killed = false;
  while (!*stop && Clock::now() < kill_at + kKillTime) {
    const Guarded guarded = co_await find_guarded(executor, job_id);
    if (guarded.empty()) break;
    const bool kill_now = !killed && Clock::now() >= kill_at;
    for (const auto& [keeper, marked] : guarded) {
      found.insert(marked.begin(), marked.end());
      if (terminated.insert(keeper).second) signal_keeper(keeper, SIGTERM);
      if (kill_now) signal_keeper(keeper, SIGKILL);
    }
    killed = killed || kill_now;
    co_await pause_for(executor, kSearchPause);
  }
  co_return found.size();
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
