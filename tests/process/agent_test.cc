// An agent with real workers; the test is its master, at the other end of the link.
#include "launcher/agent/agent.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <functional>
#include <map>
#include <optional>

#include "base/asio.h"
#include "launcher/job/job_spec.h"
#include "tests/process/process_probe.h"
#include "tests/support/run_until.h"

namespace ddp::launcher {
namespace {

using namespace process_test;
using namespace std::chrono_literals;
using rendezvous::Message;
using Socket = asio::local::stream_protocol::socket;

/// The node of an agent, and its master.
class NodeBench {
 public:
  explicit NodeBench(const std::string& script, std::uint32_t credit = 1u << 20) {
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    near_.assign(asio::local::stream_protocol(), ends[0]);
    far_.assign(asio::local::stream_protocol(), ends[1]);
    agent_.emplace(loop, stream_over(near_), keeper_, Agent::Options{"/", NodeFacts{{}, 4}});
    agent_->begin();
    spawn(loop.get_executor(), master_.write_all());
    spawn(loop.get_executor(), read_all(this));
    rendezvous::JobStart order;
    order.job_id = unique_mark("x").substr(2);
    order.command = {WorkerCommand::Kind::kProgram, {"sh", "-c", script}, {}};
    order.env = {{"PATH", "/usr/bin:/bin"}};
    order.stdin_to_rank0 = true;
    order.credit = credit;
    order.local = true;
    order.master_timeout_ms = 60'000;
    order.link_grace_ms = 1'000;
    master_.send(order);
    run_until([this] { return !got<rendezvous::JobAccepted>().empty(); });
  }
  ~NodeBench() {
    master_.send(rendezvous::Leave{});
    run_until([this] { return link_ended_; });
    master_.close();
    loop.run_for(1s);
  }

  void start(std::uint32_t attempt, std::uint32_t ranks) {
    rendezvous::Spawn order;
    order.attempt = attempt;
    order.nodes = 1;
    order.local_world_size = order.world_size = ranks;
    order.max_restarts = 1;
    order.master_addr = "127.0.0.1";
    order.master_port = 1;
    master_.send(order);
  }
  void stop(std::uint32_t attempt, std::uint32_t grace_ms) {
    rendezvous::Stop order;
    order.attempt = attempt;
    order.grace_ms = grace_ms;
    master_.send(order);
  }
  void send(const Message& message) { master_.send(message); }
  void run_until(const std::function<bool()>& happened) { REQUIRE(test::run_until(loop, happened)); }
  /// Returns the messages of one kind that the master has got.
  template <class M>
  std::vector<M> got() const {
    std::vector<M> found;
    for (const Message& message : messages)
      if (const auto* one = std::get_if<M>(&message)) found.push_back(*one);
    return found;
  }
  void run_until_ended(std::uint32_t attempt) {
    run_until([&] {
      const auto ends = got<rendezvous::AttemptEnded>();
      return !ends.empty() && ends.back().attempt == attempt;
    });
  }

  asio::io_context loop{1};
  std::vector<Message> messages;                                ///< of the node, without Output
  std::map<std::pair<std::uint32_t, int>, std::string> output;  ///< by rank and stream
  std::size_t bytes_at_end = 0;  ///< all output that came before the last AttemptEnded

 private:
  static Awaitable<> read_all(NodeBench* self) {
    while (co_await self->master_.read_more()) {
      for (auto message = self->master_.next(); message && *message; message = self->master_.next()) {
        const auto* output = std::get_if<rendezvous::Output>(&**message);
        if (output == nullptr) {
          self->messages.push_back(**message);
          if (!std::holds_alternative<rendezvous::AttemptEnded>(**message)) continue;
          self->bytes_at_end = 0;
          for (const auto& [from, bytes] : self->output)
            self->bytes_at_end += bytes.size();
        } else {
          self->output[{output->rank, output->stream}] += output->data;
        }
      }
    }
    self->link_ended_ = true;
  }
  UniqueFd make_keeper() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    keeper_end_.reset(ends[0]);
    return UniqueFd(ends[1]);
  }

  Socket near_{loop};
  Socket far_{loop};
  UniqueFd keeper_end_;
  KeeperSocket keeper_{make_keeper(), ::getppid()};
  rendezvous::Connection master_{loop.get_executor(), stream_over(far_)};
  bool link_ended_ = false;
  std::optional<Agent> agent_;
};

}  // namespace

TEST_CASE("an attempt's workers report start, output and end, and AttemptEnded comes last") {
  NodeBench bench("echo out; echo err >&2; exit $LOCAL_RANK");
  bench.start(0, 3);
  bench.run_until_ended(0);
  CHECK(bench.got<rendezvous::WorkerStarted>().size() == 3);
  for (const rendezvous::WorkerExited& end : bench.got<rendezvous::WorkerExited>())
    CHECK(end.code == end.rank);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(bench.output[{rank, 1}] == "out\n");
    CHECK(bench.output[{rank, 2}] == "err\n");
  }
  CHECK(bench.bytes_at_end == 3 * 8);
  CHECK(bench.got<rendezvous::AttemptEnded>().back().left == 0);
  CHECK(std::holds_alternative<rendezvous::AttemptEnded>(bench.messages.back()));
}

TEST_CASE("output waits for credit, but not beyond a stop") {
  NodeBench bench("echo first; exec 1>&-; kill -STOP $$", 0);
  bench.start(0, 1);
  bench.run_until([&] { return bench.got<rendezvous::WorkerStarted>().size() == 1; });
  const auto pid = static_cast<pid_t>(bench.got<rendezvous::WorkerStarted>().front().pid);
  bench.run_until([&] { return read_process(pid)->state == 'T'; });
  CHECK(bench.output.empty());
  bench.stop(0, 10'000);
  bench.run_until_ended(0);
  CHECK(bench.output[{0, 1}] == "first\n");
  CHECK(bench.got<rendezvous::WorkerExited>().back().after_stop);
}

TEST_CASE("credit lets the output of a running worker through") {
  NodeBench bench("echo first; exec sleep 60", 0);
  bench.start(0, 1);
  bench.run_until([&] { return bench.got<rendezvous::WorkerStarted>().size() == 1; });
  CHECK(bench.output.empty());
  bench.send(rendezvous::Credit{1, 1u << 20});
  bench.run_until([&] { return bench.output[{0, 1}] == "first\n"; });
  bench.stop(0, 0);
  bench.run_until_ended(0);
}

TEST_CASE("a restarted rank 0 reads on where the former one stopped; other ranks read nothing") {
  NodeBench bench("read line; echo \"$line\"; [ $LOCAL_RANK = 1 ] || exec sleep 60");
  bench.send(rendezvous::Stdin{"one\ntwo\n"});
  bench.start(0, 2);
  bench.run_until([&] { return bench.output[{0, 1}] == "one\n" && bench.output[{1, 1}] == "\n"; });
  bench.stop(0, 0);
  bench.run_until_ended(0);
  const auto taken = bench.got<rendezvous::StdinTaken>();
  REQUIRE(taken.size() == 2);
  CHECK(taken[0].bytes == 8);
  CHECK(taken[1].ended);
  CHECK(taken[1].read == 4);
  bench.send(rendezvous::Stdin{"two\n"});
  bench.start(1, 2);
  bench.run_until([&] { return bench.output[{0, 1}] == "one\ntwo\n"; });
  bench.stop(1, 0);
  bench.run_until_ended(1);
}

TEST_CASE("a signal goes to the leaders, and the processes that workers leave end with the attempt") {
  NodeBench bench("trap 'setsid sleep 60 & echo $!; exit 5' USR1; echo ready; while :; do sleep 0.01; done");
  bench.start(0, 1);
  bench.run_until([&] { return bench.output[{0, 1}] == "ready\n"; });
  bench.send(rendezvous::Signal{SIGUSR1});
  bench.run_until_ended(0);
  CHECK(bench.got<rendezvous::WorkerExited>().back().code == 5);
  const pid_t left = std::stoi(bench.output[{0, 1}].substr(6));
  CHECK_FALSE(read_process(left).has_value());
}

TEST_CASE("an attempt for which there are too few descriptors is refused, and nothing starts") {
  NodeBench bench("exit 0");
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit few{16, usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  bench.start(0, 1);
  bench.run_until([&] { return !bench.got<rendezvous::Refused>().empty(); });
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK(bench.got<rendezvous::Refused>().back().text.starts_with("1 worker needs "));
  CHECK(bench.got<rendezvous::WorkerStarted>().empty());
}

}  // namespace ddp::launcher
