#include "launcher/node_link.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/exit_status.h"
#include "launcher/keeper.h"

namespace ddp::launcher {
namespace {

using std::chrono::nanoseconds;

/// Round trips in a row at the start: the shortest of several is near the truth, and a first failure may come
/// within milliseconds.
constexpr int kFirstPings = 8;

nanoseconds now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}  // namespace

NodeLink::NodeLink(std::size_t number, asio::any_io_executor executor, const std::string& host,
                   std::size_t credit)
    : index(number), limits(credit), end_timer(executor), error_lines_(host + ": ") {}

void NodeLink::open(remote::StartedAgent agent) {
  channel_ = std::move(agent.channel);
  connection_ = std::make_unique<rendezvous::Connection>(channel_->link().get_executor(),
                                                         stream_over(channel_->link()), agent.first_bytes);
  live_ = true;
}

void NodeLink::close() {
  live_ = false;
  if (connection_) connection_->close();
}

void NodeLink::send(const rendezvous::Message& message) {
  if (live_) connection_->send(message);
}

void NodeLink::ping(std::uint64_t sequence) {
  ping_ = sequence;
  pinged_ = now();
  send(rendezvous::Ping{sequence});
}

bool NodeLink::on_pong(const rendezvous::Pong& pong) {
  if (pong.sequence != ping_) return false;
  clock_.sample(pinged_, now(), nanoseconds(pong.clock_ns));
  return ++pongs_ < kFirstPings;
}

void NodeLink::guess_clock(std::uint64_t clock_ns) {
  clock_.guess(now(), nanoseconds(clock_ns));
}

nanoseconds NodeLink::to_ours(std::uint64_t clock_ns) const {
  return std::min(now(), clock_.to_ours(nanoseconds(clock_ns)));
}

nanoseconds NodeLink::clock_error() const {
  return clock_.error(now());
}

std::string NodeLink::error_lines(std::string_view bytes) {
  std::string lines;
  errors_.feed(bytes);
  if (bytes.empty()) {
    error_lines_.finish(lines);
  } else {
    error_lines_.add(bytes, lines);
  }
  return lines;
}

/// What became of the agent, in its keeper's words; empty when it said nothing.
std::string NodeLink::keeper_says() const {
  std::string words;
  for (const std::string& line : errors_.lines()) {
    if (words.empty() && line.starts_with(kKeeperSays)) words = line.substr(kKeeperSays.size());
  }
  return words;
}

Awaitable<Error> NodeLink::explain_end(Error error) {
  if (error.code != ErrorCode::kLinkLost) co_return error;
  const remote::ChannelEnd end = co_await channel_->end();
  if (end.broken) {
    error.text = "the connection was lost: " + end.broken->text;
  } else if (const std::string keeper = end.status == kExitAgentLost ? keeper_says() : ""; !keeper.empty()) {
    error.text = keeper;  // the cause itself; the other lines are on the terminal
    co_return error;
  } else if (end.status) {
    const int status = *end.status;
    error.text = "its agent ended without a word (exit status " + std::to_string(status);
    if (status > 128 && status < 128 + NSIG) error.text += ", that is " + signal_name(status - 128);
    error.text += ")";
  }
  if (!errors_.empty()) error.text += "; its last words:" + errors_.text();
  co_return error;
}

}  // namespace ddp::launcher
