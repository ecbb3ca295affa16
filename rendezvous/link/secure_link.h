#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/crypto.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/link/link_hello.h"
#include "rendezvous/link/link_token.h"
#include "rendezvous/link/secure_stream.h"
#include "rendezvous/link/tcp_listener.h"

// Both ends of a TCP link: from connect() and accept() to the hello and its answer.

namespace ddp::rendezvous {

/// A peer that has proved its identity and sent its hello. It waits for an answer_line().
struct JoinedPeer {
  std::unique_ptr<SecureStream> stream;
  LinkIdentity who;
  asio::ip::address address;
  LinkHello hello;
};

struct SecureAcceptorOptions {
  TcpListener listener;
  std::string where;  ///< for the log: "the control port 29400"
  LinkToken token;    ///< shared with the peers that may join
  AdmissionLimits limits{};
  LinkRole awaited = LinkRole::kAgent;  ///< another role is refused before any key is made
  std::string job{};                    ///< so is another job, unless this is empty
  std::function<void(JoinedPeer)> on_joined;
  /// Gets a line for the log, already limited in number. May be empty.
  std::function<void(const std::string& line)> on_note{};
};

/// Accepts TCP connections and returns each one whose peer has proved that it has the job's token, and has
/// sent its hello. Before the proof, a peer holds at most kMaxClientHello bytes and a small record. After a
/// valid ClientHello it also holds one TLS session without buffers. At most `limits.waiting` such peers
/// exist, and none for longer than `limits.deadline`. The control protocol parses no bytes of an unproven
/// peer. All calls and callbacks on the executor's thread; a callback may call stop().
class SecureAcceptor : public std::enable_shared_from_this<SecureAcceptor> {
 public:
  static Result<std::shared_ptr<SecureAcceptor>> start(asio::any_io_executor executor,
                                                       SecureAcceptorOptions options);

  /// Call it when a joined link has ended, so that its descriptor is free.
  void descriptor_freed() { accepts_->descriptor_freed(); }
  std::size_t waiting() const { return limiter_.waiting(); }  ///< connections without a proof or a hello
  /// Passes a line about a peer to on_note, within the limits of the log. `address` is the limiter's.
  void note(LinkRefusal why, const std::string& address, std::string line);
  /// Closes the port and all unproven connections; no callback runs afterwards. Safe to call twice.
  void stop();

 private:
  struct Guest;
  using Id = AdmissionLimiter::Id;

  SecureAcceptor(asio::any_io_executor executor, SecureAcceptorOptions options);
  void connected(UniqueFd socket, const asio::ip::address& peer);
  static Awaitable<> greet(std::shared_ptr<SecureAcceptor> self, std::shared_ptr<Guest> guest);
  Awaitable<> identify(std::shared_ptr<Guest> guest);
  Result<> begin_tls(Guest& guest);
  void refuse(Guest& guest, LinkRefusal why, std::string detail = {});
  void leave(Guest& guest);
  void close_overdue();

  asio::any_io_executor executor_;
  SecureAcceptorOptions options_;
  LinkSide side_;
  AdmissionLimiter limiter_;
  RefusalLog log_;
  std::shared_ptr<AcceptLoop> accepts_;
  std::map<Id, std::shared_ptr<Guest>> guests_;
  asio::steady_timer timer_;
  Id last_id_ = 0;
  bool stopped_ = false;
};

/// What a node or a master sends to the listening end that it wants to reach.
struct LinkGoal {
  std::string host;  ///< a name or an address
  std::uint16_t port = 0;
  LinkIdentity as;  ///< each attempt has its own nonce
  Secret key;       ///< link_key() of `as`
  std::string token_origin;
  std::string token_check;
  LinkHello hello;
};
/// kInternal: the library has no HKDF.
Result<LinkGoal> link_goal(std::string host, std::uint16_t port, LinkIdentity as, const LinkToken& token,
                           LinkHello hello);

/// A link with a slot, or the reason why there is none.
struct JoinOutcome {
  std::unique_ptr<ByteStream> stream{};
  LinkAnswer answer{};
  std::string address{};   ///< numeric, of the last endpoint that was tried
  Error error{};           ///< when there is no stream: the whole text for the user
  bool try_again = false;  ///< the other side may not have started yet, or is overloaded
};

/// Makes one attempt: tries the endpoints in turn, each with its share of the time, until one answers.
/// kTimeout after `deadline`. kUnreachable: nobody answers, or the token, job or role differs;
/// kAgentMismatch: another version, or no ddplaunch; kUsage: the master has no slot for this node;
/// kAgentMissing: the daemon could not start an agent; kCancelled. `goal` must outlive the call.
Awaitable<JoinOutcome> secure_connect(std::vector<asio::ip::tcp::endpoint> endpoints, const LinkGoal& goal,
                                      std::chrono::steady_clock::time_point deadline);

/// Repeats secure_connect with growing and random pauses while that may help. A node waits until `deadline`
/// for a master that starts later, and some seconds for a slot, since the master may not miss the replaced
/// process yet. A master waits some seconds for a daemon that restarts. `resolve` returns the endpoints again
/// each time, since a name may appear late; its error counts as "not started yet" for a node, and it must
/// keep to the deadline. The error includes the last reason. `resolve` and `goal` must outlive the call.
using Resolve = std::function<Awaitable<Result<std::vector<asio::ip::tcp::endpoint>>>(
    std::string host, std::uint16_t port, std::chrono::steady_clock::time_point deadline)>;
Awaitable<JoinOutcome> secure_join(const Resolve& resolve, const LinkGoal& goal,
                                   std::chrono::steady_clock::time_point deadline);

Awaitable<error_code> write_line(ByteStream& stream, std::string bytes);
/// Reads the next line without its newline, at most kMaxHelloLine bytes, and no byte behind it. Error
/// kLinkLost with sys 0: the link ended before its first byte.
Awaitable<Result<std::string>> read_line(ByteStream& stream);

}  // namespace ddp::rendezvous
