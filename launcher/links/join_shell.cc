#include "launcher/links/join_shell.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "base/format_text.h"
#include "base/safe_text.h"
#include "launcher/links/join_link.h"
#include "launcher/links/secure_channel.h"
#include "rendezvous/identity/admission_limiter.h"
#include "rendezvous/secure/secure_acceptor.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// The time from the proof to the node's first line.
constexpr std::chrono::seconds kRequestTime{10};
/// After this time without progress, the user is notified of the awaited nodes.
constexpr std::chrono::seconds kSilence{5};
constexpr std::size_t kMostNamed = 8;
/// The limit of unproven nodes of a large job. A node that fits neither here nor into the kernel's queue
/// (4,096) retries after 1, 3, 7 … s. Each unproven node takes 30 KB.
constexpr std::size_t kMostAtOnce = 1024;

}  // namespace

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
