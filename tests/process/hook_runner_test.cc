#include "launcher/master/hook_runner.h"

#include "tests/process/process_probe.h"

namespace ddp::launcher {
namespace {

using namespace process_test;
using Kind = JournalEvent::Kind;

const JournalEvent kLost{.kind = Kind::kNodeLost};
const JournalEvent kEnded{.kind = Kind::kJobEnded};

struct Case {
  explicit Case(std::vector<Hook> hooks, std::chrono::milliseconds time = HookRunner::kTime)
      : runner(loop.get_executor(), {std::move(hooks),
                                     {"PATH=/usr/bin:/bin", mark},
                                     [this](const std::string& text) { said.push_back(text); },
                                     [this](const std::string& text) { written += text; },
                                     time}) {}
  void run_to_the_end() {
    while (!runner.idle() && loop.run_one() > 0) {
    }
  }

  asio::io_context loop;
  std::string mark = unique_mark("DDPLAUNCH_JOB_ID");
  std::vector<std::string> said;
  std::string written;
  HookRunner runner;
};

}  // namespace

TEST_CASE("events of the journal and their hooks") {
  CHECK(hook_event({.kind = Kind::kAttemptRunning, .attempt = 1}, false) == "start");
  CHECK(hook_event({.kind = Kind::kAttemptRunning, .attempt = 2}, true).empty());
  CHECK(hook_event({.kind = Kind::kAttemptStarted, .attempt = 0}, false).empty());
  CHECK(hook_event({.kind = Kind::kAttemptStarted, .attempt = 1}, false) == "restart");
  CHECK(hook_event({.kind = Kind::kAttemptStopping, .failure = true}, false) == "failure");
  CHECK(hook_event({.kind = Kind::kAttemptStopping}, false).empty());
  CHECK(hook_event({.kind = Kind::kHangNamed}, false) == "hang");
  CHECK(hook_event(kLost, false) == "node-lost");
  CHECK(hook_event(kEnded, false) == "end");
  CHECK(hook_event({.kind = Kind::kJobStarted}, false).empty());
}

TEST_CASE("a hook gets its event, and its output is kept") {
  Case made({Hook{"end", "cat; echo err >&2"}, Hook{"hang", "echo never"}, Hook{"end", "echo second"}});
  made.runner.on_event(kEnded, "{\"id\":1}\n");
  made.run_to_the_end();
  CHECK(made.written.find("# cat; echo err >&2\n{\"id\":1}\nerr\n") != std::string::npos);
  CHECK(made.written.find("# echo second\nsecond\n") != std::string::npos);
  CHECK(made.written.find("never") == std::string::npos);
  CHECK(made.said.empty());
}

TEST_CASE("a hook that fails again and again has one warning") {
  Case made({Hook{"node-lost", "exit 3"}});
  for (int i = 0; i < 3; ++i)
    made.runner.on_event(kLost, "{}\n");
  made.run_to_the_end();
  CHECK(made.said == std::vector<std::string>{"warning: --on node-lost=exit 3 failed: it exited 3"});
}

TEST_CASE("a hook that does not end is killed with its children, and a flood is cut") {
  Case made({Hook{"end", "trap '' TERM; sleep 1000 & sleep 1000"}, Hook{"end", "yes"}},
            std::chrono::seconds(3));
  made.runner.on_event(kEnded, "{}\n");
  made.run_to_the_end();
  CHECK(made.said.size() == 2);
  CHECK(wait_until([&] { return live_processes_of(made.mark).empty(); }));
  CHECK(made.written.size() < HookRunner::kMostText + 1000);
  CHECK(made.written.find("(cut here)") != std::string::npos);
}

TEST_CASE("only a few hooks run at a time, a limited number waits, and the end's hook is never dropped") {
  Case made({Hook{"node-lost", "echo run"}, Hook{"end", "echo end"}});
  constexpr std::size_t kAll = HookRunner::kMostRunning + HookRunner::kMostWaiting;
  for (std::size_t i = 0; i < kAll + 5; ++i)
    made.runner.on_event(kLost, "{}\n");
  REQUIRE(made.said ==
          std::vector<std::string>{"warning: --on node-lost=echo run was not run, since 64 others wait"});
  made.runner.drop_waiting();
  made.runner.on_event(kEnded, "{}\n");
  made.runner.drop_waiting();
  made.run_to_the_end();
  std::size_t runs = 0;
  for (std::size_t at = made.written.find("\nrun\n"); at != std::string::npos;
       at = made.written.find("\nrun\n", at + 1))
    ++runs;
  CHECK(runs == HookRunner::kMostRunning);
  CHECK(made.written.find("\nend\n") != std::string::npos);
}

}  // namespace ddp::launcher
