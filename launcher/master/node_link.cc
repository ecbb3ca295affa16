// Three parts of a link, each usable alone: NodeLimits bounds what a node may send, ReachabilityProbe asks
// the kernel of a silent one, and NodeLink is the link itself.
#include "launcher/master/node_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <limits>
#include <utility>
#include <variant>

#include "base/asio.h"
#include "base/clock.h"
#include "base/exit_status.h"
#include "base/unique_fd.h"
#include "launcher/keeper/keeper.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
namespace {

constexpr std::size_t kShort = 2u << 10;  ///< bytes of a text of cut evidence
constexpr std::size_t kShortest = 256;    ///< of the text of a cut end

Error violation(const char* what) {
  return Error{ErrorCode::kProtocol, std::string("it ") + what, 0};
}

}  // namespace

/// An agent finishes one attempt before the next. Attempt numbers that go back and forth would have no bound.
bool NodeLimits::keep(std::uint32_t attempt, std::size_t bytes) {
  if (attempt > kept_attempt_) {
    kept_attempt_ = attempt;
    kept_ = cut_ = collected_ = 0;
    dropped_ = false;
  }
  const bool fits = attempt == kept_attempt_ && kept_ + bytes <= kept_limit_;
  if (fits) kept_ += bytes;
  return fits;
}

NodeLimits::Admission NodeLimits::keep_or_drop(std::uint32_t attempt, std::size_t bytes, bool collected) {
  if (keep(attempt, bytes)) {
    if (collected) collected_ += bytes;
    return Admission::kTake;
  }
  return std::exchange(dropped_, true) ? Admission::kDrop : Admission::kDropFirst;
}

Result<NodeLimits::Admission> NodeLimits::admit(const rendezvous::Message& message) {
  using namespace rendezvous;
  if (const auto* output = std::get_if<Output>(&message)) {
    if (output->stream != 1 && output->stream != 2) return violation("sent output of an unknown stream");
    taken_[output->stream - 1u] += output->data.size();
  } else if (const auto* inspection = std::get_if<Inspection>(&message)) {
    if (inspection->attempt > inspected_attempt_) inspected_ = 0;
    const bool stale = inspection->attempt < std::exchange(inspected_attempt_, inspection->attempt);
    inspected_ += frame_size(message);
    if (stale || inspected_ > kInspected) return violation("sent more inspection data than allowed");
    // The text goes to a file.
    if (!inspection->last)
      return keep_or_drop(inspection->attempt, sizeof(Inspection) + inspection->state.size(), true);
  } else if (std::holds_alternative<WorkerStarted>(message) ||
             std::holds_alternative<WorkerExited>(message)) {
    worker_updates_ += frame_size(message);
    if (worker_updates_ > kWorkerUpdates)
      return violation("reported more starts and ends of workers than allowed");
    const auto* exited = std::get_if<WorkerExited>(&message);
    if (exited != nullptr && !keep(exited->attempt, exited->text.size())) return Admission::kCut;
  } else if (const auto* evidence = std::get_if<WorkerEvidence>(&message)) {
    const std::size_t size = frame_size(message);
    if (keep(evidence->attempt, size)) return Admission::kTake;
    cut_ += std::min(size, 3 * kShort);
    // Even cut evidence adds up, so it has a budget of the same size of its own.
    if (cut_ <= kept_limit_) return Admission::kCut;
    return std::exchange(dropped_, true) ? Admission::kDrop : Admission::kDropFirst;
  } else if (const auto* dump = std::get_if<WorkerCollectives>(&message)) {
    return keep_or_drop(dump->attempt, frame_size(message), true);
  } else if (const auto* trouble = std::get_if<WorkerInTrouble>(&message)) {
    return keep_or_drop(trouble->attempt, frame_size(message));
  } else if (const auto* hello = std::get_if<Hello>(&message)) {
    if (hello->workers > kWorkers || hello->gpus > kWorkers || hello->cpus > kCpus)
      return violation("reported more workers, GPUs or CPUs than allowed");
    if (frame_size(message) > kKeptAtLeast / 2) return violation("sent a longer hello than allowed");
  } else if (std::holds_alternative<JobAccepted>(message)) {
    if (frame_size(message) > kKeptAtLeast / 2) return violation("sent a longer answer than allowed");
  }
  return Admission::kTake;
}

void NodeLimits::cut(rendezvous::Message& message) {
  const auto shorten = [](std::string& text, std::size_t most) {
    if (text.size() > most) text = text.substr(0, most);  // resize would keep the memory
  };
  if (auto* evidence = std::get_if<rendezvous::WorkerEvidence>(&message)) {
    for (std::string* text : {&evidence->oom, &evidence->xid, &evidence->error_json})
      shorten(*text, kShort);
  } else {
    shorten(std::get<rendezvous::WorkerExited>(message).text, kShortest);
  }
}

std::uint32_t NodeLimits::give_back(std::uint8_t stream) {
  std::uint64_t& taken = taken_[stream - 1u];
  const auto bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(taken, std::numeric_limits<std::uint32_t>::max()));
  taken -= bytes;
  return bytes;
}

NodeLimits::NoticeDecision NodeLimits::notice() {
  if (notices_ > kNotices) return NoticeDecision::kNo;
  return ++notices_ > kNotices ? NoticeDecision::kLast : NoticeDecision::kYes;
}

using asio::ip::tcp;

struct ReachabilityProbe::Attempt {
  Attempt(const asio::any_io_executor& loop, UniqueFd fd, std::function<void()> handler)
      : socket(loop, fd.release()), answered(std::move(handler)) {}

  /// Sends a reset instead of a FIN, so that neither end keeps anything of the connection.
  void close() {
    if (!socket.is_open()) return;
    const linger no_wait{1, 0};
    ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_LINGER, &no_wait, sizeof no_wait);
    error_code ignored;
    socket.close(ignored);
  }

  asio::posix::stream_descriptor socket;
  std::function<void()> answered;
};

void ReachabilityProbe::begin(const std::string& address, std::uint16_t port,
                              std::function<void()> answered) {
  cancel();
  error_code unreadable;
  const tcp::endpoint there(asio::ip::make_address(address, unreadable), port);
  if (unreadable) return;
  UniqueFd fd(::socket(there.protocol().family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // Out of descriptors, or no route: no answer, as if the packets were lost.
  if (!fd || (::connect(fd.get(), there.data(), static_cast<socklen_t>(there.size())) != 0 &&
              errno != EINPROGRESS && errno != ECONNREFUSED))
    return;
  attempt_ = std::make_shared<Attempt>(loop_, std::move(fd), std::move(answered));
  await(attempt_);
}

void ReachabilityProbe::await(const std::shared_ptr<Attempt>& attempt) {
  attempt->socket.async_wait(asio::posix::stream_descriptor::wait_write, [attempt](const error_code& error) {
    if (error || !attempt->socket.is_open()) return;
    if (!is_writable(attempt->socket.native_handle())) return await(attempt);  // base/asio.h
    int result = 0;
    socklen_t size = sizeof result;
    ::getsockopt(attempt->socket.native_handle(), SOL_SOCKET, SO_ERROR, &result, &size);
    attempt->close();
    if (result == 0 || result == ECONNREFUSED) attempt->answered();
  });
}

void ReachabilityProbe::cancel() {
  if (attempt_) std::exchange(attempt_, nullptr)->close();
}

namespace {

using std::chrono::nanoseconds;

/// Successive round trips at the start. The shortest of several is the most exact, and a first failure may
/// come within milliseconds. In a large job they would be most of the master's work.
constexpr int kFirstPings = 8;
constexpr std::size_t kManyNodes = 256;
constexpr int kFirstPingsOfMany = 2;

/// All links together may use about 32 MiB for reads, but a read of a link has 16 KiB at least.
rendezvous::FrameReader::Limits read_limits(std::size_t nodes) {
  const std::size_t most = rendezvous::FrameReader::default_limits().read;
  return {rendezvous::kMaxAgentFrame,
          std::clamp<std::size_t>((16u << 20) / std::max<std::size_t>(nodes, 1), 16u << 10, most)};
}

/// True for the agent's exit codes. Its keeper passes them on only when no process of the node is left
/// (docs/users/exit_codes.md).
bool is_own_code(int status) {
  return status >= 110 && status <= 119;
}

}  // namespace

NodeLink::NodeLink(std::size_t number, asio::any_io_executor executor, const std::string& host,
                   std::uint32_t count, std::size_t nodes)
    : index(number),
      incarnation(count),
      limits(nodes),
      end_timer(executor),
      host_(host),
      error_lines_(host + ": "),
      nodes_(nodes) {}

void NodeLink::open(remote::StartedAgent agent) {
  channel_ = std::move(agent.channel);
  connection_ = std::make_unique<rendezvous::Connection>(end_timer.get_executor(), channel_->stream(),
                                                         agent.first_bytes, read_limits(nodes_));
  live_ = true;
}

void NodeLink::close() {
  live_ = false;
  probe_.reset();
  if (connection_) connection_->close();
}

void NodeLink::send(const rendezvous::Message& message) {
  if (std::holds_alternative<rendezvous::Inspect>(message)) limits.begin_inspection();
  if (live_) connection_->send(message);
}

void NodeLink::ping(std::uint64_t sequence) {
  ping_ = sequence;
  pinged_ = steady_now();
  answered_ = false;
  send(rendezvous::Ping{sequence});
}

void NodeLink::end_silence() {
  missed_pings_ = 0;
  probe_.reset();
}

bool NodeLink::can_be_probed() const {
  return channel_->is_local() || (channel_->port() != 0 && !channel_->address().empty());
}

void NodeLink::probe(std::function<void()> answered) {
  if (channel_->port() == 0) return;
  if (!probe_) probe_ = std::make_unique<ReachabilityProbe>(end_timer.get_executor());
  probe_->begin(channel_->address(), channel_->port(), std::move(answered));
}

bool NodeLink::on_pong(const rendezvous::Pong& pong) {
  // An answer to a Ping that nobody remembers would make a round trip of any length.
  if (pong.sequence != ping_) return false;
  answered_ = true;
  clock_.sample(pinged_, steady_now(), nanoseconds(pong.clock_ns));
  return ++pongs_ < (nodes_ > kManyNodes ? kFirstPingsOfMany : kFirstPings);
}

void NodeLink::guess_clock(std::uint64_t clock_ns) {
  clock_.guess(steady_now(), nanoseconds(clock_ns));
}

nanoseconds NodeLink::to_ours(std::uint64_t clock_ns) const {
  // The offset is exact to half a round trip, so a time of just now may seem to lie ahead.
  return std::min(steady_now(), clock_.to_ours(nanoseconds(clock_ns)));
}

nanoseconds NodeLink::clock_error() const {
  return clock_.error(steady_now());
}

std::string NodeLink::error_lines(std::string_view bytes) {
  std::string lines;
  errors_.feed(bytes);
  if (error_bytes_ > kMostErrors) return lines;
  error_bytes_ += bytes.size();
  error_lines_.add(bytes, lines);
  const bool too_much = error_bytes_ > kMostErrors;
  if (bytes.empty() || too_much) error_lines_.finish(lines);
  if (too_much)
    lines += "ddplaunch: warning: " + host_ + ": more than " + std::to_string(kMostErrors >> 10) +
             " KiB on the stderr of its agent (or of ssh); the rest is dropped\n";
  return lines;
}

/// Returns what the keeper wrote about the agent's end; empty when it wrote nothing.
std::string NodeLink::keeper_says() const {
  std::string words;
  for (const std::string& line : errors_.lines()) {
    if (line.starts_with(kKeeperSays)) words += (words.empty() ? "" : "; ") + line.substr(kKeeperSays.size());
  }
  return words;
}

Awaitable<NodeLink::LinkEnd> NodeLink::explain_end(Error error) {
  LinkEnd end;
  end.why = std::move(error);
  // The master itself ended the link (a protocol error, a limit). The channel has nothing to add.
  if (end.why.code != ErrorCode::kLinkLost) co_return end;
  const remote::ChannelEnd channel = co_await channel_->end();
  // Only exit codes of ddplaunchd count; any other may come from a program in between, such as ssh.
  end.workers_left = channel.status == kExitProcessesLeft;
  end.workers_dead = channel.status && (*channel.status == 0 || is_own_code(*channel.status));
  std::string& text = end.why.text;
  if (channel.broken) {
    text = "the connection was lost: " + channel.broken->text;
  } else if (const std::string keeper =
                 channel.status == kExitAgentLost || channel.status == kExitProcessesLeft ? keeper_says()
                                                                                          : "";
             !keeper.empty()) {
    text = keeper;  // the cause itself; the other lines are on the terminal
    co_return end;
  } else if (channel.status == kExitAgentLost) {
    text =
        "its agent heard nothing from this ddplaunch for --master-timeout, or lost the link, and ended its "
        "workers";
  } else if (channel.status) {
    const int status = *channel.status;
    text = "its agent exited without a report (exit status " + std::to_string(status);
    if (status > 128 && status < 128 + NSIG) text += ", that is " + signal_name(status - 128);
    text += ")";
  }
  if (!errors_.empty()) text += "; its last lines:" + errors_.text();
  co_return end;
}

}  // namespace ddp::launcher
