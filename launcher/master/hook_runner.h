#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "launcher/job/job_spec.h"
#include "launcher/report/job_end.h"
#include "launcher/report/journal.h"

namespace ddp::launcher {

/// Runs the user's commands at events of the job (--on). They run beside the job, which never waits for them:
/// each has kTime and then dies with its process group, kMostRunning run at a time, and kMostWaiting wait.
/// Loop thread.
class HookRunner {
 public:
  static constexpr std::chrono::seconds kTime{30};
  static constexpr std::size_t kMostRunning = 4;
  static constexpr std::size_t kMostWaiting = 64;
  static constexpr std::size_t kMostText = 64u << 10;  ///< of one command's output; the rest is dropped

  struct HookSettings {
    std::vector<Hook> hooks;
    std::vector<std::string> env;                   ///< of the commands, as NAME=value
    std::function<void(const std::string&)> say;    ///< gets warnings, one for each hook
    std::function<void(const std::string&)> write;  ///< gets the commands' output, for the job's files
    std::chrono::milliseconds time = kTime;         ///< of one command
  };

  HookRunner(asio::any_io_executor executor, HookSettings settings)
      : executor_(std::move(executor)), settings_(std::move(settings)) {}

  /// Starts the hooks of an event, or lets them wait for others. `line`: their standard input. `cause`: the
  /// failure behind the event; null: none.
  void on_event(const JournalEvent& event, const std::string& line, const Failure* cause = nullptr);
  /// Drops the hooks that wait, except those of the job's end.
  void drop_waiting();
  /// Kills the hooks that run, and drops those that wait.
  void stop();
  bool idle() const { return running_ == 0 && waiting_.empty(); }

 private:
  struct Call {
    std::size_t hook;
    std::string line;
    std::vector<std::string> env;
  };
  void start_waiting();
  Awaitable<> run(Call call);
  void warn(std::size_t hook, const std::string& what);

  asio::any_io_executor executor_;
  HookSettings settings_;
  std::deque<Call> waiting_;
  std::size_t running_ = 0;
  std::set<std::size_t> warned_;  ///< hooks that had a warning
  std::set<ToolStop*> stops_;     ///< of the hooks that run
  bool has_run_ = false;          ///< all ranks have run
};

/// Returns what a hook's command learns besides HookSettings::env (docs/users/operate.md): "NAME=value",
/// where an unknown value is empty.
std::vector<std::string> hook_variables(const JournalEvent& event, std::string_view name,
                                        const Failure* cause);

/// Returns which of Hook::kEvents a change of the job's state is; empty: none. `has_run`: all ranks have run
/// before.
std::string_view hook_event(const JournalEvent& event, bool has_run);

}  // namespace ddp::launcher
