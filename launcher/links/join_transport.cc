#include "launcher/links/join_transport.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using rendezvous::JoinedPeer;
using rendezvous::LinkRefusal;

/// A waiting node sends its hello, which is smaller. Then it sends nothing until the master has opened its
/// link.
constexpr std::size_t kMostEarly = 128u << 10;

/// After this time without progress, the user is notified of the awaited nodes.
constexpr std::chrono::seconds kSilence{5};
constexpr std::size_t kMostNamed = 8;
/// The limit of unproven nodes of a large job. A node that fits neither here nor into the kernel's queue
/// (4,096) retries after 1, 3, 7 … s. Each unproven node takes 30 KB.
constexpr std::size_t kMostAtOnce = 1024;

}  // namespace

class SecureLine::Owned final : public ByteStream {
 public:
  explicit Owned(std::shared_ptr<SecureLine> line) : line_(std::move(line)) {}

  Awaitable<Transferred> read_some(asio::mutable_buffer buffer) override { return line_->read_some(buffer); }
  Awaitable<Transferred> write_some(asio::const_buffer buffer) override {
    return line_->stream_->write_some(buffer);
  }
  void close() override { line_->close(); }

 private:
  std::shared_ptr<SecureLine> line_;
};

SecureLine::SecureLine(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream)
    : stream_(std::move(stream)), changed_(loop, Clock::time_point::max()) {}

std::unique_ptr<ByteStream> SecureLine::stream() {
  return std::make_unique<Owned>(shared_from_this());
}

Awaitable<> SecureLine::read_ahead(std::shared_ptr<SecureLine> self) {
  self->reading_ahead_ = true;
  std::array<char, 4096> buffer;
  error_code error;
  while (!error && !self->opened_ && self->early_.size() < kMostEarly) {
    const auto [failed, count] = co_await self->stream_->read_some(asio::buffer(buffer));
    error = failed;
    if (count > 0) self->last_heard_ = Clock::now();
    self->early_.append(buffer.data(), count);
    self->changed_.cancel();
  }
  self->reading_ahead_ = false;
  if (error) self->finish(error);
}

Awaitable<ByteStream::Transferred> SecureLine::read_some(asio::mutable_buffer buffer) {
  const std::shared_ptr<SecureLine> self = shared_from_this();
  opened_ = true;
  // A stream has one reader at a time: the read that read_ahead() has begun brings the next bytes.
  while (reading_ahead_ && early_.empty())
    co_await changed_.async_wait(kUseTuple);
  if (!early_.empty()) {
    const std::size_t count = std::min(buffer.size(), early_.size());
    std::memcpy(buffer.data(), early_.data(), count);
    early_.erase(0, count);
    if (early_.empty()) early_.shrink_to_fit();
    co_return ByteStream::Transferred{error_code(), count};
  }
  if (ended_) co_return ByteStream::Transferred{asio::error::eof, 0};
  const auto [error, count] = co_await stream_->read_some(buffer);
  if (count > 0) last_heard_ = Clock::now();
  if (error) finish(error);
  co_return ByteStream::Transferred{error ? error_code(asio::error::eof) : error, count};
}

void SecureLine::close() {
  closed_ = true;
  stream_->close();
  finish(asio::error::operation_aborted);
}

void SecureLine::finish(const error_code& error) {
  if (std::exchange(ended_, true)) return;
  if (error != asio::error::eof && !closed_ && !broken_)
    broken_ = Error{ErrorCode::kLinkLost, error.message(), error.value()};
  changed_.cancel();
  if (const auto handler = std::exchange(on_end_, nullptr)) handler();
}

void SecureLine::cut(Error why) {
  if (ended_) return;
  if (!broken_) broken_ = std::move(why);
  stream_->close();
}

SecureChannel::SecureChannel(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream,
                             std::string address)
    : line_(std::make_shared<SecureLine>(loop, std::move(stream))),
      none_(loop),
      address_(std::move(address)) {}

Awaitable<remote::ChannelEnd> SecureChannel::end() {
  const bool over = co_await wait_until(line_->changed_, [this] { return line_->ended_; });
  if (!over) co_return remote::ChannelEnd{std::nullopt, Error{ErrorCode::kCancelled, "cancelled", 0}};
  co_return remote::ChannelEnd{std::nullopt, line_->broken_};
}

/// The port and the slots; shared with the tasks that answer joined nodes.
struct JoinTransport::ListenerState : std::enable_shared_from_this<JoinTransport::ListenerState> {
  /// One node's slot.
  struct LinkSlot {
    std::unique_ptr<SecureChannel> waiting;       ///< joined, but not opened yet
    std::weak_ptr<SecureLine> line;               ///< of the last link
    std::vector<asio::steady_timer*> awaited_by;  ///< open() calls; cancelled when the node has joined
  };

  ListenerState(const asio::any_io_executor& executor, const Options& options)
      : loop(executor),
        where(options.port.where + options.reach),
        table(options.terms),
        slots(static_cast<std::size_t>(options.terms.nodes)),
        silence(executor, kSilence) {}

  Result<> start(rendezvous::SecureAcceptorOptions port);
  void stop();
  static Awaitable<> answer(std::shared_ptr<ListenerState> shared, JoinedPeer peer);
  JoinTable::Decision decide(const JoinedPeer& peer);
  void take_slot(JoinedPeer peer, const JoinTable::Decision& decision);
  void report_awaited_nodes();

  asio::any_io_executor loop;
  std::string where;  ///< of the port, with the advice
  JoinTable table;
  std::vector<LinkSlot> slots;  ///< by rank
  std::shared_ptr<rendezvous::SecureAcceptor> acceptor;
  std::function<void(const std::string&)> note = [](const std::string&) {};  ///< passes a line to the user
  std::string last_refusal;
  asio::steady_timer silence;
  bool stopped = false;
};

Result<> JoinTransport::ListenerState::start(rendezvous::SecureAcceptorOptions port) {
  port.limits.waiting = std::max(port.limits.waiting, std::min(slots.size(), kMostAtOnce));
  if (port.on_note) note = std::move(port.on_note);
  port.on_joined = [weak = weak_from_this()](JoinedPeer peer) {
    const auto shared = weak.lock();
    if (shared && !shared->stopped) spawn(shared->loop, answer(shared, std::move(peer)));
  };
  port.on_note = [weak = weak_from_this()](const std::string& line) {
    const auto shared = weak.lock();
    if (!shared) return;
    shared->last_refusal = line;
    shared->note(line);
  };
  acceptor = DDP_TRY(rendezvous::SecureAcceptor::start(loop, std::move(port)));
  silence.async_wait([weak = weak_from_this()](const error_code& cancelled) {
    const auto shared = weak.lock();
    if (shared && !cancelled && !shared->stopped) shared->report_awaited_nodes();
  });
  return {};
}

/// Notifies the user once of the nodes that a slow start awaits.
void JoinTransport::ListenerState::report_awaited_nodes() {
  std::vector<int> nodes;
  for (std::size_t i = 1; i < slots.size(); ++i)
    if (!slots[i].awaited_by.empty()) nodes.push_back(static_cast<int>(i));
  if (nodes.empty()) return;
  note("waiting for the ddplaunch of node " + format_number_set(nodes, kMostNamed) + " at " + where);
}

void JoinTransport::ListenerState::stop() {
  stopped = true;
  silence.cancel();
  if (acceptor) acceptor->stop();
  for (LinkSlot& slot : slots) {
    slot.waiting.reset();
    for (asio::steady_timer* timer : slot.awaited_by)
      timer->cancel();
  }
}

Awaitable<> JoinTransport::ListenerState::answer(std::shared_ptr<ListenerState> shared, JoinedPeer peer) {
  // The table assigns the rank before the answer is written: nodes that join meanwhile must not get it.
  const JoinTable::Decision decision = shared->decide(peer);
  const error_code unsaid = co_await rendezvous::write_line(*peer.stream, answer_line(decision.answer));
  if (shared->stopped) co_return;
  const bool joined =
      decision.answer.rank && shared->table.is_latest(*decision.answer.rank, decision.incarnation);
  if (joined && !unsaid) {
    shared->take_slot(std::move(peer), decision);
  } else {
    if (decision.answer.rank) shared->table.ended(*decision.answer.rank, decision.incarnation);
    peer.stream->close();
  }
  shared->acceptor->descriptor_freed();
}

JoinTable::Decision JoinTransport::ListenerState::decide(const JoinedPeer& peer) {
  const JoinTable::JoiningPeer node{peer.who.node, peer.address.to_string()};
  const auto last_heard = [this](int rank) {
    const auto line = slots[static_cast<std::size_t>(rank)].line.lock();
    return line ? line->last_heard() : Clock::time_point::min();
  };
  JoinTable::Decision decision = table.join(peer.hello, node, Clock::now(), last_heard);
  if (!decision.answer.rank) {
    last_refusal = one_line(node.address + " (" + node.name + ") was refused: " + decision.answer.text);
    acceptor->note(decision.answer.refusal, node.address, last_refusal);
  } else if (decision.displaces) {
    LinkSlot& slot = slots[static_cast<std::size_t>(*decision.answer.rank)];
    slot.waiting.reset();
    if (const auto line = slot.line.lock()) {
      line->cut(Error{ErrorCode::kLinkLost, "replaced by another ddplaunch, from " + node.address, 0});
    }
  }
  return decision;
}

void JoinTransport::ListenerState::take_slot(JoinedPeer peer, const JoinTable::Decision& decision) {
  const int rank = *decision.answer.rank;
  LinkSlot& slot = slots[static_cast<std::size_t>(rank)];
  slot.waiting = std::make_unique<SecureChannel>(loop, std::move(peer.stream), peer.address.to_string());
  slot.line = slot.waiting->line();
  const auto line = slot.line.lock();
  line->on_end([weak = weak_from_this(), rank, incarnation = decision.incarnation] {
    const auto shared = weak.lock();
    if (!shared || shared->stopped) return;
    shared->table.ended(rank, incarnation);
    shared->acceptor->descriptor_freed();
  });
  // A waiting open() has the link read at once. Else only reading ahead shows that the node has left.
  if (slot.awaited_by.empty()) line->watch();
  for (asio::steady_timer* timer : slot.awaited_by)
    timer->cancel();
}

Result<std::unique_ptr<JoinTransport>> JoinTransport::make(const asio::any_io_executor& loop,
                                                           Options options) {
  auto shared = std::make_shared<ListenerState>(loop, options);
  DDP_TRY(shared->start(std::move(options.port)));
  return std::unique_ptr<JoinTransport>(new JoinTransport(std::move(shared)));
}

JoinTransport::JoinTransport(std::shared_ptr<ListenerState> shared) : shared_(std::move(shared)) {}

JoinTransport::~JoinTransport() {
  shared_->stop();
}

Awaitable<Result<std::unique_ptr<remote::Channel>>> JoinTransport::open(remote::Host host,
                                                                        std::vector<std::string> argv,
                                                                        remote::Deadline deadline) {
  (void)argv;  // the node runs its own agent
  const std::shared_ptr<ListenerState> shared = shared_;
  const auto rank = join_host_rank(host.name);
  if (!rank || *rank < 1 || static_cast<std::size_t>(*rank) >= shared->slots.size())
    co_return Error{ErrorCode::kInternal,
                    host.name + ": internal error: not a node of per-node mode (please report)", 0};
  ListenerState::LinkSlot& slot = shared->slots[static_cast<std::size_t>(*rank)];
  co_await asio::this_coro::throw_if_cancelled(false);
  asio::steady_timer timer(shared->loop, deadline);
  bool cancelled = false;
  while (!cancelled && !shared->stopped) {
    // Before the look at the clock: a node that joined just in time counts.
    if (slot.waiting) {
      const auto line = slot.line.lock();
      std::unique_ptr<remote::Channel> channel = std::move(slot.waiting);
      if (line && !line->ended()) {
        shared->table.opened(*rank, Clock::now());
        co_return channel;
      }
      channel.reset();  // the node has joined and left
    }
    if (Clock::now() >= deadline) break;
    slot.awaited_by.push_back(&timer);
    co_await timer.async_wait(kUseTuple);
    std::erase(slot.awaited_by, &timer);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    cancelled = state.cancelled() != asio::cancellation_type::none;
  }
  if (cancelled || shared->stopped) co_return Error{ErrorCode::kCancelled, host.name + ": cancelled", 0};
  std::string text = "no ddplaunch of node " + std::to_string(*rank) + " has joined at " + shared->where +
                     "; start it there with the MASTER_ADDR and MASTER_PORT of this node";
  if (!shared->last_refusal.empty()) text += ". Last refused node: " + shared->last_refusal;
  co_return Error{ErrorCode::kTimeout, std::move(text), 0};
}

}  // namespace ddp::launcher
