#include "launcher/links/join_shell.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <utility>

#include "base/text.h"
#include "base/unique_fd.h"
#include "remote/shells/command_shell.h"
#include "rendezvous/identity/link_refusal.h"
#include "rendezvous/secure/secure_link.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using Socket = remote::Channel::Socket;

/// Buffer of an idle link: a heartbeat fits.
constexpr std::size_t kSmall = 512;
/// Buffer of a busy link: a TLS record.
constexpr std::size_t kBlock = 16u << 10;
/// Limit of the kernel's memory for bytes that wait between this object and the owner.
constexpr int kSocketMemory = 64 << 10;
constexpr std::chrono::seconds kPatience{2};

/// The time from the proof to the node's first line.
constexpr std::chrono::seconds kRequestTime{10};
/// After this time without progress, the user is notified of the awaited nodes.
constexpr std::chrono::seconds kSilence{5};
constexpr std::size_t kMostNamed = 8;
/// The limit of unproven nodes of a large job. A node that fits neither here nor into the kernel's queue
/// (4,096) retries after 1, 3, 7 … s. Each unproven node takes 30 KB.
constexpr std::size_t kMostAtOnce = 1024;

}  // namespace

/// The remote stream, for an owner that needs no socket. As on a socket, every end is an end of file; the
/// channel's end() knows more.
class SecureLine::Direct final : public ByteStream {
 public:
  explicit Direct(std::shared_ptr<SecureLine> line) : line_(std::move(line)) {}

  Awaitable<Transferred> read_some(asio::mutable_buffer buffer) override {
    const std::shared_ptr<SecureLine> line = line_;
    const auto [error, count] = co_await line->stream_->read_some(buffer);
    if (count > 0) line->last_heard_ = Clock::now();
    if (error) line->finish(error);
    co_return Transferred{error ? error_code(asio::error::eof) : error, count};
  }
  Awaitable<Transferred> write_some(asio::const_buffer buffer) override {
    return line_->stream_->write_some(buffer);
  }
  void close() override { line_->close(); }

 private:
  std::shared_ptr<SecureLine> line_;
};

SecureLine::SecureLine(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream)
    : stream_(std::move(stream)), local_(loop), over_(loop, Clock::time_point::max()), patience_(loop) {}

Result<Socket> SecureLine::carry() {
  const asio::any_io_executor loop = local_.get_executor();
  auto pair = remote::make_socket_pair(SOCK_NONBLOCK, kSocketMemory);
  if (!pair) return pair.error();
  auto ours = remote::as_socket(loop, std::move(pair->ours));
  if (!ours) return ours.error();
  auto theirs = remote::as_socket(loop, std::move(pair->theirs));
  if (!theirs) return theirs.error();
  local_ = std::move(*ours);
  spawn(loop, inbound(shared_from_this()));
  spawn(loop, outbound(shared_from_this()));
  return theirs;
}

std::unique_ptr<ByteStream> SecureLine::direct() {
  return std::make_unique<Direct>(shared_from_this());
}

/// Call when the owner has nothing more to send or to receive.
void SecureLine::close() {
  silent_ = true;
  stream_->close();
  finish(asio::error::operation_aborted);
}

Awaitable<> SecureLine::inbound(std::shared_ptr<SecureLine> self) {
  std::array<char, kSmall> small;
  std::unique_ptr<char[]> block;
  error_code end;
  while (!end) {
    const asio::mutable_buffer space =
        block ? asio::buffer(block.get(), kBlock) : asio::buffer(small.data(), small.size());
    const auto [failed, count] = co_await self->stream_->read_some(space);
    end = failed;
    if (count == 0) continue;
    self->last_heard_ = Clock::now();
    // No one reads after the owner's end. The peer's bytes are still received, so that the last bytes of both
    // sides do not turn into a reset.
    if (!self->dropped_) {
      const auto [refused, taken] =
          co_await asio::async_write(self->local_, asio::buffer(space.data(), count), kUseTuple);
      (void)refused, (void)taken;
    }
    if (!block && count == kSmall)
      block = std::make_unique_for_overwrite<char[]>(kBlock);
    else if (count < kSmall)
      block.reset();
  }
  self->finish(end);
}

Awaitable<> SecureLine::outbound(std::shared_ptr<SecureLine> self) {
  while (!self->silent_) {
    const auto [error] = co_await self->local_.async_wait(Socket::wait_read, kUseTuple);
    if (error) break;
    const auto block = std::make_unique_for_overwrite<char[]>(kBlock);
    for (;;) {
      const ssize_t count = ::recv(self->local_.native_handle(), block.get(), kBlock, MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) break;
      if (count <= 0) {
        self->silent_ = true;
        break;
      }
      co_await self->write_whole(block.get(), static_cast<std::size_t>(count));
    }
  }
  self->patience_.cancel();
  self->stream_->close();
}

Awaitable<> SecureLine::write_whole(const char* bytes, std::size_t size) {
  while (size > 0 && !unheard_) {
    const auto [error, count] = co_await stream_->write_some(asio::buffer(bytes, size));
    bytes += count;
    size -= count;
    if (error) unheard_ = true;  // the reading task sees the error, too, and its reason
  }
}

void SecureLine::finish(const error_code& error) {
  if (std::exchange(ended_, true)) return;
  if (error != asio::error::eof && !silent_ && !broken_)
    broken_ = Error{ErrorCode::kLinkLost, error.message(), error.value()};
  error_code ignored;
  local_.shutdown(Socket::shutdown_send, ignored);
  over_.cancel();
  if (const auto handler = std::exchange(on_end_, nullptr)) handler();
}

void SecureLine::cut(Error why) {
  if (ended_) return;
  if (!broken_) broken_ = std::move(why);
  stream_->close();
}

void SecureLine::drop() {
  dropped_ = true;
  patience_.expires_after(kPatience);
  patience_.async_wait([self = shared_from_this()](const error_code& cancelled) {
    if (!cancelled) self->stream_->close();
  });
}

SecureChannel::SecureChannel(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream,
                             std::string address)
    : line_(std::make_shared<SecureLine>(loop, std::move(stream))),
      link_(loop),
      errors_(loop),
      address_(std::move(address)) {}

SecureChannel::~SecureChannel() {
  if (!line_->local_.is_open())
    line_->close();
  else if (!line_->silent_)
    line_->drop();
}

remote::Channel::Socket& SecureChannel::link() {
  if (link_.is_open() || line_->local_.is_open() || line_->silent_) return link_;
  auto local = line_->carry();
  if (local) link_ = std::move(*local);
  return link_;
}

std::unique_ptr<ByteStream> SecureChannel::stream() {
  return line_->local_.is_open() ? stream_over(link_) : line_->direct();
}

Awaitable<remote::ChannelEnd> SecureChannel::end() {
  const bool over = co_await wait_until(line_->over_, [this] { return line_->ended_; });
  if (!over) co_return remote::ChannelEnd{std::nullopt, Error{ErrorCode::kCancelled, "cancelled", 0}};
  co_return remote::ChannelEnd{std::nullopt, line_->broken_};
}

namespace {

/// The time for the answer of a master that has accepted the link.
constexpr std::chrono::seconds kAnswerTime{10};
/// The time until a master misses the process that this one replaces; it relies on heartbeats.
constexpr std::chrono::seconds kReplaceTime{6};
constexpr std::chrono::milliseconds kPause{500};

/// Closes a stream at a deadline. Destroying the object cancels the deadline.
class LinkDeadline {
 public:
  LinkDeadline(const asio::any_io_executor& executor, Clock::time_point at, ByteStream& stream)
      : timer_(executor, at) {
    timer_.async_wait([late = std::weak_ptr<bool>(late_), &stream](const error_code& cancelled) {
      const auto alive = late.lock();
      if (cancelled || !alive) return;
      *alive = true;
      stream.close();
    });
  }
  bool late() const { return *late_; }

 private:
  std::shared_ptr<bool> late_ = std::make_shared<bool>(false);
  asio::steady_timer timer_;
};

/// One link, and the master's answer. `again`: no answer arrived, so the caller may try again.
struct JoinReply {
  std::unique_ptr<ByteStream> stream;
  JoinAnswer answer;
  std::optional<Error> error;
  bool again = false;
};

Awaitable<JoinReply> ask(std::shared_ptr<const rendezvous::SecureContext> context,
                         const rendezvous::Resolve& resolve, const JoinGoal& goal,
                         Clock::time_point deadline) {
  JoinReply reply;
  auto stream =
      co_await rendezvous::secure_join(std::move(context), resolve, goal.host, goal.port, goal.as, deadline);
  if (!stream) {
    reply.error = stream.error();
    co_return reply;
  }
  reply.stream = std::move(*stream);
  const auto executor = co_await asio::this_coro::executor;
  const LinkDeadline limit(executor, std::min(deadline, Clock::now() + kAnswerTime), *reply.stream);
  const error_code unsaid = co_await write_line(*reply.stream, request_line(goal.request));
  auto line = co_await read_line(*reply.stream);
  if (!line) {
    reply.again = unsaid || limit.late() || line.error().code == ErrorCode::kLinkLost;
    reply.error = Error{limit.late() ? ErrorCode::kTimeout : line.error().code,
                        format_endpoint(goal.host, goal.port) + " accepted the link but assigned no slot: " +
                            (limit.late() ? std::string("it did not answer in time") : line.error().text),
                        0};
    co_return reply;
  }
  auto answer = parse_answer(*line);
  if (answer)
    reply.answer = std::move(*answer);
  else
    reply.error = within(format_endpoint(goal.host, goal.port), answer.error());
  co_return reply;
}

ErrorCode code_of(JoinRefusal refusal) {
  return refusal == JoinRefusal::kOtherVersion ? ErrorCode::kAgentMismatch : ErrorCode::kUsage;
}

}  // namespace

Awaitable<Result<JoinedLink>> join_master(std::shared_ptr<const rendezvous::SecureContext> context,
                                          const rendezvous::Resolve& resolve, const JoinGoal& goal,
                                          Clock::time_point deadline) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  std::optional<Clock::time_point> replaced_by;
  for (;;) {
    JoinReply reply = co_await ask(context, resolve, goal, deadline);
    if (!reply.error && reply.answer.rank) {
      JoinedLink link;
      link.stream = std::move(reply.stream);
      link.rank = *reply.answer.rank;
      link.job_id = std::move(reply.answer.job_id);
      co_return link;
    }
    Error error =
        reply.error
            ? *reply.error
            : Error{code_of(reply.answer.refusal),
                    format_endpoint(goal.host, goal.port) + " refused this node: " + reply.answer.text, 0};
    bool again = reply.again;
    const bool occupied =
        reply.answer.refusal == JoinRefusal::kTaken || reply.answer.refusal == JoinRefusal::kFull;
    if (!reply.error && occupied) {
      if (!replaced_by) replaced_by = Clock::now() + kReplaceTime;
      again = Clock::now() < *replaced_by;
    }
    if (!again || Clock::now() + kPause >= deadline) co_return error;
    reply.stream.reset();
    timer.expires_after(kPause);
    co_await timer.async_wait(kUseTuple);
  }
}

Awaitable<error_code> write_line(ByteStream& stream, std::string bytes) {
  std::size_t sent = 0;
  error_code error;
  while (!error && sent < bytes.size()) {
    const auto [failed, count] =
        co_await stream.write_some(asio::buffer(bytes.data() + sent, bytes.size() - sent));
    sent += count;
    error = failed;
  }
  co_return error;
}

Awaitable<Result<std::string>> read_line(ByteStream& stream) {
  std::array<char, kMaxJoinLine> buffer;
  std::size_t size = 0;
  while (size < buffer.size()) {
    const auto [error, count] =
        co_await stream.read_some(asio::buffer(buffer.data() + size, buffer.size() - size));
    const std::string_view all(buffer.data(), size + count);
    size += count;
    const std::size_t newline = all.find('\n');
    if (newline + 1 == size && newline != std::string_view::npos)
      co_return std::string(all.substr(0, newline));
    if (newline != std::string_view::npos)
      co_return Error{ErrorCode::kProtocol, "unexpected data after the first line", 0};
    if (error) {
      co_return Error{size == 0 ? ErrorCode::kLinkLost : ErrorCode::kProtocol,
                      error == asio::error::eof ? "the other side closed the connection" : error.message(),
                      0};
    }
  }
  co_return Error{ErrorCode::kProtocol, "its first line is too long", 0};
}

/// The port and the slots; shared with the tasks that greet joined nodes.
struct JoinShell::ListenerState : std::enable_shared_from_this<JoinShell::ListenerState> {
  /// One node's slot.
  struct LinkSlot {
    std::unique_ptr<SecureChannel> waiting;       ///< joined, but not opened yet
    std::weak_ptr<SecureLine> line;               ///< of the last link
    std::vector<asio::steady_timer*> awaited_by;  ///< open() calls; cancelled when the node has joined
  };

  ListenerState(const asio::any_io_executor& executor, Options chosen)
      : loop(executor),
        options(std::move(chosen)),
        table(options.terms),
        slots(static_cast<std::size_t>(options.terms.nodes)),
        silence(executor, kSilence) {}

  Result<> start();
  void stop();
  static Awaitable<> greet(std::shared_ptr<ListenerState> shared, std::unique_ptr<ByteStream> stream,
                           JoinTable::JoiningPeer peer);
  JoinTable::Decision decide(const JoinRequest& request, const JoinTable::JoiningPeer& peer);
  void take_slot(std::unique_ptr<ByteStream> stream, const JoinTable::Decision& decision,
                 const JoinTable::JoiningPeer& peer);
  void report_awaited_nodes();
  void note(const std::string& line) const {
    if (!stopped && options.on_note) options.on_note(line);
  }
  void note_refused(std::optional<JoinRefusal> why, const JoinTable::JoiningPeer& peer, std::string line) {
    const auto passed = refusals.pass(why, peer.address, std::move(line), Clock::now());
    if (passed) note(*passed);
  }

  asio::any_io_executor loop;
  Options options;
  JoinTable table;
  std::vector<LinkSlot> slots;  ///< by rank
  std::shared_ptr<rendezvous::SecureAcceptor> acceptor;
  std::map<const ByteStream*, ByteStream*> greeted;  ///< streams of running greet() calls
  std::string last_refusal;
  rendezvous::LineLimit<std::optional<JoinRefusal>> refusals;  ///< unset: the request was invalid
  asio::steady_timer silence;
  bool stopped = false;
};

Result<> JoinShell::ListenerState::start() {
  auto context = rendezvous::SecureContext::make();
  if (!context) return context.error();
  rendezvous::SecureAcceptorOptions acceptor_options;
  acceptor_options.where = options.where;
  acceptor_options.token = std::move(options.token);
  acceptor_options.limits.waiting =
      std::max(acceptor_options.limits.waiting, std::min(slots.size(), kMostAtOnce));
  acceptor_options.admits =
      [job =
           options.link_job](const rendezvous::LinkIdentity& who) -> std::optional<rendezvous::LinkRefusal> {
    if (who.role != rendezvous::LinkRole::kAgent) return rendezvous::LinkRefusal::kOtherRole;
    if (who.job != job) return rendezvous::LinkRefusal::kOtherJob;
    return std::nullopt;
  };
  rendezvous::SecureAcceptorCallbacks callbacks;
  callbacks.on_joined = [weak = weak_from_this()](std::unique_ptr<ByteStream> stream,
                                                  const rendezvous::LinkIdentity& who,
                                                  const asio::ip::address& address) {
    const auto shared = weak.lock();
    if (!shared || shared->stopped) return;
    JoinTable::JoiningPeer peer{who.node, address.to_string()};
    spawn(shared->loop, greet(shared, std::move(stream), std::move(peer)));
  };
  callbacks.on_note = [weak = weak_from_this()](const std::string& line) {
    const auto shared = weak.lock();
    if (!shared) return;
    shared->last_refusal = line;
    shared->note(line);
  };
  auto made = rendezvous::SecureAcceptor::start(loop, std::move(*context), std::move(options.listener),
                                                std::move(acceptor_options), std::move(callbacks));
  if (!made) return made.error();
  acceptor = std::move(*made);
  silence.async_wait([weak = weak_from_this()](const error_code& cancelled) {
    if (const auto shared = weak.lock(); shared && !cancelled) shared->report_awaited_nodes();
  });
  return {};
}

/// Notifies the user once of the nodes that a slow start awaits.
void JoinShell::ListenerState::report_awaited_nodes() {
  std::vector<int> nodes;
  for (std::size_t i = 1; i < slots.size(); ++i)
    if (!slots[i].awaited_by.empty()) nodes.push_back(static_cast<int>(i));
  if (nodes.empty()) return;
  note("waiting for the ddplaunch of node " + format_number_set(nodes, kMostNamed) + " at " + options.where +
       options.reach);
}

void JoinShell::ListenerState::stop() {
  stopped = true;
  silence.cancel();
  if (acceptor) acceptor->stop();
  for (const auto& [key, stream] : greeted)
    stream->close();
  for (LinkSlot& slot : slots) {
    slot.waiting.reset();
    for (asio::steady_timer* timer : slot.awaited_by)
      timer->cancel();
  }
}

Awaitable<> JoinShell::ListenerState::greet(std::shared_ptr<ListenerState> shared,
                                            std::unique_ptr<ByteStream> stream, JoinTable::JoiningPeer peer) {
  ByteStream* const raw = stream.get();
  shared->greeted[raw] = raw;
  std::optional<JoinTable::Decision> decision;
  bool said = false;
  {
    const LinkDeadline limit(shared->loop, Clock::now() + kRequestTime, *raw);
    const auto line = co_await read_line(*raw);
    const auto request = line ? parse_request(*line) : Result<JoinRequest>(line.error());
    if (!request) {
      shared->note_refused(std::nullopt, peer,
                           peer.address + " (" + peer.name +
                               ") joined but sent an invalid request: " + request.error().text + "; closed");
    } else if (!shared->stopped) {
      decision = shared->decide(*request, peer);
      const error_code failed = co_await write_line(*raw, answer_line(decision->answer));
      said = !failed;
    }
  }
  shared->greeted.erase(raw);
  if (decision && decision->answer.rank && said && !shared->stopped) {
    shared->take_slot(std::move(stream), *decision, peer);
  } else {
    if (decision && decision->answer.rank) shared->table.ended(*decision->answer.rank, decision->incarnation);
    raw->close();
  }
  if (!shared->stopped) shared->acceptor->descriptor_freed();
}

JoinTable::Decision JoinShell::ListenerState::decide(const JoinRequest& request,
                                                     const JoinTable::JoiningPeer& peer) {
  for (const int rank : table.about(request, peer)) {
    if (const auto line = slots[static_cast<std::size_t>(rank)].line.lock(); line && !line->ended())
      table.heard(rank, line->last_heard());
  }
  JoinTable::Decision decision = table.join(request, peer, Clock::now());
  if (!decision.answer.rank) {
    last_refusal = one_line(peer.address + " (" + peer.name + ") was refused: " + decision.answer.text);
    note_refused(decision.answer.refusal, peer, last_refusal);
  } else if (decision.displaces) {
    LinkSlot& slot = slots[static_cast<std::size_t>(*decision.answer.rank)];
    slot.waiting.reset();
    if (const auto line = slot.line.lock()) {
      line->cut(Error{ErrorCode::kLinkLost, "replaced by another ddplaunch, from " + peer.address, 0});
    }
  }
  return decision;
}

void JoinShell::ListenerState::take_slot(std::unique_ptr<ByteStream> stream,
                                         const JoinTable::Decision& decision,
                                         const JoinTable::JoiningPeer& peer) {
  const int rank = *decision.answer.rank;
  LinkSlot& slot = slots[static_cast<std::size_t>(rank)];
  slot.waiting = std::make_unique<SecureChannel>(loop, std::move(stream), peer.address);
  slot.line = slot.waiting->line();
  slot.line.lock()->on_end([weak = weak_from_this(), rank, incarnation = decision.incarnation] {
    const auto shared = weak.lock();
    if (!shared || shared->stopped) return;
    shared->table.ended(rank, incarnation);
    shared->acceptor->descriptor_freed();
  });
  if (slot.awaited_by.empty()) (void)slot.waiting->link();  // so that its end is noticed
  for (asio::steady_timer* timer : slot.awaited_by)
    timer->cancel();
}

Result<std::unique_ptr<JoinShell>> JoinShell::make(const asio::any_io_executor& loop, Options options) {
  auto shared = std::make_shared<ListenerState>(loop, std::move(options));
  if (auto started = shared->start(); !started) return started.error();
  return std::unique_ptr<JoinShell>(new JoinShell(std::move(shared)));
}

JoinShell::JoinShell(std::shared_ptr<ListenerState> shared) : shared_(std::move(shared)) {}

JoinShell::~JoinShell() {
  shared_->stop();
}

Awaitable<Result<std::unique_ptr<remote::Channel>>> JoinShell::open(remote::Host host,
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
  std::string text = "no ddplaunch of node " + std::to_string(*rank) + " has joined at " +
                     shared->options.where + shared->options.reach +
                     "; start it there with the MASTER_ADDR and MASTER_PORT of this node";
  if (!shared->last_refusal.empty()) text += ". Last refused node: " + shared->last_refusal;
  co_return Error{ErrorCode::kTimeout, std::move(text), 0};
}

}  // namespace ddp::launcher
