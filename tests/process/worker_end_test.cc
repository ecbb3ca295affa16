#include "launcher/agent/worker_group.h"

#include <csignal>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "launcher/keeper/process_table.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

class RecordedEvents final : public WorkerEvents {
 public:
  std::size_t output_room(std::uint8_t) const override { return buffer_.size(); }
  std::span<char> output_space(std::size_t) override { return buffer_; }
  void worker_output(std::uint32_t, std::uint8_t, std::span<const char> bytes) override {
    if (!bytes.empty()) ++outputs;
  }
  void worker_started(std::uint32_t rank, pid_t pid) override { pids[rank] = pid; }
  void worker_exited(std::uint32_t rank, pid_t, const ExitStatus& status) override { ends[rank] = status; }
  void worker_not_started(std::uint32_t, const Error& error) override { FAIL(error.text); }
  void all_started() override { started = true; }

  bool started = false;
  int outputs = 0;
  std::map<std::uint32_t, pid_t> pids;
  std::map<std::uint32_t, ExitStatus> ends;

 private:
  std::vector<char> buffer_ = std::vector<char>(4096);
};

TEST_CASE("a worker terminated from outside is not attributed to our stop, even if seen dead after it") {
  asio::io_context loop;
  RecordedEvents events;
  WorkerStdin input(
      loop.get_executor(), [](const auto&) {}, [] { return true; });
  WorkerGroup group(loop.get_executor(), events, input, {});
  std::vector<WorkerSpec> specs(3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    specs[rank].rank = rank;
    specs[rank].path = "/bin/sleep";
    specs[rank].argv = {"sleep", "1000"};
  }
  group.start(std::move(specs));
  while (!events.started)
    loop.run_one();
  REQUIRE(::kill(events.pids.at(1), SIGTERM) == 0);
  for (const auto until = std::chrono::steady_clock::now() + 20s; std::chrono::steady_clock::now() < until;) {
    const auto process = read_stat(events.pids.at(1));
    if (!process || process->ending) break;
  }
  REQUIRE(::kill(events.pids.at(2), SIGSTOP) == 0);  // which does not end it
  for (const auto until = std::chrono::steady_clock::now() + 20s; std::chrono::steady_clock::now() < until;) {
    if (read_stat(events.pids.at(2))->state == 'T') break;
  }
  group.stop(10s, SIGTERM);
  asio::co_spawn(loop, group.ended(), asio::detached);
  loop.run();
  CHECK(events.ends.at(0) == ExitStatus::signaled(SIGTERM));
  CHECK(events.ends.at(1) == ExitStatus::signaled(SIGTERM));
  CHECK(group.ended_after_stop(0));
  CHECK_FALSE(group.ended_after_stop(1));
  CHECK(group.ended_after_stop(2));
}

/// Returns one shell for each script.
std::vector<WorkerSpec> shells(const std::vector<std::string>& scripts) {
  std::vector<WorkerSpec> specs(scripts.size());
  for (std::uint32_t rank = 0; rank < specs.size(); ++rank) {
    specs[rank].rank = rank;
    specs[rank].path = "/bin/sh";
    specs[rank].argv = {"sh", "-c", scripts[rank]};
  }
  return specs;
}

TEST_CASE("any end that begins after our signal is attributed to it, but SIGKILL only to our SIGKILL") {
  asio::io_context loop;
  RecordedEvents events;
  WorkerStdin input(
      loop.get_executor(), [](const auto&) {}, [] { return true; });
  WorkerGroup group(loop.get_executor(), events, input, {});
  // A shell runs its trap only after the current command, also one that it starts after the signal.
  const std::string waits = "; echo ready >&2; while :; do sleep 0.1; done";
  const std::string ignores = "trap '' TERM" + waits;
  group.start(shells({"trap 'exit 3' TERM" + waits, ignores, ignores, "echo ready >&2; exit 4"}));
  while (!events.started || events.outputs < 4 || !events.ends.contains(3))
    loop.run_one();
  group.stop(10s, SIGTERM);
  asio::co_spawn(loop, group.ended(), asio::detached);
  REQUIRE(::kill(events.pids.at(1), SIGKILL) == 0);  // by somebody else, in our grace period
  while (!events.ends.contains(0) || !events.ends.contains(1))
    loop.run_one();
  group.stop(0s, SIGTERM);  // our SIGKILL
  loop.run();
  CHECK(events.ends.at(0) == ExitStatus::exited(3));
  CHECK(group.ended_after_stop(0));
  CHECK(events.ends.at(1) == ExitStatus::signaled(SIGKILL));
  CHECK_FALSE(group.ended_after_stop(1));
  CHECK(group.ended_by_late_kill(1));
  CHECK(events.ends.at(2) == ExitStatus::signaled(SIGKILL));
  CHECK(group.ended_after_stop(2));
  CHECK_FALSE(group.ended_by_late_kill(2));
  CHECK(events.ends.at(3) == ExitStatus::exited(4));
  CHECK_FALSE(group.ended_after_stop(3));
}

}  // namespace
}  // namespace ddp::launcher
