// The part of the Master that handles nodes: their agents' starts, their messages, and the credit for output.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "launcher/job/output_credit.h"
#include "launcher/master/master.h"
#include "launcher/report/host_texts.h"
#include "launcher/report/job_status.h"
#include "launcher/supervisor/attempt_start.h"

namespace ddp::launcher {
namespace {

/// Output pieces from this size are written to the rank's file from the memory into which they were read.
/// Smaller pieces are copied, since each would keep a whole block.
constexpr std::size_t kWorthKeeping = 16u << 10;

}  // namespace

void Master::note_start_steps() {
  for (const remote::FanOut::PendingHost& node : nodes_.starting())
    supervisor_.set_start_step(node.host, node.step);
}

void Master::start_failed(std::size_t node, Error why) {
  step(job::NodeFailed{node, std::move(why)});
}

void Master::agent_started(NodeLink& node, const remote::StartedAgent& agent) {
  for (const std::string& line : agent.noise)
    say_host(node, line);
  if (!agent.errors.empty()) agent_errors(node.error_lines(agent.errors));
  if (agent.pushed > 0 && spec_.verbose)
    say(supervisor_.nodes()[node.index].name + ": copied ddplaunchd, " + std::to_string(agent.pushed) +
        " bytes");
}

/// Shows labelled lines. Where agents are kept, and which ones are not used, is said once for each reason.
void Master::agent_errors(const std::string& lines) {
  std::string others;
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string line = lines.substr(at, end - at);
    at = end + 1;
    // Directly behind the label; elsewhere the words are any text of the node.
    const std::size_t label = std::min(line.find(": "), line.size());
    const std::string text = line.substr(label);
    const bool kept = text.starts_with(": " + std::string(remote::kKeptElsewhere));
    const bool not_used = text.starts_with(": " + std::string(remote::kNotUsed));
    if (!kept && !not_used)
      others += line + '\n';
    else if (kept_notes_.insert(text).second && (kept || spec_.verbose))
      say(replace_unsafe(line));
    else
      log_.step(replace_unsafe(line));
  }
  if (!others.empty()) console_.add(2, others);
}

/// Any received byte counts as a heartbeat. Most change nothing.
void Master::bytes_arrived(const NodeLink& node) {
  job::Actions actions = supervisor_.step(job::NodeHeartbeat{node.index, node.incarnation}, steady_now());
  if (!actions.empty()) carry_out(std::move(actions));
}

void Master::reachable(const NodeLink& node) {
  if (node.greeted) step(job::NodeReachable{node.index, node.incarnation});
}

void Master::link_broken(const NodeLink& node, const Error& why) {
  if (node.greeted) step(job::LinkEnded{node.index, why, node.incarnation});
}

void Master::link_gone(NodeLink& node, NodeLink::LinkEnd end) {
  queries_.node_gone(node.index);
  // The Supervisor knows only nodes that said hello as up. The end of any other link is a start that failed.
  if (!node.greeted) return step(job::NodeFailed{node.index, std::move(end.why)});
  // Processes in a container may outlive the program that was run in it.
  const bool dead = end.workers_dead && spec_.hosts[node.index].wrapper.empty();
  step(job::NodeGone{node.index, std::move(end.why), dead, node.incarnation, end.workers_left});
}

// ---- sweeps of lost nodes

namespace {

bool same_processes(const rendezvous::Hello& one, const rendezvous::Hello& other) {
  return one.pid_namespace != 0 && one.machine_id == other.machine_id &&
         one.pid_namespace == other.pid_namespace;
}

}  // namespace

/// Returns the keepers of the other nodes that share the node's machine.
std::vector<std::uint32_t> Master::live_keepers_beside(std::size_t node) const {
  std::vector<std::uint32_t> keepers;
  for (const auto& other : nodes_) {
    const rendezvous::Hello& hello = supervisor_.nodes()[other->index].hello;
    if (other->index != node && other->live() && same_processes(hello, supervisor_.nodes()[node].hello))
      keepers.push_back(hello.keeper);
  }
  return keepers;
}

void Master::sweep(std::size_t node) {
  const NodeRecords::Node& lost = supervisor_.nodes()[node];
  if (spec_.launcher == LauncherKind::kJoin || lost.hello.keeper == 0) {
    const std::string text = not_swept_text(
        lost.hello.keeper == 0 ? "its agent never answered" : "it was started on the node itself",
        spec_.job_id, spec_.launcher != LauncherKind::kJoin);
    // Posted: this function is called within a step, and an answer within it would be a step inside a step.
    asio::post(loop_,
               [this, answer = job::NodeSwept{node, nodes_[node]->incarnation, text}] { step(answer); });
    return;
  }
  rendezvous::JobStart order = job_start(spec_, spec_.hosts[node], nodes_.size());
  order.predecessor = {lost.hello.keeper, lost.hello.pid};
  for (const std::uint32_t pid : lost.worker_pids) {
    if (pid != 0) order.predecessor.push_back(pid);
  }
  order.predecessor_clock_ns = lost.hello.clock_ns;
  order.keepers = live_keepers_beside(node);
  // This agent gets no pings.
  order.master_timeout_ms =
      std::max(order.master_timeout_ms, static_cast<std::uint32_t>(2000 * MasterLinks::kSweepTime.count()));
  nodes_.sweep(node, std::move(order));
}

void Master::node_swept(std::size_t node, std::uint32_t incarnation, const Result<SweptHost>& swept) {
  job::NodeSwept answer{node, incarnation, {}};
  if (!swept) {
    answer.text = not_swept_text(swept.error().text, spec_.job_id, true);
    // The name may have led to another machine, or into a container: what was searched there proves nothing
    // about the lost agent.
  } else if (!same_processes(swept->hello, supervisor_.nodes()[node].hello) ||
             !spec_.hosts[node].wrapper.empty()) {
    answer.text = not_swept_text("the host's processes are not those of the lost agent", spec_.job_id, true);
  } else {
    answer.text = swept_text(swept->found, swept->left, spec_.job_id);
    answer.empty = swept->left.empty();
    answer.found = swept->found > 0 || !answer.empty;
  }
  step(answer);
}

void Master::all_taken(NodeLink& node) {
  output_.pass_on();
  give_credit(node);
}

Result<> Master::on_message(NodeLink& node, const rendezvous::Message& message) {
  if (const auto* output = std::get_if<rendezvous::Output>(&message)) return handle_output(node, *output);
  if (const auto* steps = std::get_if<rendezvous::WorkerSteps>(&message)) return handle_steps(node, *steps);
  if (const auto* sample = std::get_if<rendezvous::NodeSample>(&message)) {
    history_.add_sample(node.index, supervisor_.nodes()[node.index].hello.cpus, *sample, steady_now());
    return {};
  }
  output_.pass_on();  // what workers wrote before an event is shown before the message about the event
  if (const auto* notice = std::get_if<rendezvous::Notice>(&message)) {
    handle_notice(node, *notice);
  } else if (const auto* stdin_taken = std::get_if<rendezvous::StdinTaken>(&message)) {
    if (supervisor_.nodes().runs(node.index, 0)) stdin_.taken(*stdin_taken);
  } else if (const auto* answer = std::get_if<rendezvous::QueryAnswer>(&message)) {
    queries_.answered(node.index, *answer);
  } else if (const auto* hello = std::get_if<rendezvous::Hello>(&message)) {
    // A wrapper may lead to another machine.
    const bool probed =
        node.can_be_probed() && (!node.channel().is_local() || spec_.hosts[node.index].wrapper.empty());
    step(job::NodeUp{node.index, *hello, node.channel().address(), node.incarnation, probed});
  } else {
    log_.from_node(supervisor_.nodes()[node.index].name, message);
    if (const auto* evidence = std::get_if<rendezvous::WorkerEvidence>(&message))
      progress_.add_xids(supervisor_.nodes()[node.index].name, evidence->xid);
    const auto* exited = std::get_if<rendezvous::WorkerExited>(&message);
    // The open line of a rank that failed often names the cause. It must be shown before the line about the
    // failure.
    if (exited != nullptr && (exited->code != 0 || exited->signal != 0)) output_.flush();
    const rendezvous::RankAssignment* ranks = supervisor_.nodes().assignment(node.index);
    if (ranks != nullptr && (std::holds_alternative<rendezvous::AttemptEnded>(message) ||
                             std::holds_alternative<rendezvous::AttemptRevoked>(message)))
      keep_last_output(ranks->first_rank, ranks->local_world_size);
    step(job::FromNode{node.index, message, happened(node, message), node.clock_error(), node.incarnation});
  }
  return {};
}

Result<> Master::handle_output(NodeLink& node, const rendezvous::Output& output) {
  // Control messages overtake output (decision 0009), so output of the attempt before may come when the next
  // one has begun.
  const std::optional<int> its_own = supervisor_.nodes().ran(node.index, output.attempt, output.rank);
  if (!its_own && output.attempt == supervisor_.nodes().attempt())
    return Error{ErrorCode::kProtocol, "it sent output of a rank that it does not run", 0};
  output_bytes_ += output.data.size();
  if (its_own && output.attempt != supervisor_.nodes().attempt()) {  // late output of an earlier attempt
    files_->append({output.attempt, output.rank, *its_own, output.stream}, output.data);
  } else if (its_own) {
    const Supervisor::Time written = output.clock_ns == 0 ? steady_now() : node.to_ours(output.clock_ns);
    output_.add(output.attempt, output.rank, output.stream, output.data, written,
                output.data.size() >= kWorthKeeping ? node.connection().keep() : nullptr);
    if (watch_) watch_lines(node, output, written);
  }
  return {};
}

void Master::watch_lines(const NodeLink& node, const rendezvous::Output& output, Supervisor::Time written) {
  for (LineWatch::Hit& hit : watch_->add(output.attempt, output.rank, output.stream, output.data)) {
    output_.pass_on();  // the line itself comes first
    output_.flush();
    step(job::WatchedLine{node.index, output.attempt, output.rank, hit.rule, std::move(hit.line), written,
                          node.clock_error()});
  }
}

/// Ignores late steps of an earlier attempt.
Result<> Master::handle_steps(const NodeLink& node, const rendezvous::WorkerSteps& message) {
  if (message.attempt != supervisor_.nodes().attempt()) return {};
  // The lists are columns of one table. The codec bounds each, but only this check makes them equally long.
  const bool good =
      message.ranks.size() == message.steps.size() && message.ranks.size() == message.losses.size() &&
      message.ranks.size() == message.phases.size() && message.ranks.size() == message.counts.size() &&
      message.ranks.size() == message.seconds.size() && message.ranks.size() == message.waits.size() &&
      message.durations.size() % 2 == 0 &&
      std::all_of(message.ranks.begin(), message.ranks.end(),
                  [&](std::uint32_t rank) { return supervisor_.nodes().runs(node.index, rank); });
  if (!good)
    return Error{ErrorCode::kProtocol, "it sent steps of a rank that it does not run, or incomplete ones", 0};
  progress_.add_steps(message, steady_now());
  return {};
}

void Master::handle_notice(NodeLink& node, const rendezvous::Notice& notice) {
  const NodeLimits::NoticeDecision shown = node.limits.notice();
  if (shown == NodeLimits::NoticeDecision::kNo) return;
  std::string words =
      supervisor_.nodes()[node.index].name + ": " + notice.text.substr(0, NodeLimits::kNoticeBytes);
  if (shown == NodeLimits::NoticeDecision::kLast)
    words =
        "warning: " + supervisor_.nodes()[node.index].name + " sent too many notices; the rest is dropped";
  const bool wanted =
      shown == NodeLimits::NoticeDecision::kLast || (notice.detail ? spec_.verbose : !spec_.quiet);
  wanted ? say(words) : log_.step(words);
}

Supervisor::Time Master::happened(const NodeLink& node, const rendezvous::Message& message) {
  if (const auto* exited = std::get_if<rendezvous::WorkerExited>(&message))
    return node.to_ours(exited->clock_ns);
  if (const auto* started = std::get_if<rendezvous::WorkerStarted>(&message))
    return node.to_ours(started->clock_ns);
  if (const auto* quiet = std::get_if<rendezvous::Quiet>(&message); quiet != nullptr && quiet->quiet)
    return node.to_ours(quiet->since_ns);
  return steady_now();
}

void Master::give_all_credit() {
  for (const auto& node : nodes_)
    give_credit(*node);
}

void Master::give_credit(NodeLink& node) {
  // When the files or the console are full, they call give_all_credit after they have drained.
  if (!node.live() || files_->full()) return;
  for (const std::uint8_t stream : {std::uint8_t{1}, std::uint8_t{2}}) {
    // In pieces, because a Credit for each read would be as many messages as the output itself.
    if (node.limits.taken(stream) < credit_piece(nodes_.size()) || console_.full(stream)) continue;
    node.send(rendezvous::Credit{stream, node.limits.give_back(stream)});
  }
}

void Master::name_slow_ranks(Supervisor::Time now) {
  // As often as the nodes' samples come, which say why.
  if (now - slow_checked_at_ < std::chrono::seconds(5) || supervisor_.state() != Supervisor::State::kRunning)
    return;
  slow_checked_at_ = now;
  const NodeRecords& nodes = supervisor_.nodes();
  const auto changes = progress_.slow_ranks().check(
      now, [&](std::uint32_t rank) { return nodes[nodes.node_of_rank(rank)].name; },
      [&](std::uint32_t rank) {
        const rendezvous::NodeSample* const sample = history_.sample_of(nodes.node_of_rank(rank), now);
        return sample == nullptr ? std::string() : node_troubles(*sample);
      });
  for (const SlowRanks::Change& change : changes) {
    record({.kind = change.slow ? JournalEvent::Kind::kRankSlow : JournalEvent::Kind::kRankRecovered,
            .reason = change.text,
            .node = nodes[nodes.node_of_rank(change.rank)].name,
            .rank = change.rank,
            .attempt = nodes.attempt()});
    say((change.slow ? "warning: " : "") + change.text);
  }
}

void Master::before_pings() {
  warn_of_lost_output();
  console_.watch();
  if (job_end_) return;  // the last event and the report are made
  const auto now = steady_now();
  const bool second_over = history_.record(progress_.figures(now), supervisor_.nodes().attempt(), now);
  record_point();
  if (!second_over) return;
  name_slow_ranks(now);
  output_.set_footer(usage_text(history_.usage(now)));
  publish_second();
}

}  // namespace ddp::launcher
