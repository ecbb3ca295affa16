// Real workers: how their ends are attributed, and the processes that dead ranks left beside live ones.
#include "launcher/agent/worker_group.h"

#include <sys/prctl.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "tests/process/process_probe.h"
#include "tests/support/run_until.h"

namespace ddp::launcher {
namespace {

using namespace process_test;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class RecordedEvents final : public WorkerEvents {
 public:
  std::size_t output_room(std::uint8_t) const override { return buffer_.size(); }
  std::span<char> output_space(std::size_t) override { return buffer_; }
  void worker_output(std::uint32_t rank, std::uint8_t, std::span<const char> bytes) override {
    said[rank].append(bytes.data(), bytes.size());
  }
  void worker_started(std::uint32_t rank, pid_t pid) override { pids[rank] = pid; }
  void worker_exited(std::uint32_t rank, pid_t, const ExitStatus& status) override { ends[rank] = status; }
  void worker_not_started(std::uint32_t, const Error& error) override { FAIL(error.text); }
  void all_started() override { started = true; }

  bool started = false;
  std::map<std::uint32_t, std::string> said;
  std::map<std::uint32_t, pid_t> pids;
  std::map<std::uint32_t, ExitStatus> ends;

 private:
  std::vector<char> buffer_ = std::vector<char>(4096);
};

/// Workers that are shells, and their events.
struct Workers {
  void start(const std::vector<std::string>& scripts, const std::vector<std::string>& env = {}) {
    std::vector<WorkerSpec> specs(scripts.size());
    for (std::uint32_t rank = 0; rank < specs.size(); ++rank) {
      specs[rank].local_rank = rank;
      specs[rank].child.path = "/bin/sh";
      specs[rank].child.argv = {"sh", "-c", scripts[rank], DDP_PROCESS_WORKER};
      specs[rank].child.env = env;
      specs[rank].child.env.push_back("LOCAL_RANK=" + std::to_string(rank));
    }
    group.start(std::move(specs));
  }
  void run_until(const std::function<bool()>& happened) { REQUIRE(test::run_until(loop, happened)); }
  void run_to_the_end() {
    asio::co_spawn(loop, group.ended(), asio::detached);
    loop.restart();
    loop.run();
  }

  asio::io_context loop{1};
  RecordedEvents events;
  const std::string job = unique_mark("x").substr(2);
  WorkerStdin input{loop.get_executor(), [](const auto&) {}, [] { return true; }};
  WorkerGroup group{loop.get_executor(), events, input, TreeScope{job}};
};

/// Three ranks of a job: 0 and 1 leave orphans and end, 2 lives and has an orphan as well.
struct Ranks : Workers {
  explicit Ranks(const std::string& first) {
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
    const std::string worker = "exec 3>&1; $0 ";
    start({worker + first, worker + "leave", worker + "orphan; exec sleep 60"},
          {"DDPLAUNCH_JOB_ID=" + job, "PATH=/usr/bin:/bin"});
  }
  ~Ranks() {
    for (const ProcessInfo& info : list_processes())
      if (info.comm == "stuck_server") kill(info.pid, SIGKILL);
    group.stop(0ms, SIGTERM);
    run_to_the_end();
    kill_own_tree();
    reap_adopted({});
  }

  /// Returns whether ranks 0 and 1 have ended, and left so many processes with those of rank 2.
  bool have_left(std::size_t count) const {
    return events.ends.contains(0) && events.ends.contains(1) && !events.ends.contains(2) &&
           orphans().size() == count;
  }
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
  ranks.run_until([&] { return ranks.have_left(5); });
  kill_leftovers(ranks);
  ranks.run_until([&] { return ranks.orphans().size() == 1; });
  CHECK(has_entry(process_environment(ranks.orphans()[0]), "LOCAL_RANK=2"));
  CHECK_FALSE(ranks.events.ends.contains(2));
}

TEST_CASE("an orphan whose environment cannot be read does not block the event loop", "[fuse]") {
  Ranks ranks("leave-stuck");
  ranks.run_until([&] { return ranks.events.said[0].size() == 3 && ranks.events.said[1].size() == 2; });
  if (ranks.events.said[0] != "rrr") SKIP_TEST("needs /dev/fuse and the right to mount");
  ranks.run_until([&] { return ranks.have_left(6); });
  CHECK(kill_leftovers(ranks) < 1s);  // the search may take 3 s
  ranks.run_until(
      [&] { return ranks.orphans().size() == 2; });  // the stuck one, and the running rank's orphan
}

TEST_CASE("a worker terminated from outside is not attributed to our stop, even if seen dead after it") {
  Workers workers;
  const RecordedEvents& events = workers.events;
  workers.start({"exec sleep 1000", "exec sleep 1000", "exec sleep 1000"}, {"PATH=/usr/bin:/bin"});
  workers.run_until([&] {
    return events.started && std::ranges::all_of(events.pids, [](const auto& one) {
             const auto process = read_process(one.second);
             return process && process->comm == "sleep";
           });
  });
  REQUIRE(::kill(events.pids.at(1), SIGTERM) == 0);
  REQUIRE(wait_until([&] {
    const auto process = read_stat(events.pids.at(1));
    return !process || process->ending;
  }));
  REQUIRE(::kill(events.pids.at(2), SIGSTOP) == 0);  // which does not end it
  REQUIRE(wait_until([&] { return read_stat(events.pids.at(2))->state == 'T'; }));
  workers.group.stop(10s, SIGTERM);
  workers.run_to_the_end();
  CHECK(events.ends.at(0) == ExitStatus::signaled(SIGTERM));
  CHECK(events.ends.at(1) == ExitStatus::signaled(SIGTERM));
  CHECK(workers.group.ended_after_stop(0));
  CHECK_FALSE(workers.group.ended_after_stop(1));
  CHECK(workers.group.ended_after_stop(2));
}

TEST_CASE("any end that begins after our signal is attributed to it, but SIGKILL only to our SIGKILL") {
  Workers workers;
  const RecordedEvents& events = workers.events;
  const WorkerGroup& group = workers.group;
  // A shell runs its trap only after the current command, also one that it starts after the signal.
  const std::string waits = "; echo ready >&2; while :; do sleep 0.1; done";
  const std::string ignores = "trap '' TERM" + waits;
  workers.start({"trap 'exit 3' TERM" + waits, ignores, ignores, "echo ready >&2; exit 4"},
                {"PATH=/usr/bin:/bin"});
  workers.run_until([&] { return events.started && events.said.size() == 4 && events.ends.contains(3); });
  workers.group.stop(10s, SIGTERM);
  REQUIRE(::kill(events.pids.at(1), SIGKILL) == 0);  // by somebody else, in our grace period
  workers.run_until([&] { return events.ends.contains(0) && events.ends.contains(1); });
  workers.group.stop(0s, SIGTERM);  // our SIGKILL
  workers.run_to_the_end();
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

}  // namespace ddp::launcher
