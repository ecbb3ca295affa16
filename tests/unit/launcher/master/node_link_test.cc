#include "launcher/master/node_link.h"

#include <memory>
#include <string>
#include <utility>

#include "launcher/keeper/keeper.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

/// A channel whose command has ended with `status`.
class EndedChannel final : public remote::Channel {
 public:
  EndedChannel(asio::io_context& loop, int status) : socket_(loop), status_(status) {}
  Socket& link() override { return socket_; }
  Socket& errors() override { return socket_; }
  Awaitable<remote::ChannelEnd> end() override {
    remote::ChannelEnd end;
    end.status = status_;
    co_return end;
  }

 private:
  Socket socket_;
  int status_;
};

NodeLink::LinkEnd end_of_link(int status, const std::string& errors) {
  asio::io_context loop;
  NodeLink node(0, loop.get_executor(), "gpu07");
  remote::StartedAgent agent;
  agent.channel = std::make_unique<EndedChannel>(loop, status);
  node.open(std::move(agent));
  (void)node.error_lines(errors);
  NodeLink::LinkEnd end;
  asio::co_spawn(loop, node.explain_end(Error{ErrorCode::kLinkLost, "the link was closed", 0}),
                 [&end](const std::exception_ptr&, NodeLink::LinkEnd said) { end = std::move(said); });
  loop.run();
  return end;
}

TEST_CASE("a keeper's exit code proves that the workers are dead, unless it reports remaining processes") {
  for (const int status : {0, 110, 113, 117}) {
    CAPTURE(status);
    CHECK(end_of_link(status, "").workers_dead);
  }
  for (const int status : {1, 143, 255}) {
    CAPTURE(status);
    CHECK(!end_of_link(status, "").workers_dead);
  }
  const NodeLink::LinkEnd left =
      end_of_link(kExitProcessesLeft,
                  "ddplaunchd keeper: the agent was killed by SIGKILL; killed 2 leftover "
                  "processes\nother words\nddplaunchd keeper: could not kill process 7 "
                  "(python3, state D, uid 0)\n");
  CHECK(!left.workers_dead);
  CHECK(left.why.text ==
        "the agent was killed by SIGKILL; killed 2 leftover processes; could not kill process 7 (python3, "
        "state D, uid 0)");
}

TEST_CASE("an endless stderr is shown up to a limit, followed by one notice") {
  asio::io_context loop;
  NodeLink node(0, loop.get_executor(), "gpu07");
  const std::string piece = std::string(4095, 'x') + "\nunfinished";
  std::string shown;
  for (int i = 0; i < 10'000; ++i)
    shown += node.error_lines(piece);
  shown += node.error_lines("");
  CHECK(shown.size() < NodeLink::kMostErrors + 10'000);
  CHECK(shown.starts_with("gpu07: xxx"));
  CHECK(shown.ends_with(
      "\ngpu07: unfinished\nddplaunch: warning: gpu07: more than 64 KiB on the stderr of its agent "
      "(or of ssh); the rest is dropped\n"));
}

TEST_CASE("a short stderr is shown completely, including its last line") {
  asio::io_context loop;
  NodeLink node(0, loop.get_executor(), "gpu07");
  CHECK(node.error_lines("one\ntw") == "gpu07: one\n");
  CHECK(node.error_lines("o") == "");
  CHECK(node.error_lines("") == "gpu07: two\n");
}

}  // namespace
}  // namespace ddp::launcher
