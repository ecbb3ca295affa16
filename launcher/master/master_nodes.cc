// The part of the Master that handles nodes: the start of their agents, their links, and their messages.
#include <algorithm>
#include <array>
#include <utility>

#include "launcher/job/output_credit.h"
#include "launcher/master/master.h"
#include "launcher/report/clean_text.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

/// Output pieces from this size are written to the rank's file from the memory into which they were read.
/// Smaller pieces are copied, since each would keep a whole block.
constexpr std::size_t kWorthKeeping = 16u << 10;
/// Longest interval; short timeouts need more frequent pings.
constexpr milliseconds kPingEvery{1'000};
constexpr int kPingsInTimeout = 6;
/// The first pings would be most of the master's work at the start of a large job.
constexpr std::size_t kManyNodes = 256;
constexpr int kFirstPingsOfMany = 2;
/// Time from the end of a link to the end of its channel.
constexpr seconds kEndTime{2};

nanoseconds now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}  // namespace

Master::Link Master::make_link(std::size_t index, std::uint32_t incarnation) {
  return std::make_shared<NodeLink>(
      index, loop_.get_executor(), supervisor_.name(index), incarnation,
      supervisor_.node_count() > kManyNodes ? kFirstPingsOfMany : NodeLink::kFirstPings);
}

Awaitable<> Master::start_agents(std::vector<std::size_t> nodes) {
  remote::FanOutOptions options{{options_.agent_path, "--stdio"},
                                spec_.ssh_localhost,
                                Clock::now() + spec_.start_timeout,
                                options_.expected,
                                options_.bundle,
                                spec_.launcher == LauncherKind::kLocal};
  auto start = std::make_shared<remote::FanOut>(loop_.get_executor(), remote_, local_, std::move(options));
  starts_.push_back({start, nodes});
  std::vector<remote::Host> hosts;
  for (const std::size_t node : nodes)
    hosts.push_back(spec_.hosts[node]);
  remote::FanOut::ReportHost report = [this, nodes](std::size_t host, Result<remote::StartedAgent> outcome) {
    on_started(nodes[host], std::move(outcome));
  };
  co_await start->run(std::move(hosts), std::move(report));
  std::erase_if(starts_, [&start](const AgentStart& one) { return one.fan_out == start; });
}

void Master::cancel_starts() {
  const auto starts = starts_;  // each start removes itself from the list as it ends
  for (const auto& start : starts)
    start.fan_out->cancel();
}

void Master::note_start_steps() {
  for (const AgentStart& start : starts_) {
    for (const remote::FanOut::PendingHost& host : start.fan_out->waiting())
      supervisor_.set_start_step(start.nodes[host.host], host.step);
  }
}

/// The old link has ended, and a new one may follow.
void Master::recall(std::size_t index) {
  nodes_[index]->close();
  const NodeLimits limits = nodes_[index]->limits;
  nodes_[index] = make_link(index, nodes_[index]->incarnation + 1);
  nodes_[index]->limits = limits;
  nodes_[index]->limits.begin_incarnation();
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
    say(supervisor_.name(index) + ": copied ddplaunchd, " + std::to_string(outcome->pushed) + " bytes");
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
  // The end of the channel gives a better reason, but it may never come: a host can die in between.
  const Error plain = good.error();
  if (node->greeted) master->step(job::LinkEnded{node->index, plain, node->incarnation});
  const auto give_up = [master, node, plain](const error_code& cancelled) {
    if (!cancelled) master->node_gone(*node, NodeLink::LinkEnd{plain});
  };
  node->end_timer.expires_after(kEndTime);
  node->end_timer.async_wait(give_up);
  NodeLink::LinkEnd end = co_await node->explain_end(plain);
  master->node_gone(*node, std::move(end));
}

/// Any received byte counts as a heartbeat. Most change nothing.
void Master::heard(const NodeLink& node) {
  job::Actions actions = supervisor_.step(job::NodeHeartbeat{node.index, node.incarnation}, now());
  if (!actions.empty()) carry_out(std::move(actions));
}

void Master::node_gone(NodeLink& node, NodeLink::LinkEnd end) {
  node.end_timer.cancel();
  if (std::exchange(node.gone, true)) return;
  if (!node.greeted) return step(job::NodeFailed{node.index, std::move(end.why)});
  // Processes in a container may outlive the program that was run in it.
  const bool dead = end.workers_dead && spec_.hosts[node.index].wrapper.empty();
  step(job::NodeGone{node.index, std::move(end.why), dead, node.incarnation, end.workers_left});
}

/// Reads stderr without back-pressure: see NodeLink::error_lines.
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
    // Output that workers wrote before an event is shown before the message about the event.
    if (!std::holds_alternative<rendezvous::Output>(**message)) output_.pass_on();
    good = take(node, **message);
  }
  output_.pass_on();
  return good;
}

Result<> Master::take(NodeLink& node, const rendezvous::Message& message) {
  if (auto fine = node.limits.admit(message); !fine) return fine;
  if (const auto* output = std::get_if<rendezvous::Output>(&message)) {
    const std::optional<int> its_own = supervisor_.ran(node.index, output->attempt, output->rank);
    if (!its_own && output->attempt == supervisor_.attempt())
      return Error{ErrorCode::kProtocol, "it sent output of a rank that it does not run", 0};
    if (its_own && output->attempt != supervisor_.attempt()) {  // late output of an earlier attempt
      files_->append({output->attempt, output->rank, *its_own, output->stream}, output->data);
    } else if (its_own) {
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
    step(job::NodeUp{node.index, *hello, node.channel().address(), node.incarnation});
  } else {
    log_.from_node(supervisor_.name(node.index), message);
    const auto* exited = std::get_if<rendezvous::WorkerExited>(&message);
    if (exited != nullptr && (exited->code != 0 || exited->signal != 0)) output_.flush();
    if (std::holds_alternative<rendezvous::AttemptEnded>(message) ||
        std::holds_alternative<rendezvous::AttemptRevoked>(message))
      keep_last_output(node.index);
    step(job::FromNode{node.index, message, happened(node, message), node.clock_error(), node.incarnation});
  }
  return {};
}

void Master::take_notice(NodeLink& node, const rendezvous::Notice& notice) {
  const NodeLimits::NoticeDecision shown = node.limits.notice();
  if (shown == NodeLimits::NoticeDecision::kNo) return;
  std::string words = supervisor_.name(node.index) + ": " + notice.text.substr(0, NodeLimits::kNoticeBytes);
  if (shown == NodeLimits::NoticeDecision::kLast)
    words = "warning: " + supervisor_.name(node.index) + " sent too many notices; the rest is dropped";
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
  // When the files or the console are full, they call give_all_credit after they have drained.
  if (!node.live() || files_->full()) return;
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

}  // namespace ddp::launcher
