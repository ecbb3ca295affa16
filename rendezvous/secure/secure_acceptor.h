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
  std::string where;     ///< for the log: "the control port 29400"
  LinkToken token;       ///< shared with those who may join
  AddressFilter filter;  ///< whose connections are taken at all; empty: anybody's
  AdmissionLimits limits;
  /// Who is awaited, asked before any key is made; `identity` is not proven yet. Nothing: it may prove
  /// itself.
  std::function<std::optional<LinkRefusal>(const LinkIdentity& identity)> admits;
};

struct SecureAcceptorCallbacks {
  /// A peer that has proved what it says. The stream is ready for a Connection.
  std::function<void(std::unique_ptr<SecureStream>, const LinkIdentity&, const asio::ip::address&)> on_joined;
  /// A line for the log, already limited in number. May be empty.
  std::function<void(const std::string& line)> on_note;
  /// Bytes that are no TLS (`received`, read from the socket): for a port shared with the store. True: taken.
  /// May be empty.
  std::function<bool(UniqueFd& socket, const std::string& received)> on_plain;
};

/// Takes TCP connections and gives out those whose peer has proved that it has the job's token. Until then a
/// peer holds at most kMaxClientHello bytes and a small record, then (its hello was for us) one TLS session
/// without buffers; no more than `limits.waiting` of these exist, none for longer than `limits.deadline`.
/// Nothing of a peer's is parsed by the control protocol before it is proven. All calls and callbacks on the
/// executor's thread; a callback may call stop().
class SecureAcceptor : public std::enable_shared_from_this<SecureAcceptor> {
 public:
  struct Stats {
    std::size_t waiting = 0;  ///< unproven, now
    std::size_t joined = 0;   ///< ever
    std::size_t refused = 0;  ///< ever, by whatever reason
  };

  static Result<std::shared_ptr<SecureAcceptor>> start(asio::any_io_executor executor,
                                                       std::shared_ptr<const SecureContext> context,
                                                       TcpListener listener, SecureAcceptorOptions options,
                                                       SecureAcceptorCallbacks callbacks);

  void allow(const asio::ip::address& address) { accepts_->allow(address); }
  /// A joined link has ended: its descriptor is free.
  void descriptor_freed() { accepts_->descriptor_freed(); }
  Stats stats() const;
  /// Closes the port and all unproven connections; no callback runs after it. Safe to call twice.
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
  std::size_t joined_ = 0;
  std::size_t refused_ = 0;
  bool stopped_ = false;
};

}  // namespace ddp::rendezvous
