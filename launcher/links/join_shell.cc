#include "launcher/links/join_shell.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "base/safe_text.h"
#include "launcher/links/join_link.h"
#include "launcher/links/secure_channel.h"
#include "rendezvous/identity/listen_guard.h"
#include "rendezvous/secure/secure_acceptor.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// From the proof to the node's first line.
constexpr std::chrono::seconds kRequestTime{10};
/// Without a word that long the user wonders.
constexpr std::chrono::seconds kSilence{5};
constexpr std::size_t kMostNamed = 8;
/// Unproven nodes of a large job. Whom neither we nor the kernel's queue (4,096) has room for comes again
/// after 1, 3, 7 … s; but each of them takes 30 KB until it is proven.
constexpr std::size_t kMostAtOnce = 1024;

void rethrow(const std::exception_ptr& failure) {
  if (failure) std::rethrow_exception(failure);  // a broken invariant
}

}  // namespace

/// The port and the places; shared with the tasks that greet who has just joined.
struct JoinShell::Door : std::enable_shared_from_this<JoinShell::Door> {
  /// One node's place.
  struct Place {
    std::unique_ptr<SecureChannel> waiting;       ///< joined, and not asked for yet
    std::weak_ptr<SecureLine> line;               ///< of the last link
    std::vector<asio::steady_timer*> awaited_by;  ///< open() calls; cancelled when somebody has come
  };

  Door(const asio::any_io_executor& executor, Options chosen)
      : loop(executor),
        options(std::move(chosen)),
        table(options.mine),
        places(static_cast<std::size_t>(options.mine.nodes)),
        silence(executor, kSilence) {}

  Result<> start();
  void stop();
  static Awaitable<> greet(std::shared_ptr<Door> door, std::unique_ptr<ByteStream> stream,
                           JoinTable::Peer peer);
  JoinTable::Decision decide(const JoinRequest& request, const JoinTable::Peer& peer);
  void seat(std::unique_ptr<ByteStream> stream, const JoinTable::Decision& decision,
            const JoinTable::Peer& peer);
  void tell_who_is_awaited();
  void note(const std::string& line) const {
    if (!stopped && options.on_note) options.on_note(line);
  }
  void note_refused(std::optional<JoinRefusal> why, const JoinTable::Peer& peer, std::string line) {
    const auto passed = refusals.pass(why, peer.address, std::move(line), Clock::now());
    if (passed) note(*passed);
  }

  asio::any_io_executor loop;
  Options options;
  JoinTable table;
  std::vector<Place> places;  ///< by rank
  std::shared_ptr<rendezvous::SecureAcceptor> acceptor;
  std::map<const ByteStream*, ByteStream*> greeted;  ///< those that are being spoken with
  std::string last_refusal;
  rendezvous::LineLimit<std::optional<JoinRefusal>> refusals;  ///< unset: it said nothing that a node says
  asio::steady_timer silence;
  bool stopped = false;
};

Result<> JoinShell::Door::start() {
  auto context = rendezvous::SecureContext::make();
  if (!context) return context.error();
  rendezvous::SecureAcceptorOptions guard;
  guard.where = options.where;
  guard.token = std::move(options.token);
  guard.limits.waiting = std::max(guard.limits.waiting, std::min(places.size(), kMostAtOnce));
  guard.admits = [job = options.link_job](
                     const rendezvous::LinkIdentity& who) -> std::optional<rendezvous::LinkRefusal> {
    if (who.role != rendezvous::LinkRole::kAgent) return rendezvous::LinkRefusal::kOtherRole;
    if (who.job != job) return rendezvous::LinkRefusal::kOtherJob;
    return std::nullopt;
  };
  rendezvous::SecureAcceptorCallbacks callbacks;
  callbacks.on_joined = [weak = weak_from_this()](std::unique_ptr<ByteStream> stream,
                                                  const rendezvous::LinkIdentity& who,
                                                  const asio::ip::address& address) {
    const auto door = weak.lock();
    if (!door || door->stopped) return;
    JoinTable::Peer peer{who.node, address.to_string()};
    asio::co_spawn(door->loop, greet(door, std::move(stream), std::move(peer)), rethrow);
  };
  callbacks.on_note = [weak = weak_from_this()](const std::string& line) {
    const auto door = weak.lock();
    if (!door) return;
    door->last_refusal = line;
    door->note(line);
  };
  auto made = rendezvous::SecureAcceptor::start(loop, std::move(*context), std::move(options.listener),
                                                std::move(guard), std::move(callbacks));
  if (!made) return made.error();
  acceptor = std::move(*made);
  silence.async_wait([weak = weak_from_this()](const error_code& cancelled) {
    if (const auto door = weak.lock(); door && !cancelled) door->tell_who_is_awaited();
  });
  return {};
}

/// Once, when the start takes its time.
void JoinShell::Door::tell_who_is_awaited() {
  std::string names;
  std::size_t count = 0;
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i].awaited_by.empty()) continue;
    if (++count <= kMostNamed) names += (count > 1 ? ", " : "") + std::to_string(i);
  }
  if (count == 0) return;
  if (count > kMostNamed) names += " and " + std::to_string(count - kMostNamed) + " more";
  note("waiting at " + options.where + " for the ddplaunch of node " + names);
}

void JoinShell::Door::stop() {
  stopped = true;
  silence.cancel();
  if (acceptor) acceptor->stop();
  for (const auto& [key, stream] : greeted)
    stream->close();
  for (Place& place : places) {
    place.waiting.reset();
    for (asio::steady_timer* timer : place.awaited_by)
      timer->cancel();
  }
}

Awaitable<> JoinShell::Door::greet(std::shared_ptr<Door> door, std::unique_ptr<ByteStream> stream,
                                   JoinTable::Peer peer) {
  ByteStream* const raw = stream.get();
  door->greeted[raw] = raw;
  std::optional<JoinTable::Decision> decision;
  bool said = false;
  {
    const LinkDeadline limit(door->loop, Clock::now() + kRequestTime, *raw);
    const auto line = co_await read_line(*raw);
    const auto request = line ? parse_request(*line) : Result<JoinRequest>(line.error());
    if (!request) {
      door->note_refused(std::nullopt, peer,
                         peer.address + " (" + peer.name +
                             ") joined and then said nothing that a node says: " + request.error().text +
                             "; closed");
    } else if (!door->stopped) {
      decision = door->decide(*request, peer);
      const error_code failed = co_await write_line(*raw, answer_line(decision->answer));
      said = !failed;
    }
  }
  door->greeted.erase(raw);
  if (decision && decision->answer.rank && said && !door->stopped) {
    door->seat(std::move(stream), *decision, peer);
  } else {
    if (decision && decision->answer.rank) door->table.ended(*decision->answer.rank, decision->life);
    raw->close();
  }
  if (!door->stopped) door->acceptor->descriptor_freed();
}

JoinTable::Decision JoinShell::Door::decide(const JoinRequest& request, const JoinTable::Peer& peer) {
  for (const int rank : table.about(request, peer)) {
    if (const auto line = places[static_cast<std::size_t>(rank)].line.lock(); line && !line->ended())
      table.heard(rank, line->last_heard());
  }
  JoinTable::Decision decision = table.join(request, peer, Clock::now());
  if (!decision.answer.rank) {
    last_refusal = one_line(peer.address + " (" + peer.name + ") was refused: " + decision.answer.text);
    note_refused(decision.answer.refusal, peer, last_refusal);
  } else if (decision.displaces) {
    Place& place = places[static_cast<std::size_t>(*decision.answer.rank)];
    place.waiting.reset();
    if (const auto line = place.line.lock()) {
      line->cut(Error{ErrorCode::kLinkLost, "another ddplaunch came in its place, from " + peer.address, 0});
    }
  }
  return decision;
}

void JoinShell::Door::seat(std::unique_ptr<ByteStream> stream, const JoinTable::Decision& decision,
                           const JoinTable::Peer& peer) {
  const int rank = *decision.answer.rank;
  Place& place = places[static_cast<std::size_t>(rank)];
  place.waiting = std::make_unique<SecureChannel>(loop, std::move(stream), peer.address);
  place.line = place.waiting->line();
  place.line.lock()->on_end([weak = weak_from_this(), rank, life = decision.life] {
    const auto door = weak.lock();
    if (!door || door->stopped) return;
    door->table.ended(rank, life);
    door->acceptor->descriptor_freed();
  });
  if (place.awaited_by.empty()) (void)place.waiting->link();  // so that its end is noticed meanwhile
  for (asio::steady_timer* timer : place.awaited_by)
    timer->cancel();
}

Result<std::unique_ptr<JoinShell>> JoinShell::make(const asio::any_io_executor& loop, Options options) {
  auto door = std::make_shared<Door>(loop, std::move(options));
  if (auto started = door->start(); !started) return started.error();
  return std::unique_ptr<JoinShell>(new JoinShell(std::move(door)));
}

JoinShell::JoinShell(std::shared_ptr<Door> door) : door_(std::move(door)) {}

JoinShell::~JoinShell() {
  door_->stop();
}

Awaitable<Result<std::unique_ptr<remote::Channel>>> JoinShell::open(remote::Host host,
                                                                    std::vector<std::string> argv,
                                                                    remote::Deadline deadline) {
  (void)argv;  // the node runs its own agent
  const std::shared_ptr<Door> door = door_;
  const auto rank = join_host_rank(host.name);
  if (!rank || *rank < 1 || static_cast<std::size_t>(*rank) >= door->places.size())
    co_return Error{ErrorCode::kInternal, host.name + " is no node that joins by itself", 0};
  Door::Place& place = door->places[static_cast<std::size_t>(*rank)];
  co_await asio::this_coro::throw_if_cancelled(false);
  asio::steady_timer timer(door->loop, deadline);
  bool cancelled = false;
  while (!cancelled && !door->stopped) {
    if (place.waiting) {
      const auto line = place.line.lock();
      std::unique_ptr<remote::Channel> channel = std::move(place.waiting);
      if (line && !line->ended()) {
        door->table.opened(*rank, Clock::now());
        co_return channel;
      }
      channel.reset();  // it came and went
    }
    if (Clock::now() >= deadline) break;
    place.awaited_by.push_back(&timer);
    co_await timer.async_wait(kUseTuple);
    std::erase(place.awaited_by, &timer);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    cancelled = state.cancelled() != asio::cancellation_type::none;
  }
  if (cancelled || door->stopped) co_return Error{ErrorCode::kCancelled, host.name + ": cancelled", 0};
  std::string text = host.name + ": no ddplaunch of node " + std::to_string(*rank) + " has joined at " +
                     door->options.where +
                     "; is it started there, with the MASTER_ADDR and MASTER_PORT of this one?";
  if (!door->last_refusal.empty()) text += " The last one that was turned away: " + door->last_refusal;
  co_return Error{ErrorCode::kTimeout, std::move(text), 0};
}

}  // namespace ddp::launcher
