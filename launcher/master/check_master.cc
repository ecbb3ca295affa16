#include "launcher/master/check_master.h"

#include <array>
#include <csignal>
#include <exception>
#include <string>
#include <utility>

#include "launcher/master/user_signals.h"
#include "launcher/report/clean_text.h"

namespace ddp::launcher {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::milliseconds kLastTasks{500};
constexpr std::chrono::seconds kPingEvery{1};
/// Time from the end of a link to the end of its channel.
constexpr std::chrono::seconds kEndTime{5};

nanoseconds now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

nanoseconds wall_now() {
  return std::chrono::system_clock::now().time_since_epoch();
}

remote::FanOutOptions with_deadline(remote::FanOutOptions options, std::chrono::milliseconds time) {
  options.deadline = std::chrono::steady_clock::now() + time;
  return options;
}

}  // namespace

CheckMaster::CheckMaster(asio::io_context& loop, const JobSpec& spec, CheckRun::CheckScope scope,
                         remote::RemoteShell& remote, remote::RemoteShell& local,
                         remote::FanOutOptions options, ShowLines say)
    : loop_(loop),
      spec_(spec),
      show_lines_(std::move(say)),
      run_(spec, scope),
      fan_out_(loop.get_executor(), remote, local, with_deadline(std::move(options), run_.answer_time())),
      deadline_(loop),
      ping_timer_(loop),
      signals_(loop) {
  add_signals(signals_, {SIGINT, SIGTERM, SIGHUP});
  for (std::size_t i = 0; i < run_.node_count(); ++i)
    nodes_.push_back(std::make_unique<NodeLink>(i, loop.get_executor(), spec.hosts[i].name));
}

CheckMaster::~CheckMaster() = default;

CheckResult CheckMaster::run() {
  carry_out(run_.start(now()));
  start_task(start_agents());
  start_task(watch_signals());
  start_task(ping_nodes());
  loop_.run();  // until the check has finished; carry_out stops it
  CheckResult result = run_.take_result();
  measure_clocks(result);
  end_tasks();
  return result;
}

/// Compares a node's wall clock with the master's at the same moment. The node's monotonic clock identifies
/// that moment.
void CheckMaster::measure_clocks(CheckResult& result) const {
  const nanoseconds here = now();
  const nanoseconds wall_here = wall_now();
  for (std::size_t i = 0; i < result.nodes.size(); ++i) {
    CheckedNode& node = result.nodes[i];
    if (!node.facts) continue;
    const nanoseconds then = nodes_[i]->to_ours(node.facts->clock_ns);
    node.wall_ahead = nanoseconds(node.facts->wall_ns) - (wall_here - (here - then));
    node.wall_error = nodes_[i]->clock_error();
  }
}

void CheckMaster::end_tasks() {
  fan_out_.cancel();
  for (const auto& node : nodes_) {
    node->close();
    node->end_timer.cancel();
  }
  error_code ignored;
  signals_.cancel(ignored);
  deadline_.cancel();
  ping_timer_.cancel();
  loop_.restart();
  loop_.run_for(kLastTasks);
}

void CheckMaster::start_task(Awaitable<> task) {
  asio::co_spawn(loop_, std::move(task), [](const std::exception_ptr& broken) {
    if (broken) std::terminate();  // an exception that crosses an await is an internal error
  });
}

void CheckMaster::step(const CheckRun::Event& event) {
  carry_out(run_.step(event, now()));
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

Awaitable<> CheckMaster::start_agents() {
  std::vector<remote::Host> hosts(spec_.hosts.begin(),
                                  spec_.hosts.begin() + static_cast<std::ptrdiff_t>(nodes_.size()));
  remote::FanOut::ReportHost report = [this](std::size_t host, Result<remote::StartedAgent> outcome) {
    on_started(host, std::move(outcome));
  };
  co_await fan_out_.run(std::move(hosts), std::move(report));
}

void CheckMaster::on_started(std::size_t index, Result<remote::StartedAgent> outcome) {
  if (!outcome) return step(CheckRun::NodeFailed{index, outcome.error()});
  NodeLink& node = *nodes_[index];
  // The output of a login shell is no finding and would disturb the table.
  if (spec_.verbose) {
    for (const std::string& line : outcome->noise)
      show_lines_(spec_.hosts[index].name + ": " + line + "\n");
    if (!outcome->errors.empty()) show_lines_(node.error_lines(outcome->errors));
  }
  node.open(std::move(*outcome));
  start_task(node.connection().write_all());
  start_task(read_errors(this, &node));
  start_task(read_link(this, &node));
}

Awaitable<> CheckMaster::read_link(CheckMaster* self, NodeLink* node) {
  Result<> good;
  while (good) {
    good = self->take_messages(*node);
    if (good) good = co_await node->connection().read_more();
  }
  node->close();
  // The end of the channel gives a better reason, but it may never come.
  const Error plain = good.error();
  node->end_timer.expires_after(kEndTime);
  node->end_timer.async_wait([self, node, plain](const error_code& cancelled) {
    if (!cancelled) self->node_gone(*node, plain);
  });
  NodeLink::LinkEnd end = co_await node->explain_end(plain);
  self->node_gone(*node, std::move(end.why));
}

void CheckMaster::node_gone(NodeLink& node, Error why) {
  node.end_timer.cancel();
  if (!std::exchange(node.gone, true)) step(CheckRun::NodeFailed{node.index, std::move(why)});
}

Awaitable<> CheckMaster::read_errors(CheckMaster* self, NodeLink* node) {
  std::array<char, 4096> buffer;
  for (bool open = true; open;) {
    const auto [error, count] =
        co_await node->channel().errors().async_read_some(asio::buffer(buffer), kUseTuple);
    open = !error && count > 0;
    const std::string lines = node->error_lines(open ? std::string_view(buffer.data(), count) : "");
    if (!lines.empty()) self->show_lines_(lines);
  }
}

Result<> CheckMaster::take_messages(NodeLink& node) {
  for (;;) {
    auto message = node.connection().next();
    if (!message) return message.error();
    if (!*message) return {};
    clean_texts(**message);
    if (auto fine = node.limits.admit(**message); !fine) return fine;
    take(node, **message);
  }
}

void CheckMaster::take(NodeLink& node, const rendezvous::Message& message) {
  if (const auto* pong = std::get_if<rendezvous::Pong>(&message)) {
    if (node.on_pong(*pong)) node.ping(++ping_sequence_);
  } else if (const auto* hello = std::get_if<rendezvous::Hello>(&message)) {
    node.guess_clock(hello->clock_ns);
    node.ping(++ping_sequence_);
    step(CheckRun::NodeUp{node.index, *hello, node.channel().address()});
  } else if (const auto* notice = std::get_if<rendezvous::Notice>(&message)) {
    if (node.limits.notice() == NodeLimits::NoticeDecision::kNo) return;
    if (!notice->detail || spec_.verbose)
      show_lines_(spec_.hosts[node.index].name + ": " + notice->text + "\n");
  } else {
    step(CheckRun::FromNode{node.index, message});
  }
}

/// Agents leave when the master is silent for too long, and a slow host may delay the check.
Awaitable<> CheckMaster::ping_nodes() {
  while (!run_.finished()) {
    ping_timer_.expires_after(kPingEvery);
    co_await ping_timer_.async_wait(kUseTuple);
    for (const auto& node : nodes_) {
      if (node->live()) node->ping(++ping_sequence_);
    }
  }
}

Awaitable<> CheckMaster::watch_signals() {
  for (;;) {
    const auto [error, number] = co_await signals_.async_wait(kUseTuple);
    if (error) co_return;
    step(CheckRun::UserInterrupt{number});
  }
}

}  // namespace ddp::launcher
