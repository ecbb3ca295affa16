#include "launcher/master.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
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
constexpr milliseconds kForEver = std::chrono::hours(24 * 365);
/// For the reader of our last lines.
constexpr seconds kLastWords{2};
constexpr seconds kPingEvery{1};
/// From the end of a link to the end of what carried it.
constexpr seconds kEndTime{2};
/// For the agents' answer that they know of our sleep.
constexpr milliseconds kAsleepTime{500};
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
  Node(std::size_t number, asio::any_io_executor executor, const std::string& host)
      : index(number), end_timer(executor), error_lines(host + ": ") {}
  std::size_t index;
  std::unique_ptr<remote::Channel> channel;
  std::unique_ptr<rendezvous::Connection> link;
  remote::TailLines errors;
  ClockOffset clock;
  nanoseconds pinged{0};
  std::uint64_t ping = 0;
  std::uint32_t taken = 0;  ///< output bytes whose credit was not given back yet
  bool live = false;        ///< the link is up
  bool gone = false;        ///< its end was reported
  bool asleep = false;      ///< it knows that we are about to be stopped
  asio::steady_timer end_timer;
  LineAssembler error_lines;
};

Master::Master(asio::io_context& loop, const JobSpec& spec, Options options, remote::RemoteShell& remote,
               remote::RemoteShell& local, JobDir job_dir)
    : loop_(loop),
      spec_(spec),
      options_(std::move(options)),
      files_(
          loop.get_executor(), std::move(job_dir),
          [this](const Error& error) {
            say("warning: while this lasts output is shown, but not kept in files: " + error.text);
          },
          [this] { give_all_credit(); }),
      console_(loop.get_executor(), [this] { give_all_credit(); }),
      output_(files_, console_, spec.output.label_on ? spec.output.label : std::string(),
              [this](std::uint32_t rank) { return source_of(rank); }),
      fan_out_(loop.get_executor(), remote, local,
               {{options_.agent_path, "--stdio"},
                spec.ssh_localhost,
                Clock::now() + spec.start_timeout,
                options_.expected}),
      supervisor_(spec),
      deadline_(loop),
      ping_timer_(loop),
      sleep_timer_(loop),
      signals_(loop),
      awake_since_(Clock::now()),
      stdin_(loop),
      stdin_room_(loop, Clock::time_point::max()) {
  for (std::size_t i = 0; i < supervisor_.node_count(); ++i)
    nodes_.push_back(std::make_unique<Node>(i, loop.get_executor(), spec.hosts[i].name));
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
  console_.flush(2, kLastWords);  // the cause is told even where nobody takes the output
  // From here on a signal ends us at once: nothing runs any more that would have to be stopped.
  signals_.clear();
  const bool hurry = supervisor_.end().stop_signal != 0;
  if (!console_.flush(1, hurry ? milliseconds(kLastWords) : kForEver)) {
    console_.write(2, "ddplaunch: output that nobody reads was not shown; the files have it\n");
    console_.flush(2, kLastWords);
    console_.abandon();
  }
  warn_of_lost_output();
  console_.close();
  files_.close();
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
  sleep_timer_.cancel();
  deadline_.cancel();
  for (const auto& node : nodes_)
    node->end_timer.cancel();
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
  std::string lines;
  node.error_lines.add(outcome->errors, lines);
  console_.write(2, lines);
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
  // The channel's end says more, but it may never come: a host can die between the two.
  const Error plain = good.error();
  const auto give_up = [master, node, plain](const error_code& cancelled) {
    if (!cancelled) master->node_gone(*node, plain);
  };
  node->end_timer.expires_after(kEndTime);
  node->end_timer.async_wait(give_up);
  Error why = co_await master->explain_end(*node, plain);
  master->node_gone(*node, std::move(why));
}

void Master::node_gone(Node& node, Error why) {
  node.end_timer.cancel();
  if (!std::exchange(node.gone, true)) step(Supervisor::NodeGone{node.index, std::move(why)});
}

/// The link says that it broke; the channel knows why.
Awaitable<Error> Master::explain_end(Node& node, Error error) {
  if (error.code != ErrorCode::kLinkLost) co_return error;
  const remote::ChannelEnd end = co_await node.channel->end();
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
  std::string lines;
  for (bool open = true; open;) {
    const auto [error, count] =
        co_await node->channel->errors().async_read_some(asio::buffer(buffer), kUseTuple);
    open = !error && count > 0;
    lines.clear();
    if (open) {
      node->errors.feed({buffer.data(), count});
      node->error_lines.add({buffer.data(), count}, lines);
    } else {
      node->error_lines.finish(lines);
    }
    master->console_.write(2, lines);
  }
}

Result<> Master::take_messages(Node& node) {
  for (;;) {
    auto message = node.link->next();
    if (!message) return message.error();
    if (!*message) return {};
    if (auto taken = take(node, **message); !taken) return taken.error();
  }
}

Result<> Master::take(Node& node, const rendezvous::Message& message) {
  if (const auto* output = std::get_if<rendezvous::Output>(&message)) {
    if (!supervisor_.runs(node.index, output->rank) || (output->stream != 1 && output->stream != 2)) {
      return Error{ErrorCode::kProtocol, "it sends output of a rank that it was not given", 0};
    }
    node.taken += static_cast<std::uint32_t>(output->data.size());
    if (output->attempt == supervisor_.attempt()) {
      output_.take(output->attempt, output->rank, output->stream, output->data);
    }
  } else if (const auto* pong = std::get_if<rendezvous::Pong>(&message)) {
    if (pong->sequence == rendezvous::kAsleep) {
      node.asleep = true;
      stop_if_all_asleep();
    } else if (pong->sequence == node.ping) {
      node.clock.sample(node.pinged, now(), nanoseconds(pong->clock_ns));
    }
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
    step(Supervisor::FromNode{node.index, message, happened(node, message), node.clock.error()});
  }
  return {};
}

Supervisor::Time Master::happened(const Node& node, const rendezvous::Message& message) const {
  if (const auto* exited = std::get_if<rendezvous::WorkerExited>(&message)) {
    return std::min(now(), node.clock.to_ours(nanoseconds(exited->clock_ns)));
  }
  return now();
}

void Master::give_all_credit() {
  for (const auto& node : nodes_)
    give_credit(*node);
}

void Master::give_credit(Node& node) {
  // Whoever is full asks again when it has drained.
  if (!node.live || node.taken == 0 || console_.full() || files_.full()) return;
  // In batches, but never so late that the agent runs dry: its window is a few batches wide.
  if (node.taken < kCreditBatch) return;
  node.link->send(rendezvous::Credit{1, std::exchange(node.taken, 0)});
}

Awaitable<> Master::ping_nodes() {
  while (!supervisor_.finished()) {
    ping_timer_.expires_after(kPingEvery);
    const auto due = ping_timer_.expiry();
    co_await ping_timer_.async_wait(kUseTuple);
    if (Clock::now() - due > kOverslept) awake_since_ = Clock::now();
    warn_of_lost_output();
    if (falling_asleep_) continue;  // a ping would wake the agents again
    for (const auto& node : nodes_) {
      if (!node->live) continue;
      node->ping = ++ping_sequence_;
      node->pinged = now();
      node->link->send(rendezvous::Ping{node->ping});
      const auto silent = Clock::now() - std::max(node->link->last_heard(), awake_since_);
      if (silent <= spec_.node_timeout) continue;
      node->live = false;
      node->link->close();
      node_gone(*node, Error{ErrorCode::kLinkLost,
                             "nothing was heard of it for " +
                                 std::to_string(std::chrono::duration_cast<seconds>(silent).count()) +
                                 " s (--node-timeout); the machine, its network, or the agent hangs",
                             0});
    }
  }
}

// ---- the user

Awaitable<> Master::watch_signals() {
  for (;;) {
    const auto [error, number] = co_await signals_.async_wait(kUseTuple);
    if (error) co_return;
    if (number == SIGTSTP)
      fall_asleep();
    else
      step(Supervisor::UserSignal{number});
  }
}

/// Ctrl-Z stops us and not the job: the agents are told, so that they bear our silence. We stop when all have
/// answered, for the threads that carry the words to them stop with us.
void Master::fall_asleep() {
  if (std::exchange(falling_asleep_, true)) return;
  say("stopped; the workers go on (fg or SIGCONT to see their output again)");
  for (const auto& node : nodes_) {
    node->asleep = !node->live;
    if (node->live) node->link->send(rendezvous::MasterAsleep{});
  }
  sleep_timer_.expires_after(kAsleepTime);
  sleep_timer_.async_wait([this](const error_code& cancelled) {
    if (!cancelled) stop_until_continued();
  });
  stop_if_all_asleep();
}

void Master::stop_if_all_asleep() {
  if (!falling_asleep_) return;
  for (const auto& node : nodes_) {
    if (node->live && !node->asleep) return;
  }
  stop_until_continued();
}

void Master::stop_until_continued() {
  if (!std::exchange(falling_asleep_, false)) return;
  sleep_timer_.cancel();
  ::raise(SIGSTOP);
  awake_since_ = Clock::now();
}

/// Our stdin becomes rank 0's. Started when the workers run.
Awaitable<> Master::feed_stdin() {
  // A terminal may be read by the foreground job only; in the background a read would stop us.
  if (::isatty(0) && ::tcgetpgrp(0) != ::getpgrp()) co_return;
  struct stat kind {};
  // epoll takes neither regular files nor /dev/null, and their reads do not wait.
  const bool waits =
      ::fstat(0, &kind) == 0 && (S_ISFIFO(kind.st_mode) || S_ISSOCK(kind.st_mode) || ::isatty(0));
  // An open file of our own, for the loop makes it non-blocking: the one at 0 is shared with the shell and
  // others.
  UniqueFd own(::open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!own) own.reset(::fcntl(0, F_DUPFD_CLOEXEC, 3));  // a socket, or somebody else's terminal
  const int in = own.get();
  if (waits) stdin_.assign(own.release());
  rendezvous::Connection& link = *nodes_[supervisor_.node_of_rank(0)]->link;
  std::array<char, 16384> buffer;
  for (ssize_t count = 1; count > 0 && !link.closed();) {
    while (stdin_window_ == 0 && !link.closed())
      co_await stdin_room_.async_wait(kUseTuple);
    if (waits) co_await stdin_.async_wait(asio::posix::descriptor_base::wait_read, kUseTuple);
    if (link.closed()) co_return;
    count = ::read(in, buffer.data(), std::min(buffer.size(), stdin_window_));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) {
      count = 1;  // taken by somebody who shares it: wait again
      continue;
    }
    if (count < 0) say("warning: " + system_error(errno, "standard input").text + "; rank 0 sees its end");
    const auto size = static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    stdin_window_ -= size;
    link.send(rendezvous::Stdin{{buffer.data(), size}});
  }
}

/// Said when it happens, and at the end at the latest.
void Master::warn_of_lost_output() {
  const int error = console_.broken(1);
  if (error == 0 || std::exchange(output_lost_, true)) return;
  say("warning: " + system_error(error, "standard output").text + "; the job's output is in the files only");
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
