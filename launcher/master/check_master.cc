#include "launcher/master/check_master.h"

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>

#include "base/clock.h"
#include "launcher/master/user_signals.h"
#include "launcher/supervisor/attempt_start.h"

namespace ddp::launcher {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::milliseconds kLastTasks{500};
constexpr std::chrono::seconds kPingEvery{1};

}  // namespace

CheckMaster::CheckMaster(asio::io_context& loop, const JobSpec& spec, CheckRun::CheckScope scope,
                         remote::RemoteShell& remote, remote::RemoteShell& local,
                         remote::FanOutOptions options, ShowLines say)
    : loop_(loop),
      spec_(spec),
      show_lines_(std::move(say)),
      run_(spec, scope),
      nodes_(loop, spec.hosts, run_.node_count(), remote, local, std::move(options), *this),
      deadline_(loop),
      waiting_timer_(loop),
      signals_(loop) {
  add_signals(signals_, {SIGINT, SIGTERM, SIGHUP});
}

CheckMaster::~CheckMaster() = default;

CheckResult CheckMaster::run() {
  carry_out(run_.start(steady_now()));
  nodes_.start_all(run_.answer_time());
  spawn(loop_.get_executor(), watch_signals());
  if (!spec_.quiet) spawn(loop_.get_executor(), report_waiting());
  nodes_.ping_every(kPingEvery);
  loop_.run();  // until the check has finished; carry_out stops it
  CheckResult result = run_.take_result();
  measure_clocks(result);
  end_tasks();
  return result;
}

/// Compares a node's wall clock with the master's at the same moment. The node's monotonic clock identifies
/// that moment.
void CheckMaster::measure_clocks(CheckResult& result) const {
  const nanoseconds here = steady_now();
  const nanoseconds wall_here = read_clock(CLOCK_REALTIME);
  for (std::size_t i = 0; i < result.nodes.size(); ++i) {
    CheckedNode& node = result.nodes[i];
    if (!node.facts) continue;
    const nanoseconds then = nodes_[i]->to_ours(node.facts->clock_ns);
    node.wall_ahead = nanoseconds(node.facts->wall_ns) - (wall_here - (here - then));
    node.wall_error = nodes_[i]->clock_error();
  }
}

void CheckMaster::end_tasks() {
  nodes_.close();
  error_code ignored;
  signals_.cancel(ignored);
  deadline_.cancel();
  waiting_timer_.cancel();
  loop_.restart();
  loop_.run_for(kLastTasks);
}

void CheckMaster::step(const CheckRun::Event& event) {
  carry_out(run_.step(event, steady_now()));
}

void CheckMaster::carry_out(CheckRun::Actions actions) {
  for (CheckRun::Action& action : actions) {
    if (auto* message = std::get_if<CheckRun::ToNode>(&action)) {
      nodes_[message->node]->send(message->message);
    } else if (auto* drop = std::get_if<CheckRun::Disconnect>(&action)) {
      if (nodes_[drop->node]->opened()) nodes_[drop->node]->close();
    }
  }
  if (run_.finished()) loop_.stop();
  arm_deadline();
}

void CheckMaster::arm_deadline() {
  const auto deadline = run_.deadline();
  if (!deadline) {
    deadline_.cancel();
    return;
  }
  deadline_.expires_at(Clock::time_point(*deadline));
  deadline_.async_wait([this](const error_code& cancelled) {
    if (!cancelled) step(CheckRun::Tick{});
  });
}

// ---- nodes

void CheckMaster::start_failed(std::size_t node, Error why) {
  step(CheckRun::NodeFailed{node, std::move(why)});
}

/// The output of a login shell is no finding and would disturb the table.
void CheckMaster::agent_started(NodeLink& node, const remote::StartedAgent& agent) {
  if (!spec_.verbose) return;
  for (const std::string& line : agent.noise)
    show_lines_(spec_.hosts[node.index].name + ": " + line + "\n");
  if (!agent.errors.empty()) show_lines_(node.error_lines(agent.errors));
}

void CheckMaster::agent_errors(const std::string& lines) {
  show_lines_(lines);
}

void CheckMaster::link_gone(NodeLink& node, NodeLink::LinkEnd end) {
  step(CheckRun::NodeFailed{node.index, std::move(end.why)});
}

Result<> CheckMaster::take(NodeLink& node, const rendezvous::Message& message) {
  if (const auto* hello = std::get_if<rendezvous::Hello>(&message)) {
    step(CheckRun::NodeUp{node.index, *hello, node.channel().address()});
  } else if (const auto* notice = std::get_if<rendezvous::Notice>(&message)) {
    if (node.limits.notice() == NodeLimits::NoticeDecision::kNo) return {};
    if (!notice->detail || spec_.verbose)
      show_lines_(spec_.hosts[node.index].name + ": " + notice->text + "\n");
  } else {
    step(CheckRun::FromNode{node.index, message});
  }
  return {};
}

void CheckMaster::note_start_steps() {
  for (const remote::FanOut::PendingHost& host : nodes_.starting())
    run_.set_start_step(host.host, host.step);
}

Awaitable<> CheckMaster::report_waiting() {
  StartNotice notice;
  notice.begin(steady_now());
  for (;;) {
    waiting_timer_.expires_at(std::chrono::steady_clock::time_point(*notice.deadline()));
    const auto [error] = co_await waiting_timer_.async_wait(kUseTuple);
    if (error) co_return;
    note_start_steps();
    const auto waiting = notice.show(run_.awaited_text(), steady_now());
    if (waiting && waiting->due) show_lines_("ddplaunch: " + waiting->text + "\n");
  }
}

Awaitable<> CheckMaster::watch_signals() {
  for (;;) {
    const auto [error, number] = co_await signals_.async_wait(kUseTuple);
    if (error) co_return;
    note_start_steps();
    step(CheckRun::UserInterrupt{number});
  }
}

}  // namespace ddp::launcher
