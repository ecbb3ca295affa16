#include "launcher/master.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <utility>

#include "launcher/exit_report.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr milliseconds kLastTasks{500};
constexpr seconds kPingEvery{1};
/// A ping that comes this late means that we were stopped ourselves.
constexpr seconds kOverslept{3};
/// Output taken from a node before its credit is given back in one message.
constexpr std::size_t kCreditBatch = 64u << 10;

nanoseconds now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

/// nohup and shells' background jobs ignore signals on purpose; a handler of ours would undo that.
bool inherited_ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

struct Master::Node {
  explicit Node(std::size_t number) : index(number) {}
  std::size_t index;
  std::unique_ptr<remote::Channel> channel;
  std::unique_ptr<rendezvous::Connection> link;
  remote::TailLines errors;
  ClockOffset clock;
  nanoseconds pinged{0};
  std::uint64_t ping = 0;
  std::uint32_t taken = 0;  ///< output bytes whose credit was not given back yet
  bool live = false;        ///< the link is up
};

Master::Master(asio::io_context& loop, const JobSpec& spec, Options options, remote::RemoteShell& remote,
               remote::RemoteShell& local, JobDir job_dir)
    : loop_(loop),
      spec_(spec),
      options_(std::move(options)),
      console_(loop.get_executor(),
               [this] {
                 for (const auto& node : nodes_)
                   give_credit(*node);
               }),
      output_(
          std::move(job_dir), console_, spec.label_on ? spec.label : std::string(),
          [this](std::uint32_t rank) { return source_of(rank); },
          [this](const Error& error) {
            say("warning: output is not kept in files any more, only shown: " + error.text);
          }),
      fan_out_(loop.get_executor(), remote, local,
               {{options_.agent_path, "--stdio"},
                spec.ssh_localhost,
                Clock::now() + spec.start_timeout,
                options_.expected}),
      supervisor_(spec),
      deadline_(loop),
      ping_timer_(loop),
      signals_(loop),
      awake_since_(Clock::now()),
      stdin_(loop),
      stdin_room_(loop, Clock::time_point::max()) {
  for (std::size_t i = 0; i < supervisor_.node_count(); ++i)
    nodes_.push_back(std::make_unique<Node>(i));
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGTSTP}) {
    if (!inherited_ignored(number)) signals_.add(number);
  }
  signals_.add(SIGUSR1);
  signals_.add(SIGUSR2);
}

Master::~Master() = default;

int Master::run() {
  carry_out(supervisor_.start(now()));
  start_task(start_agents());
  start_task(watch_signals());
  start_task(ping_nodes());
  loop_.run();  // until the supervisor has finished; carry_out stops it
  end_tasks();
  output_.finish_all();
  const int code = report();
  console_.close();
  return code;
}

/// Every task sees that its work is over and ends. One that waits for a dead connection is not waited for.
void Master::end_tasks() {
  fan_out_.cancel();
  for (const auto& node : nodes_) {
    if (node->link) node->link->close();
  }
  error_code ignored;
  signals_.cancel(ignored);
  stdin_.cancel(ignored);
  stdin_room_.cancel();
  ping_timer_.cancel();
  deadline_.cancel();
  loop_.restart();
  loop_.run_for(kLastTasks);
}

void Master::start_task(Awaitable<> task) {
  asio::co_spawn(loop_, std::move(task), [](const std::exception_ptr& broken) {
    if (broken) std::terminate();  // no exception crosses an await here: this is a mistake of ours
  });
}

// ---- decisions

void Master::step(const Supervisor::Event& event) {
  carry_out(supervisor_.step(event, now()));
}

void Master::carry_out(Supervisor::Actions actions) {
  for (Supervisor::Action& action : actions) {
    if (auto* message = std::get_if<Supervisor::ToNode>(&action)) {
      if (nodes_[message->node]->live) nodes_[message->node]->link->send(message->message);
    } else if (auto* drop = std::get_if<Supervisor::Disconnect>(&action)) {
      Node& node = *nodes_[drop->node];
      if (node.link)
        node.link->close();
      else
        fan_out_.cancel();
    } else if (auto* words = std::get_if<Supervisor::Say>(&action)) {
      say(words->text);
    } else if (auto* step_done = std::get_if<Supervisor::Detail>(&action)) {
      if (spec_.verbose) say(step_done->text);
    }
  }
  if (supervisor_.state() == Supervisor::State::kRunning && spec_.stdin_to_rank0 &&
      !std::exchange(feeding_, true)) {
    start_task(feed_stdin());
  }
  if (supervisor_.finished()) loop_.stop();
  arm_deadline();
}

void Master::arm_deadline() {
  const auto deadline = supervisor_.deadline();
  if (!deadline) {
    deadline_.cancel();
    return;
  }
  deadline_.expires_at(Clock::time_point(*deadline));
  deadline_.async_wait([this](const error_code& cancelled) {
    if (!cancelled) step(Supervisor::Tick{});
  });
}

// ---- nodes

Awaitable<> Master::start_agents() {
  std::vector<remote::Host> hosts(spec_.hosts.begin(),
                                  spec_.hosts.begin() + static_cast<std::ptrdiff_t>(nodes_.size()));
  remote::FanOut::Report report = [this](std::size_t host, Result<remote::StartedAgent> outcome) {
    on_started(host, std::move(outcome));
  };
  co_await fan_out_.run(std::move(hosts), std::move(report));
}

void Master::on_started(std::size_t index, Result<remote::StartedAgent> outcome) {
  if (!outcome) return step(Supervisor::NodeFailed{index, outcome.error()});
  Node& node = *nodes_[index];
  node.channel = std::move(outcome->channel);
  node.link = std::make_unique<rendezvous::Connection>(
      loop_.get_executor(), stream_over(node.channel->link()), outcome->first_bytes);
  node.live = true;
  for (const std::string& line : outcome->noise)
    say_host(node, line);
  node.errors.feed(outcome->errors);
  start_task(node.link->write_all());
  start_task(read_errors(this, &node));
  start_task(read_link(this, &node));
}

Awaitable<> Master::read_link(Master* master, Node* node) {
  Result<> good;
  while (good) {
    good = master->take_messages(*node);
    master->give_credit(*node);
    if (good) good = co_await node->link->read_more();
  }
  node->live = false;
  node->link->close();
  Error why = co_await master->explain_end(*node, good.error());
  master->step(Supervisor::NodeGone{node->index, std::move(why)});
}

/// The link says that it broke; the channel knows why.
Awaitable<Error> Master::explain_end(Node& node, Error error) {
  const remote::ChannelEnd end = co_await node.channel->end();
  if (error.code != ErrorCode::kLinkLost) co_return error;
  if (end.broken) {
    error.text = "the connection was lost: " + end.broken->text;
  } else if (end.status) {
    error.text = "its agent ended without a word (exit status " + std::to_string(*end.status) + ")";
  }
  if (!node.errors.empty()) error.text += "; its last words:" + node.errors.text();
  co_return error;
}

Awaitable<> Master::read_errors(Master* master, Node* node) {
  std::array<char, 4096> buffer;
  for (;;) {
    const auto [error, count] =
        co_await node->channel->errors().async_read_some(asio::buffer(buffer), kUseTuple);
    if (error || count == 0) break;
    node->errors.feed({buffer.data(), count});
    master->console_.write(2, {buffer.data(), count});
  }
}

Result<> Master::take_messages(Node& node) {
  for (;;) {
    auto message = node.link->next();
    if (!message) return message.error();
    if (!*message) return {};
    take(node, **message);
  }
}

void Master::take(Node& node, const rendezvous::Message& message) {
  if (const auto* output = std::get_if<rendezvous::Output>(&message)) {
    node.taken += static_cast<std::uint32_t>(output->data.size());
    output_.take(output->attempt, output->rank, output->stream, output->data);
  } else if (const auto* pong = std::get_if<rendezvous::Pong>(&message)) {
    if (pong->sequence == node.ping) node.clock.sample(node.pinged, now(), nanoseconds(pong->clock_ns));
  } else if (const auto* notice = std::get_if<rendezvous::Notice>(&message)) {
    if (!spec_.quiet) say(spec_.hosts[node.index].name + ": " + notice->text);
  } else if (const auto* stdin_taken = std::get_if<rendezvous::StdinTaken>(&message)) {
    stdin_window_ += stdin_taken->bytes;
    stdin_room_.cancel();
  } else if (const auto* hello = std::get_if<rendezvous::Hello>(&message)) {
    node.clock.guess(now(), nanoseconds(hello->clock_ns));
    node.ping = ++ping_sequence_;
    node.pinged = now();
    node.link->send(rendezvous::Ping{node.ping});
    step(Supervisor::NodeUp{node.index, *hello, node.channel->address()});
  } else {
    step(Supervisor::FromNode{node.index, message, happened(node, message)});
  }
}

Supervisor::Time Master::happened(const Node& node, const rendezvous::Message& message) const {
  if (const auto* exited = std::get_if<rendezvous::WorkerExited>(&message)) {
    return node.clock.to_ours(nanoseconds(exited->clock_ns));
  }
  return now();
}

void Master::give_credit(Node& node) {
  if (!node.live || node.taken == 0 || console_.full())
    return;  // a full console asks again when it has drained
  // In batches, but never so late that the agent runs dry: its window is a few batches wide.
  if (node.taken < kCreditBatch) return;
  node.link->send(rendezvous::Credit{std::exchange(node.taken, 0)});
}

Awaitable<> Master::ping_nodes() {
  while (!supervisor_.finished()) {
    ping_timer_.expires_after(kPingEvery);
    const auto due = ping_timer_.expiry();
    co_await ping_timer_.async_wait(kUseTuple);
    if (Clock::now() - due > kOverslept) awake_since_ = Clock::now();
    for (const auto& node : nodes_) {
      if (!node->live) continue;
      node->ping = ++ping_sequence_;
      node->pinged = now();
      node->link->send(rendezvous::Ping{node->ping});
      const auto silent = Clock::now() - std::max(node->link->last_heard(), awake_since_);
      if (silent <= spec_.node_timeout) continue;
      node->live = false;
      node->link->close();
      step(Supervisor::NodeGone{
          node->index, Error{ErrorCode::kLinkLost,
                             "nothing was heard of it for " +
                                 std::to_string(std::chrono::duration_cast<seconds>(silent).count()) +
                                 " s (--node-timeout); the machine, its network, or the agent hangs",
                             0}});
    }
  }
}

// ---- the user

Awaitable<> Master::watch_signals() {
  for (;;) {
    const auto [error, number] = co_await signals_.async_wait(kUseTuple);
    if (error) co_return;
    if (number == SIGTSTP)
      sleep_until_continued();
    else
      step(Supervisor::UserSignal{number});
  }
}

/// Ctrl-Z stops us and not the job: the agents are told, so that they bear our silence.
void Master::sleep_until_continued() {
  say("stopped; the workers go on (fg or SIGCONT to see their output again)");
  for (const auto& node : nodes_) {
    if (node->live) node->link->send(rendezvous::MasterAsleep{});
  }
  // The writers run when the loop does, so give them one turn before we stop.
  asio::post(loop_, [this] {
    asio::post(loop_, [this] {
      ::raise(SIGSTOP);
      awake_since_ = Clock::now();
    });
  });
}

/// Our stdin becomes rank 0's. Started when the workers run.
Awaitable<> Master::feed_stdin() {
  // A terminal may be read by the foreground job only; in the background a read would stop us.
  if (::isatty(0) && ::tcgetpgrp(0) != ::getpgrp()) co_return;
  struct stat kind {};
  // epoll takes neither regular files nor /dev/null, and their reads do not wait.
  const bool waits =
      ::fstat(0, &kind) == 0 && (S_ISFIFO(kind.st_mode) || S_ISSOCK(kind.st_mode) || ::isatty(0));
  if (waits) stdin_.assign(::fcntl(0, F_DUPFD_CLOEXEC, 3));
  rendezvous::Connection& link = *nodes_[supervisor_.node_of_rank(0)]->link;
  std::array<char, 16384> buffer;
  for (ssize_t count = 1; count > 0 && !link.closed();) {
    while (stdin_window_ == 0)
      co_await stdin_room_.async_wait(kUseTuple);
    if (waits) co_await stdin_.async_wait(asio::posix::descriptor_base::wait_read, kUseTuple);
    if (link.closed()) co_return;
    count = ::read(0, buffer.data(), std::min(buffer.size(), stdin_window_));
    const auto size = static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    stdin_window_ -= size;
    link.send(rendezvous::Stdin{{buffer.data(), size}});
  }
}

void Master::say(std::string_view text) {
  console_.write(2, "ddplaunch: " + std::string(text) + "\n");
}

void Master::say_host(const Node& node, std::string_view line) {
  console_.write(2, spec_.hosts[node.index].name + ": " + std::string(line) + "\n");
}

LineSource Master::source_of(std::uint32_t rank) const {
  const std::size_t index = supervisor_.node_of_rank(rank);
  const rendezvous::NodeRanks& ranks = supervisor_.plan().nodes[index];
  LineSource source;
  source.host = spec_.hosts[index].name;
  source.rank = static_cast<int>(rank);
  source.local_rank = source.rank - ranks.first_rank;
  source.node_rank = ranks.node_rank;
  return source;
}

int Master::report() {
  JobEnd end = supervisor_.end();
  for (Failure& failure : end.failures) {
    if (failure.kind == Failure::Kind::kNode) continue;
    failure.last_stderr = output_.last_stderr(static_cast<std::uint32_t>(failure.rank));
    failure.stderr_path = output_.stderr_file(0, static_cast<std::uint32_t>(failure.rank));
  }
  const ExitReport report = make_exit_report(end);
  console_.write(2, report.text);
  return report.exit_code;
}

}  // namespace ddp::launcher
