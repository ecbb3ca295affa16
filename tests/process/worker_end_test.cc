#include "launcher/agent/worker_group.h"

#include <csignal>
#include <map>
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
  void worker_output(std::uint32_t, std::uint8_t, std::span<const char>) override {}
  void worker_started(std::uint32_t rank, pid_t pid) override { pids[rank] = pid; }
  void worker_exited(std::uint32_t rank, pid_t, const ExitStatus& status) override { ends[rank] = status; }
  void worker_not_started(std::uint32_t, const Error& error) override { FAIL(error.text); }
  void all_started() override { started = true; }

  bool started = false;
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
    if (!process || process->end_signal == SIGTERM) break;
  }
  REQUIRE(::kill(events.pids.at(2), SIGSTOP) == 0);  // which does not end it
  for (const auto until = std::chrono::steady_clock::now() + 20s; std::chrono::steady_clock::now() < until;) {
    if (read_stat(events.pids.at(2))->state == 'T') break;
  }
  group.stop(10s);
  asio::co_spawn(loop, group.ended(), asio::detached);
  loop.run();
  CHECK(events.ends.at(0) == ExitStatus::signaled(SIGTERM));
  CHECK(events.ends.at(1) == ExitStatus::signaled(SIGTERM));
  CHECK(group.ended_after_stop(0));
  CHECK_FALSE(group.ended_after_stop(1));
  CHECK(group.ended_after_stop(2));
}

}  // namespace
}  // namespace ddp::launcher
