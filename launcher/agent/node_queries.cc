#include "launcher/agent/node_queries.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "launcher/keeper/cgroup.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// Text of one message: a longer one would delay the report of a worker's end.
constexpr std::size_t kPiece = rendezvous::kMaxAgentEvidence;
constexpr std::string_view kEnded = "the attempt has ended";

std::string value_of(const std::vector<std::string>& env, const std::string& name) {
  const auto found = std::find_if(env.begin(), env.end(),
                                  [&](const std::string& entry) { return entry.starts_with(name + "="); });
  return found == env.end() ? "" : found->substr(name.size() + 1);
}

/// A shell of this machine enters the directory and searches for the program, since the loop must not wait
/// for their disk.
ChildSpec child_of(const WorkerSpec& worker, const std::vector<std::string>& argv, const TreeScope& tree) {
  ChildSpec child;
  child.path = "/bin/sh";
  child.argv = {"sh", "-c", "cd -- \"$0\" && exec \"$@\"", worker.cwd.empty() ? "." : worker.cwd};
  child.argv.insert(child.argv.end(), argv.begin(), argv.end());
  child.env = worker.env;
  if (tree.cgroup) {
    child.cgroup = tree.cgroup->directory();
    child.cgroup_procs = tree.cgroup->procs();
  }
  return child;
}

}  // namespace

void NodeQueries::begin(std::uint32_t first_rank, const std::vector<WorkerSpec>& workers, TreeScope tree) {
  workers_.clear();
  for (const WorkerSpec& worker : workers)
    workers_[first_rank + worker.rank] = worker;
  tree_ = std::move(tree);
  stopped_ = false;
}

void NodeQueries::start(const rendezvous::Query& query, Leaders leaders) {
  std::erase_if(leaders, [&](const auto& leader) {
    return std::find(query.ranks.begin(), query.ranks.end(), leader.first) == query.ranks.end();
  });
  if (stopped_) return refuse(query.request, std::string(kEnded));
  if (leaders.empty()) return refuse(query.request, "the worker does not run");
  if (running_.contains(query.request) || running_.size() >= kMostQueries)
    return refuse(query.request, "its node answers " + std::to_string(running_.size()) + " other requests");
  RunningQuery& running = running_[query.request];
  if (!query.argv.empty()) return tasks_.start(run_command(this, query));
  ProcessInspection::Options options;
  options.leaders = std::move(leaders);
  const std::vector<std::string>& env = workers_[options.leaders.begin()->first].env;
  options.worker_path = value_of(env, "PATH");
  options.ras_address = value_of(env, "NCCL_RAS_ADDR");
  options.deadline = Clock::now() + std::chrono::milliseconds(query.timeout_ms);
  running.inspection = std::make_unique<ProcessInspection>(
      executor_, std::move(options), [this, request = query.request](const rendezvous::Inspection& found) {
        if (!found.last) answer(request, found.rank, found.text);
      });
  tasks_.start(run_inspection(this, query.request));
}

Awaitable<> NodeQueries::run_inspection(NodeQueries* self, std::uint32_t request) {
  RunningQuery& running = self->running_.at(request);
  co_await running.inspection->run();
  rendezvous::QueryAnswer last{request, 0, {}, true, 0, {}};
  if (running.stop.stopped) last.trouble = kEnded;
  self->running_.erase(request);
  self->send_(last);
}

Awaitable<> NodeQueries::run_command(NodeQueries* self, rendezvous::Query query) {
  RunningQuery& running = self->running_.at(query.request);
  const std::uint32_t rank = query.ranks.front();
  const auto deadline = Clock::now() + std::chrono::milliseconds(query.timeout_ms);
  ChildSpec child = child_of(self->workers_[rank], query.argv, self->tree_);
  ToolOutput output =
      co_await run_tool(std::move(child), deadline, kCommandText, &running.pids, &running.stop);
  for (std::size_t at = 0; at < output.text.size(); at += kPiece)
    self->answer(query.request, rank, output.text.substr(at, kPiece));
  rendezvous::QueryAnswer last{query.request, rank, {}, true, 0, {}};
  if (!output.status)
    last.trouble = running.stop.stopped ? std::string(kEnded) : output.trouble;
  else if (output.status->kind == ExitStatus::Kind::kSignaled)
    last.code = 128 + output.status->number;
  else
    last.code = output.status->number;
  self->running_.erase(query.request);
  self->send_(last);
}

void NodeQueries::answer(std::uint32_t request, std::uint32_t rank, std::string text) {
  send_({request, rank, std::move(text), false, 0, {}});
}

void NodeQueries::refuse(std::uint32_t request, std::string trouble) {
  send_({request, 0, {}, true, 0, std::move(trouble)});
}

void NodeQueries::end(RunningQuery& running) {
  running.stop.stop();
  if (running.inspection) running.inspection->cancel();
}

void NodeQueries::cancel(std::uint32_t request) {
  if (const auto found = running_.find(request); found != running_.end()) end(found->second);
}

void NodeQueries::stop() {
  stopped_ = true;
  for (auto& [request, running] : running_)
    end(running);
}

std::vector<pid_t> NodeQueries::pids() const {
  std::vector<pid_t> pids;
  for (const auto& [request, running] : running_) {
    const std::set<pid_t>& of_one = running.inspection ? running.inspection->pids() : running.pids;
    pids.insert(pids.end(), of_one.begin(), of_one.end());
  }
  return pids;
}

}  // namespace ddp::launcher
