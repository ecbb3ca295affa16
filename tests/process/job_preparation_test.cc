// The steps of a node before it accepts a job, with real shells and real processes of an earlier agent.
#include "launcher/agent/job_preparation.h"

#include <sys/wait.h>

#include "launcher/job/job_spec.h"
#include "tests/process/process_probe.h"

namespace ddp::launcher {
namespace {

using namespace process_test;
using namespace std::chrono_literals;

struct PreparationBench {
  PreparationBench() {
    order.job_id = unique_mark("x").substr(2);
    order.command = {WorkerCommand::Kind::kProgram, {"true"}, {}};
    order.explicit_env = {{"GIVEN", "by --env"}};
  }
  void begin() {
    preparation.prepare(order, [this](Result<NodeJob> made, bool gone) {
      job = std::move(made);
      predecessor_gone = gone;
    });
  }
  /// Returns whether the loop ran out of work, so that nothing of the preparation is left.
  bool run() {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (loop.run_one_until(until) > 0) {
    }
    return loop.stopped();
  }
  std::string error() const { return job ? (*job ? "none" : job->error().text) : "no answer"; }

  asio::io_context loop{1};
  std::vector<std::string> notices;
  BlockingCalls disk{loop.get_executor(), 1};
  JobPreparation preparation{loop.get_executor(), disk, "/",
                             [this](const rendezvous::Notice& notice) { notices.push_back(notice.text); }};
  rendezvous::JobStart order;
  std::optional<Result<NodeJob>> job;
  bool predecessor_gone = false;
};

/// A process that ends when the test says so, as one of an earlier agent.
ChildProcess start_sleeper(const std::string& mark) {
  ChildSpec spec;
  spec.path = "/bin/sleep";
  spec.argv = {"sleep", "60"};
  spec.env = {mark, "LOCAL_RANK=0"};
  auto started = ddp::spawn(spec);
  REQUIRE(started.has_value());
  return std::move(*started);
}

}  // namespace

TEST_CASE("a job gets the program of the node, and the environment that --setup leaves") {
  PreparationBench bench;
  bench.order.setup = {"echo hello; export MADE=\"$GIVEN too\""};
  bench.begin();
  CHECK(bench.run());
  CHECK(bench.error() == "none");
  CHECK(bench.job->value().program().ends_with("/true"));
  CHECK(*find_env(bench.job->value().env(), "MADE") == "by --env too");
  CHECK(bench.notices == std::vector<std::string>{"setup: hello"});
  CHECK_FALSE(bench.predecessor_gone);  // nothing was known of one
}

TEST_CASE("each obstacle refuses the job: directory, setup, program") {
  PreparationBench no_program;
  no_program.order.command.argv = {"no-such-program"};
  no_program.begin();
  CHECK(no_program.run());
  CHECK(no_program.job->error().code == ErrorCode::kExec);
  PreparationBench no_directory;
  no_directory.order.chdir = "/no/such";
  no_directory.order.setup = {"echo never"};
  no_directory.begin();
  CHECK(no_directory.run());
  CHECK(no_directory.job->error().code == ErrorCode::kRefused);
  CHECK(no_directory.notices.empty());
  PreparationBench bad_setup;
  bad_setup.order.setup = {"exit 3"};
  bad_setup.begin();
  CHECK(bad_setup.run());
  CHECK(bad_setup.error().starts_with("--setup failed: its shell exited 3"));
}

TEST_CASE("a stop ends a setup script, and nothing is answered") {
  PreparationBench bench;
  bench.order.setup = {"echo begun; sleep 60"};
  bench.begin();
  while (bench.notices.empty())
    bench.loop.run_one_for(kPatience);
  bench.preparation.stop();
  CHECK(bench.run());
  CHECK(bench.error() == "no answer");
}

TEST_CASE("a job waits for the end of its predecessor, and what that left is killed") {
  PreparationBench bench;
  const std::string mark = "DDPLAUNCH_JOB_ID=" + bench.order.job_id;
  // Processes of an earlier agent are no children of this one.
  Pipe pids = make_pipe();
  const pid_t elsewhere = fork();
  if (elsewhere == 0) {
    setsid();
    ChildProcess agent = start_sleeper("A=b");
    ChildProcess worker = start_sleeper(mark);
    const pid_t both[] = {agent.pid(), worker.pid()};
    (void)!write(pids.write_end.get(), both, sizeof both);
    (void)wait_end(agent);
    (void)wait_end(worker);
    _exit(0);
  }
  pid_t both[2];
  REQUIRE(read(pids.read_end.get(), both, sizeof both) == sizeof both);
  bench.order.predecessor = {static_cast<std::uint32_t>(both[0])};
  bench.order.predecessor_clock_ns =
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  bench.begin();
  for (const auto until = std::chrono::steady_clock::now() + 100ms; std::chrono::steady_clock::now() < until;)
    bench.loop.run_one_for(1ms);
  CHECK(bench.error() == "no answer");
  REQUIRE(kill(both[0], SIGKILL) == 0);
  CHECK(bench.run());
  CHECK(bench.error() == "none");
  CHECK(bench.predecessor_gone);
  CHECK(has_pid_ended(both[1]));
  int status = 0;
  CHECK(waitpid(elsewhere, &status, 0) == elsewhere);
}

TEST_CASE("a stop during the wait for the predecessor ends it without an answer") {
  PreparationBench bench;
  ChildProcess agent = start_sleeper("A=b");
  bench.order.predecessor = {static_cast<std::uint32_t>(agent.pid())};
  bench.begin();
  bench.loop.run_one_for(kPatience);
  bench.preparation.stop();
  CHECK(bench.run());
  CHECK(bench.error() == "no answer");
  REQUIRE(agent.send_signal(SIGKILL).has_value());
  wait_end(agent);
}

TEST_CASE("a check is answered once, although it is requested twice") {
  PreparationBench bench;
  rendezvous::NodeCheck request;
  request.job = bench.order;
  request.timeout_ms = 10'000;
  int answers = 0;
  for (int i = 0; i < 2; ++i)
    bench.preparation.check(request, [&](const rendezvous::NodeChecked&) { ++answers; });
  CHECK(bench.run());
  CHECK(answers == 1);
}

}  // namespace ddp::launcher
