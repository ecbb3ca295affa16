// Starts of agents, sweeps of hosts, and links: what is read from each node, and the pings of all.
#include "launcher/master/master_links.h"

#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "base/result.h"
#include "base/text.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

/// A node is probed from this number of missed Pings on: after 3 s, with the usual interval.
constexpr int kMissedPings = 3;
/// Time from the end of a link to the end of its channel.
constexpr std::chrono::seconds kEndTime{2};

}  // namespace

/// The agent of a sweep. Its link is none of the node's links.
struct MasterLinks::Sweep {
  std::size_t node;
  std::uint32_t incarnation;  ///< of the lost link
  Link link;
  std::shared_ptr<remote::FanOut> fan_out;
};

MasterLinks::MasterLinks(asio::io_context& loop, const std::vector<remote::Host>& hosts, std::size_t count,
                         remote::Transport& remote, remote::Transport& local, remote::FanOutOptions options,
                         NodeEvents& events)
    : loop_(loop),
      hosts_(hosts),
      remote_(remote),
      local_(local),
      options_(std::move(options)),
      events_(events),
      links_(count),
      ping_timer_(loop) {
  for (std::size_t node = 0; node < count; ++node)
    links_[node] = make_link(node, hosts[node].name, 1);
}

MasterLinks::Link MasterLinks::make_link(std::size_t node, const std::string& name,
                                         std::uint32_t incarnation) {
  return std::make_shared<NodeLink>(node, loop_.get_executor(), name, incarnation, size());
}

// ---- starts

void MasterLinks::start_all(milliseconds limit) {
  std::vector<std::size_t> all(size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  start(std::move(all), limit);
}

/// The old link has ended, and a new one may follow.
void MasterLinks::start_again(std::size_t node, const std::string& name, milliseconds limit) {
  const Link old = links_[node];
  old->close();
  links_[node] = make_link(node, name, old->incarnation + 1);
  // The limits on diagnostics hold for the host, so that an agent that fails again and again cannot fill the
  // master's memory.
  links_[node]->limits = old->limits;
  links_[node]->limits.begin_incarnation();
  start({node}, limit);
}

void MasterLinks::start(std::vector<std::size_t> nodes, milliseconds limit) {
  remote::FanOutOptions options = options_;
  options.deadline = std::chrono::steady_clock::now() + limit;
  // Each start has its own fan-out: a spare that is started later must not wait for hosts of the first start.
  auto fan_out = std::make_shared<remote::FanOut>(loop_.get_executor(), remote_, local_, std::move(options));
  starts_.push_back({fan_out, nodes});
  spawn(loop_.get_executor(), run_start(std::move(fan_out), std::move(nodes)));
}

Awaitable<> MasterLinks::run_start(std::shared_ptr<remote::FanOut> fan_out, std::vector<std::size_t> nodes) {
  std::vector<remote::Host> hosts;
  for (const std::size_t node : nodes)
    hosts.push_back(hosts_[node]);
  remote::FanOut::ReportHost report = [this, &nodes](std::size_t host, Result<remote::StartedAgent> outcome) {
    on_started(nodes[host], std::move(outcome));
  };
  co_await fan_out->run(std::move(hosts), std::move(report));
  std::erase_if(starts_, [&](const AgentStart& one) { return one.fan_out == fan_out; });
}

void MasterLinks::cancel_starts() {
  const auto starts = starts_;  // each start removes itself from the list as it ends
  for (const auto& start : starts)
    start.fan_out->cancel();
}

std::vector<remote::FanOut::PendingHost> MasterLinks::starting() const {
  std::vector<remote::FanOut::PendingHost> all;
  for (const AgentStart& start : starts_) {
    for (const remote::FanOut::PendingHost& host : start.fan_out->waiting())
      all.push_back({start.nodes[host.host], host.step});
  }
  return all;
}

void MasterLinks::on_started(std::size_t node, Result<remote::StartedAgent> outcome) {
  if (!outcome) return events_.start_failed(node, outcome.error());
  const Link link = links_[node];
  events_.agent_started(*link, *outcome);
  link->open(std::move(*outcome));
  spawn(loop_.get_executor(), link->connection().write_all());
  spawn(loop_.get_executor(), read_errors(link));
  spawn(loop_.get_executor(), read_link(link));
}

// ---- sweeps

void MasterLinks::sweep(std::size_t node, rendezvous::JobStart order) {
  DDP_REQUIRE(!order.predecessor.empty(),
              "a sweep has no lost agent");  // the agent would sweep all nodes there
  remote::FanOutOptions options = options_;
  options.deadline = std::chrono::steady_clock::now() + kSweepTime;
  const std::string& name = hosts_[node].name;
  auto fan_out = std::make_shared<remote::FanOut>(loop_.get_executor(), remote_, local_, std::move(options));
  auto sweep = std::make_shared<Sweep>(
      Sweep{node, links_[node]->incarnation, make_link(node, name, 0), std::move(fan_out)});
  sweep->link->end_timer.expires_after(kSweepTime);
  sweep->link->end_timer.async_wait([sweep](const error_code& cancelled) {
    if (!cancelled) sweep->link->close();
  });
  sweeps_.push_back(sweep);
  spawn(loop_.get_executor(), run_sweep(std::move(sweep), std::move(order)));
}

Awaitable<> MasterLinks::run_sweep(std::shared_ptr<Sweep> sweep, rendezvous::JobStart order) {
  const Link link = sweep->link;
  std::optional<Result<remote::StartedAgent>> started;
  remote::FanOut::ReportHost report = [&started](std::size_t, Result<remote::StartedAgent> outcome) {
    started.emplace(std::move(outcome));
  };
  std::vector<remote::Host> hosts{hosts_[sweep->node]};
  co_await sweep->fan_out->run(std::move(hosts), std::move(report));
  Result<SweptHost> swept = Error{ErrorCode::kCancelled, "cancelled"};
  if (!*started) {
    swept = started->error();
  } else {
    link->open(std::move(**started));
    // The timer may have fired while the host was reached, when there was no channel to close yet.
    if (closed_ || std::chrono::steady_clock::now() >= link->end_timer.expiry()) link->close();
    spawn(loop_.get_executor(), link->connection().write_all());
    spawn(loop_.get_executor(), read_errors(link));
    swept = co_await ask_sweeper(link, std::move(order));
    if (!swept && swept.error().code == ErrorCode::kCancelled)
      swept = Error{ErrorCode::kTimeout, "the search took more than " + format_duration(kSweepTime)};
    link->close();
  }
  link->end_timer.cancel();
  std::erase(sweeps_, sweep);
  if (!closed_) events_.node_swept(sweep->node, sweep->incarnation, swept);
}

Awaitable<Result<SweptHost>> MasterLinks::ask_sweeper(Link link, rendezvous::JobStart order) {
  rendezvous::NodeCheck request;
  request.job = std::move(order);
  request.clean = true;
  link->send(request);
  SweptHost swept;
  for (bool answered = false;;) {
    auto message = link->connection().next();
    if (!message) co_return message.error();
    if (*message) {
      rendezvous::clean_texts(**message);
      if (auto* hello = std::get_if<rendezvous::Hello>(&**message)) swept.hello = *hello;
      if (auto* refused = std::get_if<rendezvous::Refused>(&**message))
        co_return Error{ErrorCode::kRefused, refused->text};
      if (auto* checked = std::get_if<rendezvous::NodeChecked>(&**message)) {
        swept.found = checked->found;
        swept.left = std::move(checked->left);
        answered = true;
        link->send(rendezvous::Leave{});
      }
      continue;
    }
    const Result<> more = co_await link->connection().read_more();
    if (!more && answered) co_return swept;  // the agent has ended
    if (!more) co_return more.error();
  }
}

// ---- links

Awaitable<> MasterLinks::read_link(Link node) {
  Result<> good;
  while (good) {
    // Messages that came with the agent's first bytes are already in the buffer, so they are taken before the
    // first read.
    good = read_messages(*node);
    events_.all_taken(*node);
    if (good) good = co_await node->connection().read_more();
    if (!good) break;
    // Heard is what arrived, not what was understood: the lease counts from the last byte.
    node->end_silence();
    events_.bytes_arrived(*node);
  }
  node->close();
  // The end of the channel gives a better reason, but it may never come: a host can die in between.
  const Error plain = good.error();
  events_.link_broken(*node, plain);
  node->end_timer.expires_after(kEndTime);
  node->end_timer.async_wait([this, node, plain](const error_code& cancelled) {
    if (!cancelled) report_end(*node, NodeLink::LinkEnd{plain});
  });
  NodeLink::LinkEnd end = co_await node->explain_end(plain);
  report_end(*node, std::move(end));
}

void MasterLinks::report_end(NodeLink& node, NodeLink::LinkEnd end) {
  node.end_timer.cancel();
  // The timer and the end of the channel may both come.
  if (!std::exchange(node.gone, true)) events_.link_gone(node, std::move(end));
}

/// Reads stderr without back-pressure: see NodeLink::error_lines.
Awaitable<> MasterLinks::read_errors(Link node) {
  std::array<char, 4096> buffer;
  for (bool open = true; open;) {
    const auto [error, count] =
        co_await node->channel().errors().async_read_some(asio::buffer(buffer), kUseTuple);
    open = !error && count > 0;
    const std::string lines = node->error_lines(open ? std::string_view(buffer.data(), count) : "");
    if (!lines.empty()) events_.agent_errors(lines);
  }
}

Result<> MasterLinks::read_messages(NodeLink& node) {
  for (;;) {
    auto message = DDP_TRY(node.connection().next());
    if (!message) return {};
    // Texts of a node go to terminals and pages; nothing behind this line sees their control characters.
    rendezvous::clean_texts(*message);
    DDP_TRY(admit(node, *message));
  }
}

Result<> MasterLinks::admit(NodeLink& node, rendezvous::Message& message) {
  const auto admission = DDP_TRY(node.limits.admit(message));
  if (admission == NodeLimits::Admission::kDropFirst)
    return events_.on_message(
        node, rendezvous::Notice{"sent more than " + std::to_string(node.limits.kept_limit() >> 10) +
                                 " KiB of diagnostics in this attempt; the rest is dropped"});
  if (admission == NodeLimits::Admission::kDrop) return {};
  if (admission == NodeLimits::Admission::kCut) NodeLimits::cut(message);
  if (const auto* pong = std::get_if<rendezvous::Pong>(&message)) {
    if (node.on_pong(*pong)) node.ping(++ping_sequence_);
    return {};
  }
  if (const auto* hello = std::get_if<rendezvous::Hello>(&message)) {
    node.guess_clock(hello->clock_ns);
    node.ping(++ping_sequence_);
    node.greeted = true;
  }
  return events_.on_message(node, message);
}

void MasterLinks::ping_every(milliseconds interval) {
  spawn(loop_.get_executor(), ping_nodes(interval));
}

Awaitable<> MasterLinks::ping_nodes(milliseconds interval) {
  for (;;) {
    ping_timer_.expires_after(interval);
    co_await ping_timer_.async_wait(kUseTuple);
    if (closed_) co_return;
    events_.before_pings();
    for (const Link& node : links_) {
      if (!node->live()) continue;
      // A Ping proves to the node that its last Pong was heard, and begins a lease
      // (docs/developers/states.md, "Leases"). So no Ping goes to a node that owes a Pong.
      if (node->answered())
        node->ping(++ping_sequence_);
      else if (node->miss_ping() >= kMissedPings)
        node->probe([this, node] {
          if (node->live()) events_.reachable(*node);
        });
    }
  }
}

void MasterLinks::close() {
  closed_ = true;
  cancel_starts();
  for (const Link& node : links_) {
    node->close();
    node->end_timer.cancel();
  }
  for (const auto& sweep : sweeps_) {
    sweep->fan_out->cancel();
    sweep->link->close();
    sweep->link->end_timer.cancel();
  }
  ping_timer_.cancel();
}

}  // namespace ddp::launcher
