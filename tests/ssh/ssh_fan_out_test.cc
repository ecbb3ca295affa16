#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "remote/ssh/ssh_transport.h"
#include "remote/transports/command_transport.h"
#include "tests/ssh/channel_io.h"
#include "tests/ssh/nodes.h"
#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::remote;
using namespace ddp::remote::test;

namespace {

/// An agent's program is executed by its physical path, which messages name.
const std::string kShell = std::filesystem::canonical("/bin/sh").string();

const Nodes& nodes() {
  static const Nodes all(64);
  return all;
}

std::vector<Host> hosts(int count) {
  std::vector<Host> list;
  for (int i = 0; i < count; ++i)
    list.push_back(host_named("127.0.0." + std::to_string(i + 2)));
  return list;
}

/// One fan-out with its shells. The channels in `outcomes` must not outlive it.
struct Fixture {
  Fixture(const std::string& config, const std::string& line, std::chrono::milliseconds limit)
      : ssh(loop.get_executor(), options_for(config)), local(loop.get_executor()) {
    FanOutOptions options;
    options.argv = {kShell, "-c", line};
    options.deadline = std::chrono::steady_clock::now() + limit;
    options.expected = AgentHello{1, "0.1.0"};
    fan_out = std::make_unique<FanOut>(loop.get_executor(), ssh, local, options);
  }
  static SshTransportOptions options_for(const std::string& config) {
    SshTransportOptions options;
    options.config = config;
    return options;
  }

  void run(
      std::vector<Host> list, const std::function<void()>& at_outcome = [] {}) {
    run_fan_out(loop, *fan_out, std::move(list), outcomes, at_outcome);
  }

  asio::io_context loop{1};
  SshTransport ssh;
  LocalTransport local;
  std::unique_ptr<FanOut> fan_out;
  Outcomes outcomes;
};

std::string read_line(Channel::Socket& socket, std::string text) {
  char more[256];
  while (text.find('\n') == std::string::npos)
    text.append(more, socket.read_some(asio::buffer(more)));
  return text;
}

/// Returns the number of processes left below the sshd. It waits about 5 s for them, because the server's
/// side of a connection ends later than the client's.
int processes_left(const Nodes& where) {
  int left = 0;
  for (int i = 0; i < 100 && (left = where.processes()) > 0; ++i)
    ::usleep(50'000);
  return left;
}

constexpr const char* kAgent = "echo 'ddplaunchd-hello 1 0.1.0'; exec cat";

}  // namespace

TEST_CASE("64 hosts start at once after one configuration query, and nothing is left") {
  (void)nodes();
  const auto descriptors = open_descriptors();
  const auto before = children();
  {
    Fixture start(nodes().file("ssh_config"), kAgent, std::chrono::seconds(60));
    start.run(hosts(64));
    REQUIRE(start.outcomes.size() == 64);
    CHECK(start.ssh.configuration_questions() == 1);
    for (auto& [host, outcome] : start.outcomes) {
      REQUIRE(outcome.has_value());
      const std::string word = "to " + std::to_string(host) + "\n";
      asio::write(outcome->channel->socket(), asio::buffer(word));
      CHECK(read_line(outcome->channel->socket(), outcome->first_bytes) == word);
    }
    CHECK(nodes().processes() >= 128);
    start.outcomes.clear();
  }
  CHECK(open_descriptors() == descriptors);
  CHECK(children() == before);
  CHECK(processes_left(nodes()) == 0);
}

TEST_CASE("failing hosts among good ones are reported one by one") {
  Fixture start(nodes().file("ssh_config"), kAgent, std::chrono::seconds(30));
  std::vector<Host> list = hosts(3);
  list.push_back(host_named("127.0.0.5"));
  list.back().port = 1;
  list.push_back(host_named("localhost"));
  start.run(list);
  REQUIRE(start.outcomes.size() == 5);
  for (std::size_t i : {0, 1, 2, 4})
    CHECK(start.outcomes.at(i).has_value());
  REQUIRE(start.outcomes.at(3).has_error());
  CHECK(start.outcomes.at(3).error().text ==
        "127.0.0.5: cannot connect to 127.0.0.5:1: Connection refused; check that sshd runs there, and on "
        "this port");
  start.outcomes.clear();
}

TEST_CASE("a cancellation in the middle ends every session") {
  const auto descriptors = open_descriptors();
  {
    Fixture start(nodes().file("ssh_config"), kAgent, std::chrono::seconds(60));
    start.run(hosts(32), [&] { start.fan_out->cancel(); });
    REQUIRE(start.outcomes.size() == 32);
    int cancelled = 0;
    for (const auto& [host, outcome] : start.outcomes) {
      if (outcome.has_error() && outcome.error().code == ErrorCode::kCancelled) ++cancelled;
    }
    CHECK(cancelled > 0);
    start.outcomes.clear();
  }
  CHECK(open_descriptors() == descriptors);
  CHECK(processes_left(nodes()) == 0);
}

TEST_CASE("a host that never greets is given up at the deadline, and its command is killed") {
  // The time that a login takes depends on the machine. If the login exceeded the limit, the test
  // repeats with a longer one.
  std::string error_text;
  for (std::chrono::milliseconds limit(1000); limit <= std::chrono::seconds(32); limit *= 2) {
    Fixture start(nodes().file("ssh_config"), "echo booting; exec cat", limit);
    const auto before = std::chrono::steady_clock::now();
    start.run(hosts(2));
    CHECK(std::chrono::steady_clock::now() - before >= limit);
    REQUIRE(start.outcomes.at(0).has_error());
    CHECK(start.outcomes.at(0).error().code == ErrorCode::kTimeout);
    error_text = start.outcomes.at(0).error().text;
    if (error_text.find("; its last lines:\n") != std::string::npos) break;
  }
  CHECK(error_text ==
        "127.0.0.2: no greeting of " + kShell + " before the start limit; its last lines:\n  booting");
  CHECK(processes_left(nodes()) == 0);
}

TEST_CASE("the ssh program gives the same outcomes, and reports an unreachable host in its own words") {
  asio::io_context loop(1);
  CommandTransport transport(loop.get_executor(), {{"ssh"}, nodes().file("ssh_config"), false});
  LocalTransport local(loop.get_executor());
  FanOutOptions options;
  options.argv = {kShell, "-c", kAgent};
  options.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  FanOut fan_out(loop.get_executor(), transport, local, options);
  Outcomes outcomes;
  std::vector<Host> list = hosts(3);
  list[1].port = 1;
  run_fan_out(loop, fan_out, list, outcomes);
  CHECK(outcomes.at(0).has_value());
  CHECK(outcomes.at(2).has_value());
  REQUIRE(outcomes.at(1).has_error());
  CHECK(outcomes.at(1).error().code == ErrorCode::kUnreachable);
  const std::string& text = outcomes.at(1).error().text;
  const std::string ours =
      "127.0.0.3: ssh failed (exit status 255); ddplaunch never prompts; run \"ssh -F " +
      nodes().file("ssh_config") +
      " -p 1 127.0.0.3 true\" in a terminal to see whether ssh asks for a passphrase (then run ssh-add "
      "first), a password, or a host key; its last lines:\n  ";
  CHECK(text.substr(0, ours.size()) == ours);
  const std::string quoted = text.substr(std::min(ours.size(), text.size()));  // the words are OpenSSH's
  INFO(quoted);
  CHECK(quoted.find("127.0.0.3 port 1") != std::string::npos);
  CHECK(quoted.find("refused") != std::string::npos);
  outcomes.clear();
  loop.restart();
  loop.run_for(std::chrono::seconds(5));
  CHECK(processes_left(nodes()) == 0);
}

TEST_CASE("output of a login shell's start-up file does not disturb the greeting") {
  const std::string rc =
      nodes().write("noisy_rc", "echo 'welcome to the cluster'; echo 'quota: 80%' >&2\nprintf 'prompt> '\n");
  const Nodes noisy(1, "NODES_BASHRC=" + rc);
  Fixture start(noisy.file("ssh_config"), kAgent, std::chrono::seconds(30));
  start.run(hosts(1));
  REQUIRE(start.outcomes.at(0).has_value());
  StartedAgent& agent = *start.outcomes.at(0);
  if (std::string(output_of("getent passwd $(id -u)")).find("bash") != std::string::npos) {
    REQUIRE(agent.noise.size() == 2);
    CHECK(agent.noise[0] == "welcome to the cluster");
    CHECK(agent.noise[1] == "prompt> ");
    // stderr is a separate stream, and may arrive after the greeting.
    CHECK(read_line(agent.channel->errors(), agent.errors) == "quota: 80%\n");
  }
  start.outcomes.clear();
}

TEST_CASE("a server that drops logins beyond MaxStartups is retried") {
  const Nodes strict(15, "NODES_MAX_STARTUPS=2:100:2");
  Fixture start(strict.file("ssh_config"), kAgent, std::chrono::seconds(60));
  start.run(hosts(15));
  for (const auto& [host, outcome] : start.outcomes) {
    INFO(host);
    if (outcome.has_error()) WARN(outcome.error().text);
    CHECK(outcome.has_value());
  }
  CHECK(output_of("grep -ci 'past maxstartups\\|drop connection' " + strict.file("sshd.log") + " || true") !=
        "0");
  start.outcomes.clear();
}

TEST_CASE("many hosts behind one jump host are connected in turns") {
  // Each login makes two connections to this sshd: 30 if all hosts started at once.
  const Nodes strict(15, "NODES_MAX_STARTUPS=17:100:17");
  const std::string config =
      strict.write("config_jump", "Host inner*\n  ProxyCommand ssh -F " + strict.file("ssh_config") +
                                      " -W %h:%p 127.0.0.2\nInclude " + strict.file("ssh_config") + "\n");
  Fixture start(config, kAgent, std::chrono::seconds(60));
  std::vector<Host> list = hosts(15);
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i].address = list[i].name;
    list[i].name = "inner" + std::to_string(i);
  }
  start.run(list);
  for (const auto& [host, outcome] : start.outcomes) {
    if (outcome.has_error()) WARN(outcome.error().text);
    CHECK(outcome.has_value());
  }
  CHECK(start.ssh.configuration_questions() == 1);
  start.outcomes.clear();
}
