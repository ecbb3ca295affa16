// The processes that dead ranks of a node left, beside live ranks: real workers with orphans.
#include "launcher/agent/worker_group.h"

#include <sys/prctl.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tests/process/process_probe.h"
#include "tests/support/run_until.h"

namespace ddp::launcher {
namespace {

using namespace process_test;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class RecordedEvents final : public WorkerEvents {
 public:
  std::size_t output_room(std::uint8_t) const override { return 1u << 20; }
  std::span<char> output_space(std::size_t size) override {
    buffer_.resize(std::max(buffer_.size(), size));
    return {buffer_.data(), size};
  }
  void worker_output(std::uint32_t rank, std::uint8_t, std::span<const char> bytes) override {
    said[rank].append(bytes.data(), bytes.size());
  }
  void worker_started(std::uint32_t, pid_t) override {}
  void worker_exited(std::uint32_t rank, pid_t, const ExitStatus&) override { ended.insert(rank); }
  void worker_not_started(std::uint32_t, const Error& error) override { FAIL(error.text); }
  void all_started() override {}

  std::map<std::uint32_t, std::string> said;
  std::set<std::uint32_t> ended;

 private:
  std::string buffer_;
};

/// Three ranks of a job: 0 and 1 leave orphans and end, 2 lives and has an orphan as well.
class Ranks {
 public:
  explicit Ranks(const std::string& first) {
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
    std::vector<WorkerSpec> specs;
    for (const std::string& what : {first, std::string("leave"), std::string("orphan; exec sleep 60")}) {
      WorkerSpec spec;
      spec.rank = static_cast<std::uint32_t>(specs.size());
      spec.path = "/bin/sh";
      spec.argv = {"sh", "-c", "exec 3>&1; $0 " + what, DDP_PROCESS_WORKER};
      spec.env = {"DDPLAUNCH_JOB_ID=" + job, "LOCAL_RANK=" + std::to_string(spec.rank), "PATH=/usr/bin:/bin"};
      specs.push_back(std::move(spec));
    }
    group.start(std::move(specs));
  }
  ~Ranks() {
    for (const ProcessInfo& info : list_processes())
      if (info.comm == "stuck_server") kill(info.pid, SIGKILL);
    group.stop(0ms, SIGTERM);
    asio::co_spawn(loop, group.ended(), asio::detached);
    loop.restart();
    loop.run();
    kill_own_tree();
    reap_adopted({});
  }

  void run_until(const std::function<bool()>& happened) { REQUIRE(test::run_until(loop, happened)); }
  /// Returns the children of this process that are no leaders: the processes that ranks left.
  std::vector<pid_t> orphans() const {
    std::vector<pid_t> found;
    const std::vector<pid_t> leaders = group.pids();
    for (const ProcessInfo& info : list_processes())
      if (info.parent == getpid() && info.state != 'Z' &&
          std::find(leaders.begin(), leaders.end(), info.pid) == leaders.end())
        found.push_back(info.pid);
    return found;
  }

  asio::io_context loop{1};
  RecordedEvents events;
  const std::string job = unique_mark("x").substr(2);
  WorkerStdin input{loop.get_executor(), [](const auto&) {}, [] { return true; }};
  WorkerGroup group{loop.get_executor(), events, input, TreeScope{job}};
};

/// Measures the longest time for which the loop ran nothing else.
Awaitable<> tick(bool* over, Clock::duration* longest) {
  asio::steady_timer pause(co_await asio::this_coro::executor);
  while (!*over) {
    const auto before = Clock::now();
    pause.expires_after(1ms);
    co_await pause.async_wait(kUseTuple);
    *longest = std::max(*longest, Clock::now() - before);
  }
}

/// Returns how long the loop was blocked while the leftovers of ranks 0 and 1 were killed.
Clock::duration kill_leftovers(Ranks& ranks) {
  bool over = false;
  bool ticked = false;
  Clock::duration longest{};
  asio::co_spawn(ranks.loop, tick(&over, &longest), [&ticked](const std::exception_ptr&) { ticked = true; });
  asio::co_spawn(ranks.loop, ranks.group.kill_leftovers({0, 1}, 3s),
                 [&over](const std::exception_ptr&) { over = true; });
  ranks.run_until([&] { return over && ticked; });
  return longest;
}

}  // namespace

TEST_CASE("processes of ended ranks are killed in any session, those of running ranks are kept") {
  Ranks ranks("leave");
  ranks.run_until(
      [&] { return ranks.events.said[0] + ranks.events.said[1] + ranks.events.said[2] == "rrrrr"; });
  ranks.run_until([&] {
    return ranks.events.ended == std::set<std::uint32_t>{0, 1} && ranks.orphans().size() == 5;
  });
  kill_leftovers(ranks);
  ranks.run_until([&] { return ranks.orphans().size() == 1; });
  CHECK(has_entry(process_environment(ranks.orphans()[0]), "LOCAL_RANK=2"));
  CHECK_FALSE(ranks.events.ended.contains(2));
}

TEST_CASE("an orphan whose environment cannot be read does not block the event loop", "[fuse]") {
  Ranks ranks("leave-stuck");
  ranks.run_until([&] { return ranks.events.said[0].size() == 3 && ranks.events.said[1].size() == 2; });
  if (ranks.events.said[0] != "rrr") SKIP_TEST("needs /dev/fuse and the right to mount");
  ranks.run_until([&] {
    return ranks.events.ended == std::set<std::uint32_t>{0, 1} && ranks.orphans().size() == 6;
  });
  CHECK(kill_leftovers(ranks) < 1s);  // the search may take 3 s
  ranks.run_until(
      [&] { return ranks.orphans().size() == 2; });  // the stuck one, and the running rank's orphan
}

}  // namespace ddp::launcher
