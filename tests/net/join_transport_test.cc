// Nodes that join by themselves: the master's listener, and a node's connection to it.
#include "launcher/links/join_transport.h"

#include "tests/net/secure_link_world.h"
#include "tests/support/run_until.h"

namespace ddp::test {
namespace {

using namespace launcher;

/// A job of three nodes at a loopback port, and the nodes that join it, on one loop.
struct Job {
  asio::io_context loop{1};
  std::uint16_t port = 0;
  std::vector<std::string> notes;
  std::unique_ptr<JoinTransport> transport;
  const rendezvous::Resolve resolve = resolve_address;

  Job() {
    JoinTransport::Options options;
    options.port.listener = rendezvous::listen_tcp(rendezvous::ListenScope::kLoopback, 0).value();
    port = options.port.listener.port;
    options.port.token = rendezvous::make_token(kToken, "DDPLAUNCH_TOKEN").value();
    options.port.job = "job1";
    options.terms = {3, 1, "0.1.0", "run7"};
    options.port.where = "127.0.0.1:1";
    options.port.on_note = [this](const std::string& line) { notes.push_back(line); };
    transport = JoinTransport::make(loop.get_executor(), std::move(options)).value();
  }
  ~Job() {
    transport.reset();
    loop.restart();
    loop.poll();
  }

  template <class Condition>
  bool run_until(const Condition& holds) {
    return test::run_until(loop, holds);
  }
  void run(Awaitable<> task) {
    asio::co_spawn(loop, std::move(task), [](const std::exception_ptr& failure) {
      if (failure) std::rethrow_exception(failure);
    });
  }
};

/// A node that joins.
struct Node {
  rendezvous::LinkGoal goal;
  std::optional<rendezvous::JoinOutcome> outcome;

  Node(Job& job, std::optional<int> rank, const std::string& name = "gpu01") {
    const auto token = rendezvous::make_token(kToken, "a test").value();
    goal = rendezvous::link_goal("127.0.0.1", job.port, {rendezvous::LinkRole::kAgent, "job1", name, {}},
                                 token, {1, "0.1.0", rank, 3})
               .value();
    job.run(join(this, &job));
  }
  static Awaitable<> join(Node* self, Job* job) {
    auto joined = co_await rendezvous::secure_join(job->resolve, self->goal, Clock::now() + 20s);
    self->outcome = std::move(joined);
  }
  ByteStream& stream() { return *outcome->stream; }
};

/// An open() call of the master.
struct Opening {
  std::optional<Result<std::unique_ptr<remote::Channel>>> outcome;

  Opening(Job& job, const std::string& host, std::chrono::milliseconds limit = 20s) {
    job.run(open(this, &job, host, limit));
  }
  static Awaitable<> open(Opening* self, Job* job, std::string name, std::chrono::milliseconds limit) {
    remote::Host host;
    host.name = std::move(name);
    std::vector<std::string> argv = {"ddplaunchd"};
    auto opened = co_await job->transport->open(std::move(host), std::move(argv), Clock::now() + limit);
    self->outcome = std::move(opened);
  }
  remote::Channel& channel() { return *outcome->value(); }
};

TEST_CASE("open() waits for the node with its rank, and returns the node's link") {
  Job job;
  Opening two(job, "node2");
  Node first(job, 1);
  REQUIRE(job.run_until([&] { return first.outcome.has_value(); }));
  REQUIRE(first.outcome->stream);
  CHECK(first.outcome->answer.rank == 1);
  CHECK(first.outcome->answer.job_id == "run7");
  CHECK(!two.outcome);
  Node second(job, 2);
  REQUIRE(job.run_until([&] { return second.outcome && two.outcome; }));
  REQUIRE(two.outcome->has_value());
  CHECK(two.channel().address() == "127.0.0.1");

  const std::string line = "ddplaunchd-hello 1 0.1.0\n";
  Talk node;
  Talk master;
  const auto stream = two.channel().stream();
  job.run(Talk::say(&node, &second.stream(), line));
  job.run(Talk::hear(&master, stream.get(), line.size()));
  REQUIRE(job.run_until([&] { return master.heard.size() == line.size(); }));
  CHECK(master.heard == line);
}

TEST_CASE("what a waiting node sends is kept until its link is opened") {
  Job job;
  Node node(job, 1);
  REQUIRE(job.run_until([&] { return node.outcome.has_value(); }));
  const std::string sent = some_bytes(20'000);
  Talk first;
  job.run(Talk::say(&first, &node.stream(), sent));
  REQUIRE(job.run_until([&] { return first.sent == sent.size(); }));
  job.loop.restart();
  job.loop.run_for(100ms);
  Opening opening(job, "node1");
  REQUIRE(job.run_until([&] { return opening.outcome.has_value(); }));
  const auto stream = opening.channel().stream();
  Talk master;
  job.run(Talk::hear(&master, stream.get(), 2 * sent.size()));
  REQUIRE(job.run_until([&] { return master.heard.size() == sent.size(); }));
  Talk second;
  job.run(Talk::say(&second, &node.stream(), sent));
  REQUIRE(job.run_until([&] { return master.heard.size() == 2 * sent.size(); }));
  CHECK(master.heard == sent + sent);
}

TEST_CASE("a node that joins again after its end is a new incarnation") {
  Job job;
  Node first(job, 1);
  Opening opening(job, "node1");
  REQUIRE(job.run_until([&] { return first.outcome && opening.outcome; }));
  Opening again(job, "node1");
  first.stream().close();
  Node second(job, 1);
  REQUIRE(job.run_until([&] { return second.outcome && again.outcome; }));
  CHECK(second.outcome->stream);
  CHECK(again.outcome->has_value());
}

TEST_CASE("a waiting process is replaced by the next process of its own machine") {
  Job job;
  Node first(job, 1);
  REQUIRE(job.run_until([&] { return first.outcome.has_value(); }));
  Node second(job, 1);
  REQUIRE(job.run_until([&] { return second.outcome.has_value(); }));
  CHECK(second.outcome->stream);
  struct Listen {
    static Awaitable<> to_end(ByteStream* stream, bool* ended) {
      const auto line = co_await rendezvous::read_line(*stream);
      *ended = !line;
    }
  };
  bool ended = false;
  job.run(Listen::to_end(&first.stream(), &ended));
  CHECK(job.run_until([&] { return ended; }));
}

TEST_CASE("a node without a slot gets the reason, and so does the master") {
  Job job;
  Node wrong(job, 7);
  REQUIRE(job.run_until([&] { return wrong.outcome.has_value(); }));
  REQUIRE(!wrong.outcome->stream);
  CHECK(wrong.outcome->error.code == ErrorCode::kUsage);
  CHECK(wrong.outcome->error.text == "127.0.0.1:" + std::to_string(job.port) +
                                         " refused this node: node rank 7 is not one of 0 … 2; the job "
                                         "has 3 nodes");
  REQUIRE(job.notes.size() == 1);
  CHECK(job.notes[0] ==
        "127.0.0.1 (gpu01) was refused: node rank 7 is not one of 0 … 2; the job has 3 nodes");
}

TEST_CASE("repeated refusals are reported once, and the last refusal is kept") {
  Job job;
  for (int rank = 7; rank < 10; ++rank) {
    Node wrong(job, rank);
    REQUIRE(job.run_until([&] { return wrong.outcome.has_value(); }));
  }
  Node other(job, 1);
  other.goal.hello.nodes = 4;
  REQUIRE(job.run_until([&] { return other.outcome.has_value(); }));
  REQUIRE(job.notes.size() == 2);
  CHECK(job.notes[0].find("node rank 7 is not one of 0") != std::string::npos);
  CHECK(job.notes[1].find("but 4 according to this node") != std::string::npos);
}

TEST_CASE("a node that does not join is reported at the deadline, with the refused peers") {
  Job job;
  Node wrong(job, 7);
  REQUIRE(job.run_until([&] { return wrong.outcome.has_value(); }));
  Opening opening(job, "node1", 50ms);
  REQUIRE(job.run_until([&] { return opening.outcome.has_value(); }));
  REQUIRE(!opening.outcome->has_value());
  CHECK(opening.outcome->error().code == ErrorCode::kTimeout);
  CHECK(opening.outcome->error().text ==
        "no ddplaunch of node 1 has joined at 127.0.0.1:1; start it there with the MASTER_ADDR "
        "and MASTER_PORT of this node. Last refused node: " +
            job.notes[0]);
}

TEST_CASE("the end of the master ends all waiting nodes") {
  Job job;
  Node first(job, 1);
  REQUIRE(job.run_until([&] { return first.outcome.has_value(); }));
  Opening opening(job, "node2");
  job.loop.restart();
  job.loop.poll();
  job.transport.reset();
  REQUIRE(job.run_until([&] { return opening.outcome.has_value(); }));
  CHECK(opening.outcome->error().code == ErrorCode::kCancelled);
}

}  // namespace
}  // namespace ddp::test
