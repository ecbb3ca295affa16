#include "launcher/master.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <numeric>
#include <utility>

#include "base/version.h"
#include "launcher/clean_text.h"
#include "launcher/exit_report.h"
#include "launcher/output_credit.h"
#include "launcher/report_file.h"
#include "launcher/user_signals.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

/// A piece of output so large goes to the rank's file from the memory that it was read into. Small ones are
/// copied: each would hold on to a whole block.
constexpr std::size_t kWorthKeeping = 16u << 10;
constexpr milliseconds kLastTasks{500};
constexpr milliseconds kForEver = std::chrono::hours(24 * 365);
/// For the reader of our last lines.
constexpr seconds kLastWords{2};
/// At most; short timeouts want more signs of life.
constexpr milliseconds kPingEvery{1'000};
constexpr int kPingsInTimeout = 6;
/// Of a large job the first pings would be most of what the master has to do at its start.
constexpr std::size_t kManyNodes = 256;
constexpr int kFirstPingsOfMany = 2;
/// From the end of a link to the end of what carried it.
constexpr seconds kEndTime{2};
/// For the agents' answer that they know of our sleep.
constexpr milliseconds kAsleepTime{500};

nanoseconds now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}  // namespace

Master::Master(asio::io_context& loop, const JobSpec& spec, Options options, remote::RemoteShell& remote,
               remote::RemoteShell& local, JobDir job_dir)
    : loop_(loop),
      spec_(spec),
      options_(std::move(options)),
      began_(now()),
      files_(
          loop.get_executor(), std::move(job_dir), [this](const std::string& words) { say(words); },
          [this] { give_all_credit(); }),
      log_(files_, spec),
      console_(
          loop.get_executor(), [this] { give_all_credit(); }, spec.output.console),
      output_(
          files_, console_, spec.output, [this](std::uint32_t rank) { return source_of(rank); },
          [this] { return static_cast<std::uint32_t>(supervisor_.world().world_size); }),
      remote_(remote),
      local_(local),
      supervisor_(spec),
      deadline_(loop),
      ping_timer_(loop),
      sleep_timer_(loop),
      signals_(loop),
      stdin_(loop.get_executor()) {
  for (std::size_t i = 0; i < supervisor_.node_count(); ++i)
    nodes_.push_back(make_link(i, 1));
  add_signals(signals_, {SIGINT, SIGTERM, SIGHUP, SIGTSTP});
  signals_.add(SIGUSR1);
  signals_.add(SIGUSR2);
}

Master::~Master() = default;

int Master::run() {
  carry_out(supervisor_.start(now()));
  std::vector<std::size_t> all(nodes_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  start_task(start_agents(std::move(all)));
  start_task(watch_signals());
  start_task(ping_nodes());
  loop_.run();  // until the supervisor has finished; carry_out stops it
  end_tasks();
  output_.finish_all();
  if (const std::string lost = files_.settle(kLastWords); !lost.empty()) say(lost);
  const int code = report();
  console_.flush(2, kLastWords);  // the cause is told even where nobody takes the output
  end_at_signals_with(code);
  const milliseconds patience = supervisor_.end().stop_signal != 0 ? milliseconds(kLastWords) : kForEver;
  const bool shown = console_.flush(1, patience);
  if (!shown) console_.write(2, "ddplaunch: output that nobody reads was not shown; the files have it\n");
  warn_of_lost_output();
  const bool told = console_.flush(2, patience);
  if (shown && told) {
    console_.close();
  } else {
    console_.abandon();
  }
  files_.close();
  keep_signals_waiting();
  return code;
}

/// Every task sees that its work is over and ends. One that waits for a dead connection is not waited for.
void Master::end_tasks() {
  cancel_starts();
  for (const auto& node : nodes_)
    node->close();
  output_.rest();
  error_code ignored;
  signals_.cancel(ignored);
  stdin_.stop();
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

void Master::step(const job::Event& event) {
  carry_out(supervisor_.step(event, now()));
}

void Master::carry_out(job::Actions actions) {
  for (job::Action& action : actions) {
    if (auto* message = std::get_if<job::ToNode>(&action)) {
      nodes_[message->node]->send(message->message);
    } else if (auto* drop = std::get_if<job::Disconnect>(&action)) {
      NodeLink& node = *nodes_[drop->node];
      if (node.opened())
        node.close();
      else
        cancel_starts();  // only at the end of the job: nobody on the way is wanted any more
    } else if (const auto* again = std::get_if<job::Recall>(&action)) {
      recall(again->node);
    } else if (auto* words = std::get_if<job::Say>(&action)) {
      say(words->text);
    } else if (auto* step_done = std::get_if<job::Detail>(&action)) {
      spec_.verbose ? say(step_done->text) : log_.step(step_done->text);
    } else if (auto* dump = std::get_if<job::Dump>(&action)) {
      files_.append({dump->attempt, dump->rank, 0, kHangText}, dump->text);
    }
  }
  if (supervisor_.state() == Supervisor::State::kRunning && spec_.stdin_to_rank0) feed_stdin();
  if (supervisor_.finished()) loop_.stop();
  arm_deadline();
}

/// The first rank 0's node has our stdin for the whole job; to a rank 0 elsewhere it has ended.
void Master::feed_stdin() {
  const Link link = nodes_[supervisor_.node_of_rank(0)];
  if (link == stdin_link_ || link == stdin_ended_link_) return;
  if (stdin_link_) {
    stdin_ended_link_ = link;
    return link->send(rendezvous::Stdin{});
  }
  stdin_link_ = link;
  start_task(stdin_.run(link->connection(), [this](const std::string& text) { say(text); }));
}

void Master::arm_deadline() {
  const auto deadline = supervisor_.deadline();
  if (!deadline) {
    deadline_.cancel();
    return;
  }
  deadline_.expires_at(Clock::time_point(*deadline));
  deadline_.async_wait([this](const error_code& cancelled) {
    if (!cancelled) step(job::Tick{});
  });
}

// ---- nodes

Master::Link Master::make_link(std::size_t index, std::uint32_t life) {
  return std::make_shared<NodeLink>(
      index, loop_.get_executor(), supervisor_.name(index), credit_window(supervisor_.node_count()), life,
      supervisor_.node_count() > kManyNodes ? kFirstPingsOfMany : NodeLink::kFirstPings);
}

Awaitable<> Master::start_agents(std::vector<std::size_t> nodes) {
  remote::FanOutOptions options{{options_.agent_path, "--stdio"},
                                spec_.ssh_localhost,
                                Clock::now() + spec_.start_timeout,
                                options_.expected,
                                options_.stock,
                                spec_.launcher == LauncherKind::kLocal};
  auto start = std::make_shared<remote::FanOut>(loop_.get_executor(), remote_, local_, std::move(options));
  starts_.push_back(start);
  std::vector<remote::Host> hosts;
  for (const std::size_t node : nodes)
    hosts.push_back(spec_.hosts[node]);
  remote::FanOut::Report report = [this, nodes](std::size_t host, Result<remote::StartedAgent> outcome) {
    on_started(nodes[host], std::move(outcome));
  };
  co_await start->run(std::move(hosts), std::move(report));
  std::erase(starts_, start);
}

void Master::cancel_starts() {
  const auto starts = starts_;  // each leaves the list as it ends
  for (const auto& start : starts)
    start->cancel();
}

/// Its link has ended, and another one may come.
void Master::recall(std::size_t index) {
  nodes_[index]->close();
  nodes_[index] = make_link(index, nodes_[index]->life + 1);
  start_task(start_agents({index}));
}

void Master::on_started(std::size_t index, Result<remote::StartedAgent> outcome) {
  if (!outcome) return step(job::NodeFailed{index, outcome.error()});
  const Link link = nodes_[index];
  NodeLink& node = *link;
  for (const std::string& line : outcome->noise)
    say_host(node, line);
  if (!outcome->errors.empty()) console_.add(2, node.error_lines(outcome->errors));
  if (outcome->pushed > 0 && spec_.verbose)
    say(supervisor_.name(index) + ": ddplaunchd was put there, " + std::to_string(outcome->pushed) +
        " bytes");
  node.open(std::move(*outcome));
  start_task(node.connection().write_all());
  start_task(read_errors(this, link));
  start_task(read_link(this, link));
}

Awaitable<> Master::read_link(Master* master, Link node) {
  Result<> good;
  while (good) {
    good = master->take_messages(*node);
    master->give_credit(*node);
    if (good) good = co_await node->connection().read_more();
    if (good) master->heard(*node);
  }
  node->close();
  // The channel's end says more, but it may never come: a host can die between the two.
  const Error plain = good.error();
  if (node->greeted) master->step(job::LinkEnded{node->index, plain, node->life});
  const auto give_up = [master, node, plain](const error_code& cancelled) {
    if (!cancelled) master->node_gone(*node, NodeLink::End{plain});
  };
  node->end_timer.expires_after(kEndTime);
  node->end_timer.async_wait(give_up);
  NodeLink::End end = co_await node->explain_end(plain);
  master->node_gone(*node, std::move(end));
}

/// Any byte is a sign of life. Most change nothing.
void Master::heard(const NodeLink& node) {
  job::Actions actions = supervisor_.step(job::NodeHeard{node.index, node.life}, now());
  if (!actions.empty()) carry_out(std::move(actions));
}

void Master::node_gone(NodeLink& node, NodeLink::End end) {
  node.end_timer.cancel();
  if (std::exchange(node.gone, true)) return;
  if (!node.greeted) return step(job::NodeFailed{node.index, std::move(end.why)});
  // What runs in a container may outlive the program that was run in it.
  const bool dead = end.workers_dead && spec_.hosts[node.index].wrapper.empty();
  step(job::NodeGone{node.index, std::move(end.why), dead, node.life});
}

Awaitable<> Master::read_errors(Master* master, Link node) {
  std::array<char, 4096> buffer;
  for (bool open = true; open;) {
    const auto [error, count] =
        co_await node->channel().errors().async_read_some(asio::buffer(buffer), kUseTuple);
    open = !error && count > 0;
    master->console_.add(2, node->error_lines(open ? std::string_view(buffer.data(), count) : ""));
  }
}

Result<> Master::take_messages(NodeLink& node) {
  Result<> good;
  while (good) {
    auto message = node.connection().next();
    if (!message) good = message.error();
    if (!message || !*message) break;
    clean_texts(**message);
    // What workers wrote before something happened stands before what is said of it.
    if (!std::holds_alternative<rendezvous::Output>(**message)) output_.pass_on();
    good = take(node, **message);
  }
  output_.pass_on();
  return good;
}

Result<> Master::take(NodeLink& node, const rendezvous::Message& message) {
  if (auto fine = node.limits.admit(message); !fine) return fine;
  if (const auto* output = std::get_if<rendezvous::Output>(&message)) {
    if (output->attempt == supervisor_.attempt()) {
      if (!supervisor_.runs(node.index, output->rank))
        return Error{ErrorCode::kProtocol, "it sends output of a rank that it was not given", 0};
      output_.take(output->attempt, output->rank, output->stream, output->data,
                   output->clock_ns == 0 ? now() : node.to_ours(output->clock_ns),
                   output->data.size() >= kWorthKeeping ? node.connection().keep() : nullptr);
    }
  } else if (const auto* pong = std::get_if<rendezvous::Pong>(&message)) {
    if (pong->sequence == rendezvous::kAsleep) {
      node.asleep = true;
      stop_if_all_asleep();
    } else if (node.on_pong(*pong) && !falling_asleep_) {  // a ping would wake the agents again
      node.ping(++ping_sequence_);
    }
  } else if (const auto* notice = std::get_if<rendezvous::Notice>(&message)) {
    take_notice(node, *notice);
  } else if (const auto* stdin_taken = std::get_if<rendezvous::StdinTaken>(&message)) {
    if (supervisor_.runs(node.index, 0)) stdin_.taken(stdin_taken->bytes);
  } else if (const auto* hello = std::get_if<rendezvous::Hello>(&message)) {
    node.guess_clock(hello->clock_ns);
    node.ping(++ping_sequence_);
    node.greeted = true;
    step(job::NodeUp{node.index, *hello, node.channel().address(), node.life});
  } else {
    log_.from_node(supervisor_.name(node.index), message);
    const auto* exited = std::get_if<rendezvous::WorkerExited>(&message);
    if (exited != nullptr && (exited->code != 0 || exited->signal != 0)) output_.flush();
    if (std::holds_alternative<rendezvous::AttemptEnded>(message)) keep_last_words(node.index);
    step(job::FromNode{node.index, message, happened(node, message), node.clock_error(), node.life});
  }
  return {};
}

void Master::take_notice(NodeLink& node, const rendezvous::Notice& notice) {
  const NodeLimits::Shown shown = node.limits.notice();
  if (shown == NodeLimits::Shown::kNo) return;
  std::string words = supervisor_.name(node.index) + ": " + notice.text.substr(0, NodeLimits::kNoticeBytes);
  if (shown == NodeLimits::Shown::kLast)
    words = "warning: " + supervisor_.name(node.index) + " says too much; nothing more of it is told";
  const bool wanted = notice.detail ? spec_.verbose : !spec_.quiet;
  wanted ? say(words) : log_.step(words);
}

Supervisor::Time Master::happened(const NodeLink& node, const rendezvous::Message& message) {
  if (const auto* exited = std::get_if<rendezvous::WorkerExited>(&message))
    return node.to_ours(exited->clock_ns);
  if (const auto* started = std::get_if<rendezvous::WorkerStarted>(&message))
    return node.to_ours(started->clock_ns);
  if (const auto* quiet = std::get_if<rendezvous::Quiet>(&message); quiet != nullptr && quiet->quiet)
    return node.to_ours(quiet->since_ns);
  return now();
}

void Master::give_all_credit() {
  for (const auto& node : nodes_)
    give_credit(*node);
}

void Master::give_credit(NodeLink& node) {
  // Whoever is full asks again when it has drained.
  if (!node.live() || files_.full()) return;
  for (const std::uint8_t stream : {std::uint8_t{1}, std::uint8_t{2}}) {
    if (node.limits.taken(stream) < credit_piece(nodes_.size()) || console_.full(stream)) continue;
    node.send(rendezvous::Credit{stream, node.limits.give_back(stream)});
  }
}

Awaitable<> Master::ping_nodes() {
  const milliseconds every =
      std::min(kPingEvery, std::min(spec_.node_timeout, spec_.master_timeout) / kPingsInTimeout);
  while (!supervisor_.finished()) {
    ping_timer_.expires_after(every);
    co_await ping_timer_.async_wait(kUseTuple);
    warn_of_lost_output();
    console_.watch();
    if (falling_asleep_) continue;  // a ping would wake the agents again
    for (const auto& node : nodes_) {
      if (node->live() && node->answered()) node->ping(++ping_sequence_);
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
      step(job::UserSignal{number});
  }
}

/// Ctrl-Z stops us and not the job: the agents are told, so that they bear our silence. We stop when all have
/// answered, for the threads that carry the words to them stop with us.
void Master::fall_asleep() {
  if (std::exchange(falling_asleep_, true)) return;
  console_.suspend();
  say("stopped; the workers go on (fg or SIGCONT to see their output again)");
  for (const auto& node : nodes_) {
    node->asleep = !node->live();
    node->send(rendezvous::MasterAsleep{});
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
    if (node->live() && !node->asleep) return;
  }
  stop_until_continued();
}

void Master::stop_until_continued() {
  if (!std::exchange(falling_asleep_, false)) return;
  sleep_timer_.cancel();
  ::raise(SIGSTOP);
  console_.resume();
}

/// Said when it happens, and at the end at the latest.
void Master::warn_of_lost_output() {
  const int error = console_.broken(1);
  if (error == 0 || std::exchange(output_lost_, true)) return;
  say("warning: " + system_error(error, "standard output").text + "; the job's output is in the files only");
}

void Master::say(std::string_view text) {
  log_.said(text);
  console_.write(2, "ddplaunch: " + std::string(text) + "\n");
}

void Master::say_host(const NodeLink& node, std::string_view line) {
  const std::string text = supervisor_.name(node.index) + ": " + std::string(line);
  log_.step(text);
  console_.write(2, text + "\n");
}

LineSource Master::source_of(std::uint32_t rank) const {
  const std::size_t index = supervisor_.node_of_rank(rank);
  const rendezvous::Place& ranks = *supervisor_.place(index);
  LineSource source;
  source.host = supervisor_.name(index);
  source.rank = static_cast<int>(rank);
  source.local_rank = source.rank - ranks.first_rank;
  source.node_rank = ranks.node_rank;
  return source;
}

JobFacts Master::facts() const {
  JobFacts facts;
  facts.version = version();
  facts.job_id = spec_.job_id;
  facts.job_dir = spec_.job_dir;
  for (const rendezvous::Place& place : supervisor_.world().places)
    facts.nodes.push_back(supervisor_.name(place.host));
  for (std::size_t i = 0; facts.nodes.empty() && i < nodes_.size(); ++i)
    facts.nodes.push_back(supervisor_.name(i));
  facts.world_size = supervisor_.world().world_size;
  facts.attempts = static_cast<int>(supervisor_.attempt()) + 1;
  facts.began = began_;
  facts.ended = now();
  facts.ended_at = std::chrono::system_clock::now();
  return facts;
}

/// The ends of the stderr of those who failed, on one node or on all, before a new attempt begins them anew:
/// they tell the cause.
void Master::keep_last_words(std::optional<std::size_t> node) {
  struct Words {
    int rank;
    std::vector<std::string> lines;
    std::string file;
  };
  std::vector<Words> all;
  for (const Failure& failure : supervisor_.end().failures) {
    const auto rank = static_cast<std::uint32_t>(failure.rank);
    if (!failure.of_worker() || (node && !supervisor_.runs(*node, rank))) continue;
    all.push_back({failure.rank, output_.last_stderr(failure.attempt, rank),
                   output_.stderr_file(failure.attempt, rank)});
  }
  for (Words& words : all)
    supervisor_.last_words(words.rank, std::move(words.lines), std::move(words.file));
}

int Master::report() {
  keep_last_words({});
  const JobEnd& end = supervisor_.end();
  const ExitReport report = make_exit_report(end);
  for (const std::string& warning : write_reports(end, report, facts(), spec_.report_path))
    say(warning);
  log_.ended(report.text);
  console_.write(2, report.text);
  return report.exit_code;
}

}  // namespace ddp::launcher
