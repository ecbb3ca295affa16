#include "launcher/master/master_links.h"

#include <array>
#include <numeric>
#include <utility>

#include "launcher/report/clean_text.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

/// The first pings would be most of the master's work at the start of a large job.
constexpr std::size_t kManyNodes = 256;
constexpr int kFirstPingsOfMany = 2;
/// A node is probed from this number of missed Pings on: after 3 s, with the usual interval.
constexpr int kMissedPings = 3;
/// Time from the end of a link to the end of its channel.
constexpr std::chrono::seconds kEndTime{2};

}  // namespace

MasterLinks::MasterLinks(asio::io_context& loop, const std::vector<remote::Host>& hosts, std::size_t count,
                         remote::RemoteShell& remote, remote::RemoteShell& local,
                         remote::FanOutOptions options, NodeEvents& events)
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
  return std::make_shared<NodeLink>(node, loop_.get_executor(), name, incarnation,
                                    size() > kManyNodes ? kFirstPingsOfMany : NodeLink::kFirstPings);
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
  links_[node]->limits = old->limits;
  links_[node]->limits.begin_incarnation();
  start({node}, limit);
}

void MasterLinks::start(std::vector<std::size_t> nodes, milliseconds limit) {
  remote::FanOutOptions options = options_;
  options.deadline = std::chrono::steady_clock::now() + limit;
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

// ---- links

Awaitable<> MasterLinks::read_link(Link node) {
  Result<> good;
  while (good) {
    good = take_messages(*node);
    events_.all_taken(*node);
    if (good) good = co_await node->connection().read_more();
    if (!good) break;
    node->heard();
    events_.heard(*node);
  }
  node->close();
  // The end of the channel gives a better reason, but it may never come: a host can die in between.
  const Error plain = good.error();
  events_.link_broken(*node, plain);
  node->end_timer.expires_after(kEndTime);
  node->end_timer.async_wait([this, node, plain](const error_code& cancelled) {
    if (!cancelled) gone(*node, NodeLink::LinkEnd{plain});
  });
  NodeLink::LinkEnd end = co_await node->explain_end(plain);
  gone(*node, std::move(end));
}

void MasterLinks::gone(NodeLink& node, NodeLink::LinkEnd end) {
  node.end_timer.cancel();
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

Result<> MasterLinks::take_messages(NodeLink& node) {
  for (;;) {
    auto message = node.connection().next();
    if (!message) return message.error();
    if (!*message) return {};
    clean_texts(**message);
    if (auto good = take(node, **message); !good) return good;
  }
}

Result<> MasterLinks::take(NodeLink& node, const rendezvous::Message& message) {
  if (auto fine = node.limits.admit(message); !fine) return fine;
  if (const auto* pong = std::get_if<rendezvous::Pong>(&message)) {
    if (pong->sequence == rendezvous::kAsleep) {
      node.asleep = true;
      events_.agent_asleep();
    } else if (node.on_pong(*pong) && !paused_) {
      node.ping(++ping_sequence_);
    }
    return {};
  }
  if (const auto* hello = std::get_if<rendezvous::Hello>(&message)) {
    node.guess_clock(hello->clock_ns);
    node.ping(++ping_sequence_);
    node.greeted = true;
  }
  return events_.take(node, message);
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
    if (paused_) continue;
    for (const Link& node : links_) {
      if (!node->live()) continue;
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
  ping_timer_.cancel();
}

}  // namespace ddp::launcher
