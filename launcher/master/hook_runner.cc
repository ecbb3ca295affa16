#include "launcher/master/hook_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/exit_status.h"
#include "base/files.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/root_cause.h"

namespace ddp::launcher {
namespace {

/// Of a variable's value: the message of an exception may have any length.
constexpr std::size_t kMostVariable = 4000;

}  // namespace

std::string_view hook_event(const JournalEvent& event, bool has_run) {
  using Kind = JournalEvent::Kind;
  switch (event.kind) {
    case Kind::kAttemptRunning: return has_run ? "" : "start";
    case Kind::kAttemptStopping: return event.failure ? "failure" : "";
    case Kind::kAttemptStarted: return event.attempt.value_or(0) == 0 ? "" : "restart";
    case Kind::kNodeLost: return "node-lost";
    case Kind::kHangNamed: return "hang";
    case Kind::kJobEnded: return "end";
    default: return "";
  }
}

std::vector<std::string> hook_variables(const JournalEvent& event, std::string_view name,
                                        const Failure* cause) {
  using Kind = Failure::Kind;
  std::vector<std::string> env;
  const auto add = [&env](const char* key, std::string_view value) {
    // An environment variable ends at its first zero byte.
    value = value.substr(0, std::min(value.find('\0'), kMostVariable));
    env.push_back("DDPLAUNCH_" + std::string(key) + '=' + std::string(value));
  };
  const auto exception = cause != nullptr ? exception_of(*cause) : std::nullopt;
  const bool ends = event.kind == JournalEvent::Kind::kJobEnded;
  const bool worker = cause != nullptr && cause->of_worker();
  add("EVENT", name);
  add("EXIT_CODE", ends && event.exit_code ? std::to_string(*event.exit_code) : "");
  const bool one_rank = event.hang && event.hang->ranks.size() == 1;
  add("CAUSE", cause != nullptr ? failure_line(*cause) : ends || event.hang ? event.reason : "");
  add("CAUSE_HOST", cause != nullptr ? cause->host : "");
  add("CAUSE_RANK", worker     ? std::to_string(cause->rank)
                    : one_rank ? std::to_string(event.hang->ranks.front())
                               : "");
  add("CAUSE_EXIT_CODE", worker && cause->kind == Kind::kExited ? std::to_string(cause->status) : "");
  add("CAUSE_SIGNAL", worker && cause->kind == Kind::kSignaled ? signal_name(cause->signal) : "");
  add("CAUSE_EXCEPTION_TYPE", exception ? exception->type : "");
  add("CAUSE_EXCEPTION", exception ? exception->message : "");
  return env;
}

void HookRunner::on_event(const JournalEvent& event, const std::string& line, const Failure* cause) {
  const std::string_view name = hook_event(event, has_run_);
  has_run_ = has_run_ || event.kind == JournalEvent::Kind::kAttemptRunning;
  for (std::size_t i = 0; i < settings_.hooks.size(); ++i) {
    if (settings_.hooks[i].event != name) continue;
    if (waiting_.size() < kMostWaiting)
      waiting_.push_back({i, line, hook_variables(event, name, cause)});
    else
      warn(i, "was not run, since " + std::to_string(kMostWaiting) + " others wait");
  }
  start_waiting();
}

void HookRunner::drop_waiting() {
  std::erase_if(waiting_, [this](const Call& call) { return settings_.hooks[call.hook].event != "end"; });
}

void HookRunner::stop() {
  waiting_.clear();
  for (ToolStop* running : stops_)
    running->stop();
}

void HookRunner::start_waiting() {
  while (running_ < kMostRunning && !waiting_.empty()) {
    ++running_;
    spawn(executor_, run(std::move(waiting_.front())));
    waiting_.pop_front();
  }
}

Awaitable<> HookRunner::run(Call call) {
  const Result<UniqueFd> input = memory_file("ddplaunch-event", call.line);
  ChildSpec spec;
  spec.path = "/bin/sh";
  spec.argv = {"sh", "-c", settings_.hooks[call.hook].command};
  spec.env = settings_.env;
  spec.env.insert(spec.env.end(), call.env.begin(), call.env.end());
  spec.in = input ? input->get() : kDevNull;
  const auto deadline = std::chrono::steady_clock::now() + settings_.time;
  ToolStop stop;
  stops_.insert(&stop);
  const ToolOutput output = co_await run_tool(std::move(spec), deadline, kMostText, nullptr, &stop);
  stops_.erase(&stop);
  if (!output.text.empty()) settings_.write("# " + settings_.hooks[call.hook].command + "\n" + output.text);
  // A hook that the user's signal ended did not fail.
  if (!output.success() && !stop.stopped) warn(call.hook, "failed: " + output.trouble());
  --running_;
  start_waiting();
}

void HookRunner::warn(std::size_t hook, const std::string& what) {
  // Once for each hook: a wrong command would fail at every event.
  if (warned_.insert(hook).second)
    settings_.say("warning: --on " + settings_.hooks[hook].event + "=" + settings_.hooks[hook].command + " " +
                  what);
}

}  // namespace ddp::launcher
