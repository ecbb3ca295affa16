#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/crypto.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/identity/link_identity.h"
#include "rendezvous/identity/link_refusal.h"
#include "rendezvous/link/tcp_listener.h"
#include "rendezvous/secure/link_token.h"
#include "rendezvous/secure/secure_stream.h"

namespace ddp::rendezvous {

struct SecureAcceptorOptions {
  std::string where;  ///< for the log: "the control port 29400"
  LinkToken token;    ///< shared with the peers that may join
  AdmissionLimits limits;
  /// Refuses a peer before any key is made; `identity` is not proven yet. If it returns nothing, the peer may
  /// prove its identity.
  std::function<std::optional<LinkRefusal>(const LinkIdentity& identity)> admits;
};

struct SecureAcceptorCallbacks {
  /// Gets a peer that has proved its identity. The stream is ready for a Connection.
  std::function<void(std::unique_ptr<SecureStream>, const LinkIdentity&, const asio::ip::address&)> on_joined;
  /// Gets a line for the log, already limited in number. May be empty.
  std::function<void(const std::string& line)> on_note;
};

/// Accepts TCP connections and returns each one whose peer has proved that it has the job's token. Before
/// that, a peer holds at most kMaxClientHello bytes and a small record. After a valid hello it also holds one
/// TLS session without buffers. At most `limits.waiting` such peers exist, and none for longer than
/// `limits.deadline`. The control protocol parses no bytes of an unproven peer. All calls and callbacks on
/// the executor's thread; a callback may call stop().
class SecureAcceptor : public std::enable_shared_from_this<SecureAcceptor> {
 public:
  static Result<std::shared_ptr<SecureAcceptor>> start(asio::any_io_executor executor,
                                                       std::shared_ptr<const SecureContext> context,
                                                       TcpListener listener, SecureAcceptorOptions options,
                                                       SecureAcceptorCallbacks callbacks);

  /// Call it when a joined link has ended, so that its descriptor is free.
  void descriptor_freed() { accepts_->descriptor_freed(); }
  std::size_t waiting() const { return limiter_.waiting(); }  ///< unproven connections
  /// Closes the port and all unproven connections; no callback runs afterwards. Safe to call twice.
  void stop();

 private:
  struct Guest;
  using Id = AdmissionLimiter::Id;

  SecureAcceptor(asio::any_io_executor executor, std::shared_ptr<const SecureContext> context,
                 SecureAcceptorOptions options, SecureAcceptorCallbacks callbacks);
  void connected(UniqueFd socket, const asio::ip::address& peer);
  static Awaitable<> greet(std::shared_ptr<SecureAcceptor> self, std::shared_ptr<Guest> guest);
  Awaitable<bool> read_hello(std::shared_ptr<Guest> guest);
  bool identify(Guest& guest);
  bool begin_tls(Guest& guest);
  void finish(Guest& guest, const struct HandshakeEnd& end);
  void refuse(Guest& guest, LinkRefusal why, std::string detail = {});
  void note(LinkRefusal why, const std::string& key, const struct RefusedPeer& peer);
  void leave(Guest& guest);
  void watch();
  void close_overdue();

  asio::any_io_executor executor_;
  std::shared_ptr<const SecureContext> context_;
  SecureAcceptorOptions options_;
  SecureAcceptorCallbacks callbacks_;
  ListenSide side_;
  AdmissionLimiter limiter_;
  RefusalLog log_;
  std::shared_ptr<AcceptLoop> accepts_;
  std::map<Id, std::shared_ptr<Guest>> guests_;
  asio::steady_timer timer_;
  std::optional<AdmissionLimiter::Time> watched_;
  Id last_id_ = 0;
  bool stopped_ = false;
};

/// Identity and key of the joining end.
struct JoinAs {
  LinkRole role = LinkRole::kAgent;
  std::string job;
  std::string node;  ///< link_name_of() the host's name
  Secret key;        ///< link_key() of role, job and node
  std::string token_origin;
  std::string token_check;
};

/// A link, or the reason why there is none.
struct JoinOutcome {
  std::unique_ptr<ByteStream> stream;
  Error error;             ///< when there is no stream: the whole text for the user
  bool try_again = false;  ///< the other side may not have started yet, or is overloaded
};

/// Makes one attempt: connects to the first endpoint that answers, proves the identity of this end, and
/// checks that the other side has the same token. kTimeout after `deadline`. `where` names the other side in
/// messages: "gpu01:29400". kUnreachable: nobody answers, or the token, job or role differs; kAgentMismatch:
/// another version, or no ddplaunch. `as` must outlive the call. The other side may still evict this
/// connection before it has read the last bytes. Therefore retry if a stream ends before its first byte
/// arrives.
Awaitable<JoinOutcome> secure_connect(std::shared_ptr<const SecureContext> context,
                                      std::vector<asio::ip::tcp::endpoint> endpoints, std::string where,
                                      const JoinAs& as, std::chrono::steady_clock::time_point deadline);

/// Repeats secure_connect with growing and random pauses while that may help: the master of a job may start
/// after its nodes. `resolve` returns the endpoints again each time, since a name may appear late. Its error
/// counts as "not started yet", and it must keep to the deadline. The error after the deadline includes the
/// last reason. `resolve` must outlive the call.
using Resolve = std::function<Awaitable<Result<std::vector<asio::ip::tcp::endpoint>>>(
    std::string host, std::uint16_t port, std::chrono::steady_clock::time_point deadline)>;
Awaitable<Result<std::unique_ptr<ByteStream>>> secure_join(std::shared_ptr<const SecureContext> context,
                                                           const Resolve& resolve, std::string host,
                                                           std::uint16_t port, const JoinAs& as,
                                                           std::chrono::steady_clock::time_point deadline);

/// A `resolve` for secure_join whose `host` must be an address.
Awaitable<Result<std::vector<asio::ip::tcp::endpoint>>> address_only(
    std::string host, std::uint16_t port, std::chrono::steady_clock::time_point deadline);

}  // namespace ddp::rendezvous
