#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/asio.h"
#include "launcher/agent/worker_group.h"
#include "launcher/inspection/process_inspection.h"
#include "launcher/inspection/tool_run.h"
#include "launcher/keeper/process_tree.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Answers the master's queries about running workers: their stacks, and commands in a worker's environment.
/// Its children end with the attempt at the latest. Loop thread; the owner keeps the object alive until
/// `idle` has returned.
class NodeQueries {
 public:
  using SendAnswer = std::function<void(const rendezvous::QueryAnswer&)>;
  using Leaders = std::map<std::uint32_t, pid_t>;  ///< the live ranks

  static constexpr std::size_t kMostQueries = 8;
  static constexpr std::size_t kCommandText = 1u << 20;  ///< bytes of a command's output; the rest is dropped

  NodeQueries(asio::any_io_executor executor, SendAnswer send)
      : executor_(executor), send_(std::move(send)), tasks_(executor) {}

  /// An attempt begins. `workers` by local rank; `first_rank` is that of the first one.
  void begin(std::uint32_t first_rank, const std::vector<WorkerSpec>& workers, TreeScope tree);
  void start(const rendezvous::Query& query, Leaders leaders);
  void cancel(std::uint32_t request);
  /// The attempt ends: ends all queries. None starts until `begin`.
  void stop();
  Awaitable<> idle() { return tasks_.all_ends(); }
  /// Children that no other component may reap.
  std::vector<pid_t> pids() const;

 private:
  struct RunningQuery {
    std::set<pid_t> pids;
    ToolStop stop;
    std::unique_ptr<ProcessInspection> inspection;  ///< null: a command
  };
  static Awaitable<> run_command(NodeQueries* self, rendezvous::Query query);
  static Awaitable<> run_inspection(NodeQueries* self, std::uint32_t request);
  static void end(RunningQuery& running);
  void answer(std::uint32_t request, std::uint32_t rank, std::string text);
  void refuse(std::uint32_t request, std::string trouble);

  asio::any_io_executor executor_;
  SendAnswer send_;
  std::map<std::uint32_t, WorkerSpec> workers_;  ///< by rank
  TreeScope tree_;
  std::map<std::uint32_t, RunningQuery> running_;  ///< by request
  bool stopped_ = true;
  TaskGroup tasks_;
};

}  // namespace ddp::launcher
