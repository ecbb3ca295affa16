#include "launcher/agent_core/worker_processes.h"

#include <algorithm>
#include <utility>

#include "base/result.h"

namespace ddp::launcher {

WorkerProcess* WorkerProcesses::find(std::uint32_t local) {
  const auto found = processes_.find(local);
  return found == processes_.end() ? nullptr : &found->second;
}

void WorkerProcesses::begin_attempt() {
  greeted_reported_ = ready_reported_ = false;
  for (auto& [local, process] : processes_) {
    DDP_REQUIRE(!process.killed, local, process.pid);
    process.ready = process.answered = false;
  }
}

void WorkerProcesses::started(std::uint32_t local, WorkerProcess process) {
  DDP_REQUIRE(!is_alive(local), local, process.pid);
  processes_.emplace(local, std::move(process));
}

void WorkerProcesses::greeted(std::uint32_t local, bool can_rejoin) {
  if (WorkerProcess* process = find(local)) process->can_rejoin = can_rejoin;
}

void WorkerProcesses::ready(std::uint32_t local) {
  if (WorkerProcess* process = find(local)) process->ready = true;
}

void WorkerProcesses::answered(std::uint32_t local, std::optional<std::uint64_t> held) {
  WorkerProcess* process = find(local);
  if (process == nullptr) return;
  process->answered = true;
  process->held = held;
}

void WorkerProcesses::kill(std::uint32_t local, std::string why) {
  WorkerProcess* process = find(local);
  DDP_REQUIRE(process != nullptr, local, why);
  process->killed = std::move(why);
}

const std::string* WorkerProcesses::killed(std::uint32_t local) const {
  const auto found = processes_.find(local);
  return found != processes_.end() && found->second.killed ? &*found->second.killed : nullptr;
}

bool WorkerProcesses::take_greeted_change() {
  const bool all = std::all_of(processes_.begin(), processes_.end(),
                               [](const auto& entry) { return entry.second.can_rejoin; });
  return all && !processes_.empty() && !std::exchange(greeted_reported_, true);
}

bool WorkerProcesses::take_ready_change() {
  const bool all =
      std::all_of(processes_.begin(), processes_.end(), [](const auto& entry) { return entry.second.ready; });
  return all && !processes_.empty() && !std::exchange(ready_reported_, true);
}

std::vector<std::uint32_t> WorkerProcesses::unanswered() const {
  std::vector<std::uint32_t> late;
  for (const auto& [local, process] : processes_)
    if (!process.answered && !process.killed) late.push_back(local);
  return late;
}

std::vector<std::uint32_t> WorkerProcesses::dying() const {
  std::vector<std::uint32_t> dying;
  for (const auto& [local, process] : processes_)
    if (process.killed) dying.push_back(local);
  return dying;
}

std::vector<rendezvous::Survivor> WorkerProcesses::survivors() const {
  std::vector<rendezvous::Survivor> survivors;
  for (const auto& [local, process] : processes_) {
    if (process.killed) continue;
    survivors.push_back({local, process.answered && process.held.has_value(), process.held.value_or(0)});
  }
  return survivors;
}

}  // namespace ddp::launcher
