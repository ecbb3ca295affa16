// The master's sweep of the host of a lost node, by a real agent.
#include <signal.h>

#include <algorithm>
#include <chrono>

#include "launcher/master/master_links.h"
#include "remote/transports/command_transport.h"
#include "tests/process/process_probe.h"

namespace ddp::launcher {
namespace {

using namespace process_test;

struct Answer {
  std::size_t node;
  std::uint32_t incarnation;
  Result<SweptHost> swept;
};

struct SweepBench final : NodeEvents {
  explicit SweepBench(const std::string& agent) {
    hosts.emplace_back().name = "localhost";
    remote::FanOutOptions options;
    options.argv = {agent, "--stdio"};
    links = std::make_unique<MasterLinks>(loop, hosts, 1, transport, transport, std::move(options), *this);
  }
  void agent_started(NodeLink&, const remote::StartedAgent&) override {}
  void start_failed(std::size_t, Error) override {}
  Result<> on_message(NodeLink&, const rendezvous::Message&) override { return {}; }
  void agent_errors(const std::string&) override {}
  void link_gone(NodeLink&, NodeLink::LinkEnd) override {}
  void node_swept(std::size_t node, std::uint32_t incarnation, const Result<SweptHost>& swept) override {
    answers.push_back({node, incarnation, swept});
  }
  void sweep(rendezvous::JobStart order) {
    links->sweep(0, std::move(order));
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (answers.empty() && loop.run_one_until(until) > 0) {
    }
    links->close();
    loop.run_for(kPatience);
  }

  asio::io_context loop{1};
  remote::LocalTransport transport{loop.get_executor()};
  std::vector<remote::Host> hosts;
  std::unique_ptr<MasterLinks> links;
  std::vector<Answer> answers;
};

rendezvous::JobStart order_for(const std::string& job) {
  rendezvous::JobStart order;
  order.job_id = job;
  order.predecessor = {0x7ffffff0};  // no process has this number
  order.predecessor_clock_ns =
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  order.master_timeout_ms = 20'000;
  return order;
}

}  // namespace

TEST_CASE("a sweep ends what a lost agent left, and says so") {
  const std::string job = unique_mark("x").substr(2);
  const std::string mark = "DDPLAUNCH_JOB_ID=" + job;
  ChildSpec spec;
  spec.path = "/bin/sleep";
  spec.argv = {"sleep", "300"};
  spec.env = {mark, "LOCAL_RANK=0"};
  auto left = ddp::spawn(spec);
  REQUIRE(left.has_value());
  SweepBench bench(DDP_AGENT);
  bench.sweep(order_for(job));
  REQUIRE(bench.answers.size() == 1);
  CHECK(bench.answers[0].incarnation == 1);
  REQUIRE(bench.answers[0].swept.has_value());
  CHECK(bench.answers[0].swept->found == 1);
  CHECK(bench.answers[0].swept->left.empty());
  CHECK(bench.answers[0].swept->hello.keeper > 0);
  CHECK(wait_end(*left) == ExitStatus::signaled(SIGKILL));
}

TEST_CASE("a sweep that finds the old agent alive proves nothing") {
  rendezvous::JobStart order = order_for(unique_mark("x").substr(2));
  order.predecessor = {static_cast<std::uint32_t>(::getpid())};
  SweepBench bench(DDP_AGENT);
  bench.sweep(order);
  REQUIRE(bench.answers.size() == 1);
  REQUIRE(bench.answers[0].swept.has_value());
  CHECK(bench.answers[0].swept->left == std::vector<std::string>{"process " + std::to_string(::getpid())});
}

TEST_CASE("a sweep without an agent says why") {
  SweepBench bench("/no/such/ddplaunchd");
  bench.sweep(order_for("j"));
  REQUIRE(bench.answers.size() == 1);
  CHECK_FALSE(bench.answers[0].swept.has_value());
}

}  // namespace ddp::launcher
