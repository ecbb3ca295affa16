#include "launcher/master/hook_runner.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "base/unique_fd.h"

namespace ddp::launcher {
namespace {

/// Returns a file in memory with the text, at its begin, so that no write to the command can block.
UniqueFd file_of(const std::string& text) {
  UniqueFd file(::memfd_create("ddplaunch-event", MFD_CLOEXEC));
  const bool written =
      file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!written || ::lseek(file.get(), 0, SEEK_SET) != 0) file.reset();
  return file;
}

}  // namespace

std::string_view hook_event(const JournalEvent& event, bool has_run) {
  using Kind = JournalEvent::Kind;
  switch (event.kind) {
    case Kind::kAttemptRunning:
      return has_run ? "" : "start";
    case Kind::kAttemptStopping:
      return event.failure ? "failure" : "";
    case Kind::kAttemptStarted:
      return event.attempt.value_or(0) == 0 ? "" : "restart";
    case Kind::kNodeLost:
      return "node-lost";
    case Kind::kHangFound:
      return "hang";
    case Kind::kJobEnded:
      return "end";
    default:
      return "";
  }
}

void HookRunner::take(const JournalEvent& event, const std::string& line) {
  const std::string_view name = hook_event(event, has_run_);
  has_run_ = has_run_ || event.kind == JournalEvent::Kind::kAttemptRunning;
  for (std::size_t i = 0; i < settings_.hooks.size(); ++i) {
    if (settings_.hooks[i].event != name) continue;
    if (waiting_.size() < kMostWaiting)
      waiting_.push_back({i, line});
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
  const UniqueFd input = file_of(call.line);
  ChildSpec spec;
  spec.path = "/bin/sh";
  spec.argv = {"sh", "-c", settings_.hooks[call.hook].command};
  spec.env = settings_.env;
  spec.in = input ? input.get() : kDevNull;
  const auto deadline = std::chrono::steady_clock::now() + settings_.time;
  ToolStop stop;
  stops_.insert(&stop);
  const ToolOutput output = co_await run_tool(std::move(spec), deadline, kMostText, &pids_, &stop);
  stops_.erase(&stop);
  if (!output.text.empty()) settings_.write("# " + settings_.hooks[call.hook].command + "\n" + output.text);
  if (!output.success && !stop.stopped) warn(call.hook, "failed: " + output.trouble);
  --running_;
  start_waiting();
}

void HookRunner::warn(std::size_t hook, const std::string& what) {
  if (warned_.insert(hook).second)
    settings_.say("warning: --on " + settings_.hooks[hook].event + "=" + settings_.hooks[hook].command + " " +
                  what);
}

}  // namespace ddp::launcher
