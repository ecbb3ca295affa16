#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/identity/admission_limiter.h"
#include "rendezvous/identity/link_identity.h"
#include "rendezvous/link/accept_loop.h"
#include "rendezvous/secure/link_token.h"
#include "rendezvous/secure/secure_stream.h"
#include "rendezvous/secure/secure_stream_context.h"

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

}  // namespace ddp::rendezvous
