// A peer of per-node mode that has the token and misbehaves. The master role sends a node a command, a setup
// script and an environment. The node role prints what the master sent.
//   link_peer master PORT JOB SCRIPT check|job  token in DDPLAUNCH_TOKEN; prints the node's answer
//   link_peer master PORT JOB TEXT leave        sends the node away; TEXT is the job's name, twice the reason
//   link_peer node PORT JOB                     prints the JobStart of node 1
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "base/program.h"
#include "launcher/links/join_transport.h"
#include "remote/bootstrap/bootstrap.h"
#include "rendezvous/link/connection.h"
#include "tests/support/resolve_address.h"

namespace {

using namespace ddp;
using namespace std::chrono_literals;

struct Peer {
  asio::io_context loop{1};
  rendezvous::LinkToken token;
  std::uint16_t port = 0;
  std::string job;
  std::string script;
  std::string order;
  std::unique_ptr<remote::Channel> channel;
  std::optional<rendezvous::Connection> link;  ///< outlives the tasks that use it
};

void print(const char* name, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    std::printf("%s %s\n", name, word.c_str());
}
void print(const char* name, const rendezvous::Pairs& pairs) {
  for (const auto& [key, value] : pairs)
    std::printf("%s %s=%s\n", name, key.c_str(), value.c_str());
}

/// Returns true if `message` was the expected answer.
template <class M>
bool show(const M& message) {
  if constexpr (std::is_same_v<M, rendezvous::NodeChecked>) {
    std::printf("checked\n");
  } else if constexpr (std::is_same_v<M, rendezvous::Refused>) {
    std::printf("refused %s\n", message.text.c_str());
  } else if constexpr (std::is_same_v<M, rendezvous::JobAccepted>) {
    std::printf("accepted %s\n", message.program.c_str());
  } else if constexpr (std::is_same_v<M, rendezvous::JobStart>) {
    std::printf("job %s\n", message.job_id.c_str());
    print("argv", message.command.argv);
    print("env", message.env);
    print("env", message.explicit_env);
    print("setup", message.setup);
    std::printf("end %s%s\n", message.command.python.c_str(), message.chdir.c_str());
  } else {
    return false;
  }
  return true;
}

Awaitable<> show_answer(rendezvous::Connection* link) {
  for (;;) {
    auto message = link->next();
    if (!message) co_return;
    if (*message && std::visit([](const auto& m) { return show(m); }, **message)) co_return;
    if (*message) continue;
    const Result<> more = co_await link->read_more();
    if (!more) {
      std::printf("closed %s\n", more.error().text.c_str());
      co_return;
    }
  }
}

Awaitable<> be_master(Peer* self, launcher::JoinTransport* shell) {
  remote::Host host;
  host.name = "node1";
  std::vector<std::string> argv;
  const auto limit = std::chrono::steady_clock::now() + 20s;
  auto channel = co_await shell->open(std::move(host), std::move(argv), limit);
  if (!channel) co_return;
  self->channel = std::move(*channel);
  auto stream = self->channel->stream();
  std::string early;  // bytes behind the agent's hello line
  while (early.find('\n') == std::string::npos) {
    std::array<char, 1024> buffer;
    const auto [error, count] = co_await stream->read_some(asio::buffer(buffer));
    if (error) co_return;
    early.append(buffer.data(), count);
  }
  early.erase(0, early.find('\n') + 1);
  rendezvous::JobStart job;
  job.job_id = self->job;
  job.command.argv = {"/bin/sh", "-c", self->script};
  job.setup = {self->script};
  job.explicit_env = {{"GIVEN", "by the master"}};
  job.master_timeout_ms = 15'000;
  self->link.emplace(self->loop.get_executor(), std::move(stream), early);
  asio::co_spawn(self->loop, self->link->write_all(), asio::detached);
  if (self->order == "check")
    self->link->send(rendezvous::NodeCheck{std::move(job), true, 5'000});
  else if (self->order == "leave")
    self->link->send(rendezvous::Leave{3, self->script + "\n" + self->script});
  else
    self->link->send(job);
  co_await show_answer(&*self->link);
  self->link->close();
}

Awaitable<> be_node(Peer* self) {
  const auto goal =
      rendezvous::link_goal("127.0.0.1", self->port,
                            {rendezvous::LinkRole::kAgent, self->job, "stranger", {}}, self->token,
                            {static_cast<int>(rendezvous::kProtocolVersion), std::string(version()), 1, 2})
          .value();
  const rendezvous::Resolve resolve = test::resolve_address;
  const auto limit = std::chrono::steady_clock::now() + 20s;
  auto joined = co_await rendezvous::secure_join(resolve, goal, limit);
  if (!joined.stream) {
    std::printf("refused %s\n", joined.error.text.c_str());
    co_return;
  }
  const remote::AgentHello hello{goal.hello.protocol, goal.hello.version};
  (void)co_await rendezvous::write_line(*joined.stream, remote::hello_line(hello));
  self->link.emplace(self->loop.get_executor(), std::move(joined.stream));
  asio::co_spawn(self->loop, self->link->write_all(), asio::detached);
  rendezvous::Hello node;
  node.hostname = "stranger";
  node.machine_id = "another machine";
  node.cpus = 1;
  self->link->send(node);
  co_await show_answer(&*self->link);
  self->link->close();
}

void rethrow(const std::exception_ptr& failure) {
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (argc != (role == "master" ? 6 : 4)) return 2;
  Peer peer;
  peer.token = rendezvous::take_token_from_environment().value();
  peer.port = static_cast<std::uint16_t>(std::atoi(argv[2]));
  peer.job = argv[3];
  std::unique_ptr<launcher::JoinTransport> shell;
  if (role == "master") {
    peer.script = argv[4];
    peer.order = argv[5];
    launcher::JoinTransport::Options options;
    options.port.listener = rendezvous::listen_tcp(rendezvous::ListenScope::kLoopback, peer.port).value();
    options.port.token = std::move(peer.token);
    options.port.job = peer.job;
    options.terms = {2, static_cast<int>(rendezvous::kProtocolVersion), std::string(version()),
                     peer.order == "leave" ? peer.script : peer.job};
    shell = launcher::JoinTransport::make(peer.loop.get_executor(), std::move(options)).value();
    asio::co_spawn(peer.loop, be_master(&peer, shell.get()), [&peer](const std::exception_ptr& failure) {
      rethrow(failure);
      peer.loop.stop();
    });
  } else {
    asio::co_spawn(peer.loop, be_node(&peer), [&peer](const std::exception_ptr& failure) {
      rethrow(failure);
      peer.loop.stop();
    });
  }
  peer.loop.run_for(25s);
  std::fflush(stdout);
  return 0;
}
