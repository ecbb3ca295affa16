// Simulates many agents in one process, each with its own TLS link. The agents join the master of a job in
// per-node mode. Their workers start at once and never end. `tests/bench/rendezvous --what swarm` runs this
// program beside a real ddplaunch.
//
// node_swarm HOST PORT JOB FIRST COUNT NODES PREFIX [hostile]
//   Simulates the node ranks FIRST to FIRST + COUNT - 1 of NODES. DDPLAUNCH_TOKEN holds the token. Each agent
//   has its own address in PREFIX.0.0.0/8; all of these must be local, as in the benchmark's network
//   namespace. The line "lose" on stdin makes the last agent report that its workers are dead, and close its
//   link. hostile: with its Spawn each agent sends the largest messages of every kind that the protocol
//   allows, long lines without an end, and the beginning of one more frame. Then it is silent.
//
// Prints these events; T is CLOCK_MONOTONIC in µs:
//   joining T                before the first connect
//   joined T                 all agents are accepted
//   spawned ATTEMPT COUNT T  the last agent has received Spawn
//   lost T                   the last agent closes its link
//   flooded T                the last hostile agent has sent everything
//   tries N                  at the end: number of connection attempts
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/program.h"
#include "base/result.h"
#include "remote/bootstrap/bootstrap.h"
#include "rendezvous/flight_recorder/flight_recorder.h"
#include "rendezvous/link/connection.h"
#include "rendezvous/link/secure_link.h"

namespace {

using namespace ddp;
using namespace ddp::rendezvous;
using Clock = std::chrono::steady_clock;
using Descriptor = asio::posix::stream_descriptor;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "node_swarm: %s\n", what.c_str());
  std::_Exit(1);
}

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
}

struct SwarmAgent {
  int rank = 0;
  std::uint32_t address = 0;
  std::unique_ptr<Connection> link;
  SecureStream* stream = nullptr;  ///< owned by `link`
  std::uint32_t attempt = 0;
};

struct Swarm {
  asio::io_context loop{1};
  LinkToken token;
  asio::ip::tcp::endpoint master;
  std::string job;
  int first = 0;
  int count = 0;
  int nodes = 0;
  std::uint32_t prefix = 0;  ///< first byte of the addresses
  std::vector<SwarmAgent> agents;
  std::map<std::uint32_t, int> spawned;  ///< agents by attempt
  int joined = 0;
  int ended = 0;
  int tries = 0;
  bool losing = false;
  bool hostile = false;
  int flooded = 0;
  std::minstd_rand random{std::random_device{}()};
};

void print_event(const char* what) {
  std::printf("%s %llu\n", what, static_cast<unsigned long long>(now_ns() / 1000));
  std::fflush(stdout);
}

std::string text_of(std::uint32_t address) {
  return asio::ip::address_v4(address).to_string();
}

/// Returns a socket from `agent`'s address to the master, or -1 if the connection failed.
Awaitable<int> connected(Swarm* swarm, SwarmAgent* agent) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("no descriptor is left");
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(agent->address);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0)
    fail("bind " + text_of(agent->address));
  Descriptor watched(swarm->loop, fd);
  if (::connect(fd, swarm->master.data(), static_cast<socklen_t>(swarm->master.size())) != 0) {
    do {
      const auto [error] = co_await watched.async_wait(Descriptor::wait_write, kUseTuple);
      if (error) fail(error.message());
    } while (!is_writable(fd));
  }
  int result = 0;
  socklen_t size = sizeof result;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &result, &size);
  if (result == 0) co_return watched.release();
  co_return -1;
}

/// Joins like secure_join() of a node: retries after a growing pause, without limit.
Awaitable<std::unique_ptr<SecureStream>> joined(Swarm* swarm, SwarmAgent* agent) {
  asio::steady_timer timer(swarm->loop);
  LinkIdentity identity{LinkRole::kAgent, swarm->job, "sim" + std::to_string(agent->rank), {}};
  for (std::chrono::milliseconds pause{50};; pause = std::min(2 * pause, std::chrono::milliseconds(2000))) {
    ++swarm->tries;
    const int fd = co_await connected(swarm, agent);
    if (fd >= 0) {
      if (::getrandom(identity.nonce.data(), identity.nonce.size(), 0) != 16) fail("getrandom");
      const auto key = link_key(swarm->token.secret, identity.role, identity.job, identity.node);
      auto session = session_key(*key, identity);
      SecureStream::Start start{Descriptor(swarm->loop, fd), identity, std::move(*session)};
      auto stream = SecureStream::make(SecureStream::TlsRole::kClient, std::move(start));
      const HandshakeEnd end = co_await (*stream)->handshake();
      if (!end.refusal) co_return std::move(*stream);
    }
    timer.expires_after(pause / 2 + std::chrono::milliseconds(swarm->random() % (pause.count() / 2 + 1)));
    co_await timer.async_wait(kUseTuple);
  }
}

Hello hello_of(const SwarmAgent& agent) {
  Hello hello;
  hello.hostname = "sim" + std::to_string(agent.rank);
  hello.machine_id = "machine-" + std::to_string(agent.rank);
  hello.pid = 1000;
  hello.cpus = 64;
  hello.gpus = 8;
  hello.clock_ns = now_ns();
  hello.workers = 8;
  hello.interfaces.push_back({"lo", "127.0.0.1", 8, true, true});
  hello.interfaces.push_back({"eth0", text_of(agent.address), 8, true, false});
  hello.interfaces.push_back({"docker0", "172.17.0.1", 16, true, false});
  for (std::uint32_t rail = 0; rail < 8; ++rail) {  // one interface for each GPU
    const std::uint32_t address =
        (172u << 24 | (16u + 2 * rail) << 16) + 256 + static_cast<std::uint32_t>(agent.rank);
    hello.interfaces.push_back({"ib" + std::to_string(rail), text_of(address), 15, true, false});
  }
  return hello;
}

/// Returns the longest hello that a master accepts.
void lengthen(Hello& hello) {
  for (int i = 0; hello.interfaces.size() < kMaxInterfaces; ++i) {
    std::string name(60, 'x');
    hello.interfaces.push_back({name, "fd00::" + std::to_string(i), 64, true, false});
  }
}

std::string longest_dump(std::uint32_t rank, const Spawn& spawn) {
  FlightRecorderDump dump{static_cast<int>(rank), static_cast<int>(spawn.world_size), spawn.attempt, {}, {}};
  dump.groups.resize(1);
  for (std::uint64_t i = 1; i <= FlightRecorderMemory::kCapacity; ++i) {
    RecordedCollective entry;
    entry.sequence = i;
    entry.kind = "all-reduce";
    entry.type = "bfloat16";
    entry.started = 1'700'000'000'000'000'000;
    dump.groups[0].entries.push_back(std::move(entry));
  }
  return dump_text(dump);
}

/// Sends what a compromised agent can.
Awaitable<> flood(Swarm* swarm, SwarmAgent* agent, Spawn spawn) {
  Connection& link = *agent->link;
  const std::string text(kMaxAgentText, 't');
  const std::string evidence(kMaxAgentEvidence, 'e');
  for (std::uint32_t local = 0; local < spawn.local_world_size; ++local) {
    const std::uint32_t rank = spawn.first_rank + local;
    link.send(WorkerInTrouble{spawn.attempt, rank, text, std::vector<std::uint32_t>(kMaxAgentList, 1)});
    WorkerExited exited;
    exited.attempt = spawn.attempt;
    exited.rank = rank;
    exited.pid = local == 0 ? 0 : 5000 + local;  // 0: it was not started, for the reason in `text`
    exited.code = 1;
    exited.clock_ns = now_ns();
    exited.text = text;
    if (local < 2) link.send(exited);
    link.send(WorkerEvidence{spawn.attempt, rank, evidence, {}, {}});
    link.send(WorkerEvidence{
        spawn.attempt, rank, {}, {}, R"({"message":{"message":")" + evidence.substr(100) + R"("}})"});
    if (local == 0) link.send(WorkerCollectives{spawn.attempt, rank, longest_dump(rank, spawn)});
    link.send(WorkerSteps{spawn.attempt, {rank}, {1}, {0}, {text}, {0}, {0}, {0}, {50, 1}});
    link.send(Inspection{spawn.attempt, rank, false, evidence, evidence, true, 1});
    link.send(QueryAnswer{1, rank, evidence, false, 0, evidence});
    co_await link.flushed();
  }
  for (int i = 0; i < 50; ++i)
    link.send(Notice{text, false});
  for (std::size_t sent = 0; sent < (1u << 20) - kMaxOutputData; sent += kMaxOutputData) {
    for (const std::uint8_t stream : {1, 2}) {
      const std::span<char> space = link.output_space(kMaxOutputData);
      std::fill(space.begin(), space.end(), 'o');
      link.send_output({spawn.attempt, spawn.first_rank + 7, stream, 0, {space.data(), space.size()}});
    }
    co_await link.flushed();
  }
  std::string rest(kMaxAgentFrame, 'r');
  for (std::size_t i = 0; i < kFrameHeader; ++i)
    rest[i] = static_cast<char>(kMaxAgentFrame >> (8 * i));
  for (std::string_view left = rest; !left.empty();) {
    const auto [error, count] = co_await agent->stream->write_some(asio::buffer(left.data(), left.size()));
    if (error) break;
    left.remove_prefix(count);
  }
  if (++swarm->flooded == swarm->count) print_event("flooded");
}

/// Answers the master's messages without delay.
struct Answer {
  Swarm& swarm;
  SwarmAgent& agent;

  void operator()(const JobStart&) {
    JobAccepted accepted;
    accepted.program = "/usr/bin/python3";
    agent.link->send(accepted);
  }
  void operator()(const OpenStore&) { fail("node 0 is the master's own"); }
  void operator()(const Probe& probe) {
    ProbeResult result;
    result.attempt = probe.attempt;
    result.address = probe.addresses.at(0);
    result.local = text_of(agent.address);
    agent.link->send(result);
  }
  void operator()(const Spawn& spawn) {
    agent.attempt = spawn.attempt;
    const int count = ++swarm.spawned[spawn.attempt];
    if (count >= swarm.count - (swarm.losing ? 1 : 0)) {
      std::printf("spawned %u %d %llu\n", spawn.attempt, count,
                  static_cast<unsigned long long>(now_ns() / 1000));
      std::fflush(stdout);
    }
    for (std::uint32_t i = 0; i < spawn.local_world_size; ++i)
      agent.link->send(WorkerStarted{spawn.attempt, spawn.first_rank + i, 5000 + i, now_ns()});
    if (!swarm.hostile) return;
    asio::co_spawn(swarm.loop, flood(&swarm, &agent, spawn), [](const std::exception_ptr& e) {
      if (e) fail("an exception");
    });
  }
  void operator()(const Stop& stop) { agent.link->send(AttemptEnded{stop.attempt, 0, {}}); }
  void operator()(const Ping& ping) {
    if (!swarm.hostile || agent.attempt == 0) agent.link->send(Pong{ping.sequence, now_ns()});
  }
  void operator()(const Leave&) { agent.link->close(); }
  template <class M>
  void operator()(const M&) {}
};

Awaitable<> write_link(Connection* link) {
  co_await link->write_all();
}

Awaitable<> serve(Swarm* swarm, SwarmAgent* agent) {
  auto stream = co_await joined(swarm, agent);
  const LinkHello request{static_cast<int>(kProtocolVersion), std::string(version()), agent->rank,
                          swarm->nodes};
  (void)co_await write_line(*stream, hello_line(request));
  const auto line = co_await read_line(*stream);
  if (!line) fail("no answer: " + line.error().text);
  const auto answer = parse_answer(*line);
  if (!answer || !answer->rank) fail("refused: " + *line);
  if (++swarm->joined == swarm->count) print_event("joined");
  const remote::AgentHello greeting{request.protocol, request.version};
  (void)co_await write_line(*stream, remote::hello_line(greeting));
  agent->stream = stream.get();
  agent->link = std::make_unique<Connection>(swarm->loop.get_executor(), std::move(stream));
  asio::co_spawn(swarm->loop, write_link(agent->link.get()), [](const std::exception_ptr& e) {
    if (e) fail("an exception");
  });
  Hello hello = hello_of(*agent);
  if (swarm->hostile) lengthen(hello);
  agent->link->send(hello);
  for (bool open = true; open;) {
    auto message = agent->link->next();
    if (!message) fail(message.error().text);
    if (*message) {
      Answer answering{*swarm, *agent};
      std::visit(answering, **message);
      continue;
    }
    const auto more = co_await agent->link->read_more();
    open = more.has_value();
  }
  agent->link->close();
  if (++swarm->ended == swarm->count) swarm->loop.stop();
}

/// The last agent reports that its workers are dead, and leaves.
Awaitable<> lose(Swarm* swarm) {
  SwarmAgent& last = swarm->agents.back();
  swarm->losing = true;
  print_event("lost");
  Refused refused;
  refused.code = ErrorCode::kLinkLost;
  refused.text = "it was ordered to end";
  last.link->send(refused);
  last.link->send(AttemptEnded{last.attempt, 0, {}});
  co_await last.link->flushed();
  last.link->close();
}

Awaitable<> take_orders(Swarm* swarm, Descriptor* input) {
  std::array<char, 64> buffer;
  for (;;) {
    const auto [error, size] = co_await input->async_read_some(asio::buffer(buffer), kUseTuple);
    if (error) break;
    if (std::string_view(buffer.data(), size).starts_with("lose")) co_await lose(swarm);
  }
  swarm->loop.stop();
}

}  // namespace

int main(int count, char** words) {
  if (count < 8 || count > 9) fail("usage: node_swarm HOST PORT JOB FIRST COUNT NODES PREFIX [hostile]");
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  Swarm swarm;
  auto token = take_token_from_environment();
  if (!token) fail(token.error().text);
  swarm.token = std::move(*token);
  swarm.master = {asio::ip::make_address(words[1]), static_cast<std::uint16_t>(std::atoi(words[2]))};
  swarm.job = words[3];
  swarm.first = std::atoi(words[4]);
  swarm.count = std::atoi(words[5]);
  swarm.nodes = std::atoi(words[6]);
  swarm.prefix = static_cast<std::uint32_t>(std::atoi(words[7]));
  swarm.hostile = count == 9;
  swarm.agents.resize(static_cast<std::size_t>(swarm.count));
  Descriptor input(swarm.loop, 0);
  const auto no_exception = [](const std::exception_ptr& e) {
    if (e) fail("an exception");
  };
  asio::co_spawn(swarm.loop, take_orders(&swarm, &input), no_exception);
  print_event("joining");
  for (int i = 0; i < swarm.count; ++i) {
    SwarmAgent& agent = swarm.agents[static_cast<std::size_t>(i)];
    agent.rank = swarm.first + i;
    agent.address = swarm.prefix << 24 | 1u << 16 | static_cast<std::uint32_t>(agent.rank);
    asio::co_spawn(swarm.loop, serve(&swarm, &agent), no_exception);
  }
  swarm.loop.run();
  std::printf("tries %d\n", swarm.tries);
  std::fflush(stdout);
  std::_Exit(0);
}
