// A real Master whose reader of stdout does not read, with simulated nodes. At a stop, revoke or restart the
// nodes send the content of their workers' pipes, beyond their credit, as agents do.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/program.h"
#include "base/unique_fd.h"
#include "launcher/job/output_credit.h"
#include "launcher/master/master.h"
#include "remote/bootstrap/bootstrap.h"
#include "rendezvous/link/connection.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace rendezvous;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using Socket = asio::local::stream_protocol::socket;
namespace fs = std::filesystem;

constexpr std::uint32_t kRanks = 2;        ///< per node
constexpr std::size_t kPipe = 256u << 10;  ///< content of each rank's pipe at an end
constexpr std::size_t kLine = 64;          ///< bytes
constexpr std::size_t kPiece = 32u << 10;  ///< whole lines
constexpr milliseconds kStill{100};        ///< no credit for this time: output is no longer accepted
constexpr seconds kGiveUp{60};             ///< then start the reader, so that the test fails and ends
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kNodes[] = {1, 8};  // 128 nodes would take minutes
#else
constexpr std::size_t kNodes[] = {1, 4, 128};
#endif
enum class SwarmEnd { kStop, kRevoke, kRestart };

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
}

template <class Task>
void start(asio::io_context& loop, Task task) {
  asio::co_spawn(loop, std::move(task), [](const std::exception_ptr& broken) {
    if (broken) std::terminate();
  });
}

void connect(Socket& one, Socket& other) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::terminate();
  one.assign(asio::local::stream_protocol(), ends[0]);
  other.assign(asio::local::stream_protocol(), ends[1]);
}

class SimChannel final : public remote::Channel {
 public:
  SimChannel(Socket socket, Socket errors) : socket_(std::move(socket)), errors_(std::move(errors)) {}
  Socket& socket() override { return socket_; }
  Socket& errors() override { return errors_; }
  Awaitable<remote::ChannelEnd> end() override { co_return remote::ChannelEnd{0, {}}; }

 private:
  Socket socket_;
  Socket errors_;
};

struct Swarm;

/// An agent without processes.
struct SwarmNode {
  SwarmNode(Swarm& all, asio::io_context& loop, std::size_t number)
      : swarm(all), index(number), socket(loop), errors(loop) {}
  void send(std::uint32_t rank, std::size_t bytes);
  void send_within_credit();
  void send_what_pipes_hold();
  Hello hello() const;
  WorkerExited exit_of(std::uint32_t local, std::uint8_t code, std::uint8_t signal) const;
  static Awaitable<> answer(SwarmNode* node, Message last);
  static Awaitable<> write(SwarmNode* node) { co_await node->link->write_all(); }
  static Awaitable<> serve(SwarmNode* node);

  void handle(const JobStart& job);
  void handle(const OpenStore& open) { link->send(StoreOpened{open.attempt, 29500, {}}); }
  void handle(const Probe& probe) { link->send(ProbeResult{probe.attempt, probe.addresses.at(0), {}, {}}); }
  void handle(const Spawn& spawn);
  void handle(const Stop& stop);
  void handle(const Revoke& revoke);
  void handle(const Credit& more);
  void handle(const Ping& ping) { link->send(Pong{ping.sequence, now_ns()}); }
  void handle(const Leave& leave);
  template <class M>
  void handle(const M&) {}

  Swarm& swarm;
  std::size_t index;
  Socket socket;
  Socket errors;
  std::unique_ptr<Connection> link;
  OutputCredit credit;
  std::size_t window = 0;
  std::uint32_t attempt = 0;
  std::uint32_t first_rank = 0;
  std::size_t to_send = 0;  ///< in this attempt
  std::size_t sent = 0;     ///< in all attempts
};

/// All nodes of a job, on the master's own loop. When output stops moving the last rank fails, once.
struct Swarm final : remote::Transport {
  Swarm(asio::io_context& on, std::size_t count, SwarmEnd how) : loop(on), end(how), still(on), give_up(on) {
    for (std::size_t i = 0; i < count; ++i)
      nodes.push_back(std::make_unique<SwarmNode>(*this, on, i));
    give_up.expires_after(kGiveUp);
    give_up.async_wait([this](const error_code& cancelled) {
      if (!cancelled) release_reader();
    });
  }
  using Opened = Result<std::unique_ptr<remote::Channel>>;
  Awaitable<Opened> open(remote::Host host, std::vector<std::string> argv,
                         remote::Deadline deadline) override;
  void fail_when_still();
  void release_reader() {
    if (!std::exchange(reading, true)) reader.set_value();
  }
  std::size_t sent() const {
    std::size_t sum = 0;
    for (const auto& node : nodes)
      sum += node->sent;
    return sum;
  }

  asio::io_context& loop;
  const SwarmEnd end;
  asio::steady_timer still;
  asio::steady_timer give_up;
  std::vector<std::unique_ptr<SwarmNode>> nodes;
  std::vector<std::int32_t> sources;  ///< Spawn::from of the second attempt
  std::promise<void> reader;          ///< set when the reader may begin
  bool failed = false, reading = false, too_much_credit = false;
};

Hello SwarmNode::hello() const {
  const std::string name = "sim" + std::to_string(index);
  const rendezvous::Interface lo{"lo", "127.0.0.1", 8, true, true};
  return {name,
          name,
          1000,
          64,
          0,
          now_ns(),
          {lo, {"eth0", "10.1.0." + std::to_string(index + 1), 8, true, false}}};
}

WorkerExited SwarmNode::exit_of(std::uint32_t local, std::uint8_t code, std::uint8_t signal) const {
  return {attempt, first_rank + local, 5000 + local, code, 0, signal, false, now_ns(), {}};
}

void SwarmNode::send(std::uint32_t rank, std::size_t bytes) {
  static const std::string lines = [] {
    std::string piece;
    while (piece.size() < kPiece)
      piece += std::string(kLine - 1, 'x') + '\n';
    return piece;
  }();
  while (bytes > 0) {
    const std::span<char> space = link->output_space(std::min(bytes, kPiece));
    std::copy_n(lines.data(), space.size(), space.data());
    link->send_output({attempt, rank, 1, now_ns(), {space.data(), space.size()}});
    credit.spend(1, space.size());
    sent += space.size();
    bytes -= space.size();
  }
}

void SwarmNode::send_within_credit() {
  swarm.too_much_credit = swarm.too_much_credit || credit.room(1) > window;
  const std::size_t bytes = std::min(credit.room(1) / kLine * kLine, to_send);
  to_send -= bytes;
  send(first_rank, bytes);
}

void SwarmNode::send_what_pipes_hold() {
  to_send = 0;
  for (std::uint32_t local = 0; local < kRanks; ++local)
    send(first_rank + local, kPipe);
}

/// Sends the last message of an attempt, after its output.
Awaitable<> SwarmNode::answer(SwarmNode* node, Message last) {
  co_await node->link->flushed();
  node->link->send(last);
}

Awaitable<> SwarmNode::serve(SwarmNode* node) {
  for (Result<> more; more; more = co_await node->link->read_more()) {
    for (auto message = node->link->next(); message && *message; message = node->link->next())
      std::visit([node](const auto& one) { node->handle(one); }, **message);
  }
  node->link->close();
  node->swarm.release_reader();
}

void SwarmNode::handle(const JobStart& job) {
  window = job.credit;
  credit.start(window);
  link->send(JobAccepted{"/bin/true"});
}

void SwarmNode::handle(const Spawn& spawn) {
  attempt = spawn.attempt;
  first_rank = spawn.first_rank;
  for (std::uint32_t local = 0; local < kRanks; ++local)
    link->send(WorkerStarted{attempt, first_rank + local, 5000 + local, now_ns(), attempt});
  if (swarm.end == SwarmEnd::kRevoke) {
    link->send(WorkersGreeted{attempt});
    link->send(WorkersReady{attempt});
  }
  to_send = attempt == 0 ? SIZE_MAX : 2 * window;
  if (attempt == 0) {
    swarm.fail_when_still();
  } else {
    swarm.sources.push_back(spawn.from);
    if (swarm.sources.size() == swarm.nodes.size()) swarm.release_reader();
  }
  send_within_credit();
}

void SwarmNode::handle(const Credit& more) {
  credit.add(more.stream, more.bytes);
  if (to_send == 0) return;
  send_within_credit();
  if (attempt == 0) return swarm.fail_when_still();
  if (to_send > 0) return;
  for (std::uint32_t local = 0; local < kRanks; ++local)
    link->send(exit_of(local, 0, 0));
  start(swarm.loop, answer(this, AttemptEnded{attempt, 0, {}}));
}

void SwarmNode::handle(const Stop& stop) {
  if (stop.attempt != attempt || to_send == 0) return;
  for (std::uint32_t local = 0; local < kRanks; ++local) {
    WorkerExited exited = exit_of(local, 0, 15);
    exited.after_stop = true;
    link->send(std::move(exited));
  }
  send_what_pipes_hold();
  start(swarm.loop, answer(this, AttemptEnded{attempt, 0, {}}));
}

void SwarmNode::handle(const Revoke& revoke) {
  if (revoke.attempt != attempt || to_send == 0) return;
  send_what_pipes_hold();
  AttemptRevoked revoked{attempt, {{0, true, 7}}};
  if (index + 1 < swarm.nodes.size()) revoked.survivors.push_back({1, true, 7});
  start(swarm.loop, answer(this, std::move(revoked)));
}

void SwarmNode::handle(const Leave&) {
  swarm.still.cancel();
  swarm.give_up.cancel();
  errors.close();
  link->close();
}

Awaitable<Swarm::Opened> Swarm::open(remote::Host host, std::vector<std::string>, remote::Deadline) {
  SwarmNode& node = *nodes.at(std::stoul(host.name.substr(3)));
  if (node.link) co_return Error{ErrorCode::kUnreachable, "it was lost", 0};
  Socket link(loop);
  Socket errors(loop);
  connect(link, node.socket);
  connect(errors, node.errors);
  const std::string hello = remote::hello_line({static_cast<int>(kProtocolVersion), std::string(version())});
  asio::write(node.socket, asio::buffer(hello));
  node.link = std::make_unique<Connection>(loop.get_executor(), stream_over(node.socket));
  start(loop, SwarmNode::write(&node));
  start(loop, SwarmNode::serve(&node));
  node.link->send(node.hello());
  co_return std::unique_ptr<remote::Channel>(
      std::make_unique<SimChannel>(std::move(link), std::move(errors)));
}

void Swarm::fail_when_still() {
  if (nodes.back()->to_send == 0) return;  // its ranks do not run yet
  still.expires_after(kStill);
  still.async_wait([this](const error_code& cancelled) {
    if (cancelled || std::exchange(failed, true)) return;
    nodes.back()->link->send(nodes.back()->exit_of(kRanks - 1, 1, 0));
  });
}

/// Makes this process's stdout a pipe and its stderr a file until destruction.
class Outputs {
 public:
  explicit Outputs(const fs::path& errors) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    reader_.reset(ends[0]);
    const UniqueFd writer(ends[1]);
    const UniqueFd file(::open(errors.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    for (const int fd : {1, 2})
      before_[static_cast<std::size_t>(fd - 1)].reset(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    ::dup2(writer.get(), 1);
    ::dup2(file.get(), 2);
  }
  void restore() const {
    for (const int fd : {1, 2})
      ::dup2(before_[static_cast<std::size_t>(fd - 1)].get(), fd);
  }
  /// Reads to the end and returns the number of lines.
  std::size_t count_lines() const {
    std::string bytes(64u << 10, '\0');
    std::size_t lines = 0;
    for (ssize_t size = 0; (size = ::read(reader_.get(), bytes.data(), bytes.size())) > 0;)
      lines += static_cast<std::size_t>(std::count(bytes.begin(), bytes.begin() + size, '\n'));
    return lines;
  }

 private:
  UniqueFd reader_;
  std::array<UniqueFd, 2> before_;
};

JobSpec spec_of(std::size_t nodes, SwarmEnd end, const fs::path& directory) {
  JobSpec spec;
  spec.job_id = "blocked";
  spec.job_dir = directory / "job";
  spec.command.argv = {"worker"};
  spec.nproc = {rendezvous::ProcsRule::kNumber, kRanks};
  spec.max_restarts = end == SwarmEnd::kStop ? 0 : 1;
  spec.restart_backoff = milliseconds(1);
  spec.start_timeout = seconds(20);
  for (std::size_t i = 0; i < nodes; ++i)
    spec.hosts.emplace_back().name = "sim" + std::to_string(i);
  return spec;
}

struct Job {
  int code = 0;
  std::string said;
  std::size_t sent = 0;
  std::size_t stored = 0;
  std::size_t lines = 0;  ///< number of displayed lines
  std::vector<std::int32_t> sources;
  bool too_much_credit = false;
};

Job run(std::size_t nodes, SwarmEnd end) {
  std::string name = (fs::temp_directory_path() / "ddp-blocked-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  const fs::path directory = name;
  const JobSpec spec = spec_of(nodes, end, directory);
  Job job;
  {
    Outputs outputs(directory / "stderr");
    asio::io_context loop(1);  // not run after the master is gone, as in ddplaunch
    Swarm swarm(loop, nodes, end);
    std::thread reader([&] {
      swarm.reader.get_future().wait();
      job.lines = outputs.count_lines();
    });
    {
      Master::Options options;
      options.start.argv = {"/nowhere/ddplaunchd", "--stdio"};
      options.start.expected = remote::AgentHello{static_cast<int>(kProtocolVersion), std::string(version())};
      Master master(loop, spec, std::move(options), swarm, swarm, std::move(*JobDir::create(spec)));
      job.code = master.run();
    }
    swarm.release_reader();
    outputs.restore();
    reader.join();
    job.sent = swarm.sent();
    job.sources = swarm.sources;
    job.too_much_credit = swarm.too_much_credit;
  }
  std::ifstream file(directory / "stderr");
  job.said.assign(std::istreambuf_iterator<char>(file), {});
  for (const auto& entry : fs::recursive_directory_iterator(directory / "job")) {
    if (entry.path().extension() == ".stdout") job.stored += entry.file_size();
  }
  fs::remove_all(directory);
  return job;
}

TEST_CASE(
    "output beyond the credit loses no node and no byte, for any end of the job and any number of nodes") {
  for (const SwarmEnd end : {SwarmEnd::kStop, SwarmEnd::kRevoke, SwarmEnd::kRestart}) {
    for (const std::size_t nodes : kNodes) {
      CAPTURE(static_cast<int>(end), nodes);
      const Job job = run(nodes, end);
      CAPTURE(job.said);
      CHECK(job.code == (end == SwarmEnd::kStop ? 1 : 0));
      CHECK(job.sent > nodes * kRanks * kPipe);
      CHECK(job.stored == job.sent);
      CHECK(job.lines == job.sent / kLine);
      CHECK_FALSE(job.too_much_credit);
      // In-memory recovery: all ranks take the state from a survivor.
      const std::vector<std::int32_t> sources(end == SwarmEnd::kStop ? 0 : nodes,
                                              end == SwarmEnd::kRevoke ? 0 : -1);
      CHECK(job.sources == sources);
    }
  }
}

}  // namespace
}  // namespace ddp::launcher
