#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/asio.h"
#include "base/byte_stream.h"
#include "base/result.h"
#include "base/secret.h"
#include "rendezvous/identity/link_identity.h"
#include "rendezvous/secure/secure_stream_context.h"

namespace ddp::rendezvous {

/// How a handshake ended.
struct HandshakeEnd {
  enum class Kind : std::uint8_t {
    kDone,
    kKeyDiffers,  ///< server: the identity is known, its proof is wrong
    kAlert,       ///< the far side refused; `alert` says how
    kForeign,     ///< what came is none of this protocol; `detail` is its printable start
    kClosed,      ///< the far side hung up; `error` may tell how
    kBroken,      ///< a rule of TLS was broken; `detail` is OpenSSL's word for it
    kCancelled,   ///< close() was called here
  };
  Kind kind = Kind::kDone;
  std::uint8_t alert = 0;
  std::string detail;
  error_code error;
};

/// TLS 1.3 with a pre-shared key over a connected TCP socket: what the control link runs over where there is
/// no SSH. OpenSSL works on the socket itself, so an idle stream holds no buffer (asio::ssl::stream keeps 34
/// KB for each). Loop thread only; one read and one write at a time, as every ByteStream; the owner keeps it
/// until both have ended. Its sending key is renewed before AES-GCM's limit.
class SecureStream final : public ByteStream {
 public:
  enum class TlsRole : std::uint8_t { kServer, kClient };
  struct Start {
    asio::posix::stream_descriptor socket;    ///< connected, non-blocking
    LinkIdentity identity;                    ///< of the client, on both ends
    Secret key;                               ///< session_key() of it
    std::string received = {};                ///< what was read from the socket already
    std::uint64_t rekey_after = 64ull << 30;  ///< bytes written under one key
  };

  /// kSystem, kInternal: out of memory.
  static Result<std::unique_ptr<SecureStream>> make(std::shared_ptr<const SecureContext> context, TlsRole end,
                                                    Start start);
  /// Closes without a goodbye: after a fork the link may be another process's.
  ~SecureStream() override;

  /// Once the handshake is over and nothing is under way: on another loop from here on. In the child of a
  /// fork the loop before may be gone in all but memory.
  void move_to(const asio::any_io_executor& loop);
  int native_socket() { return socket_.native_handle(); }

  /// Once, before all else. It has no deadline of its own: close() ends it.
  Awaitable<HandshakeEnd> handshake();

  Awaitable<Transferred> read_some(asio::mutable_buffer buffer) override;
  Awaitable<Transferred> write_some(asio::const_buffer buffer) override;
  Awaitable<error_code> writable() override { co_return co_await wait_for(Want::kWrite); }
  /// Says goodbye where the socket takes it at once.
  void close() override;

  /// Whether the far side said goodbye: an end without it may be anybody's doing.
  bool ended_cleanly() const { return goodbye_heard_; }

 private:
  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };
  /// What the BIO reads and writes through.
  struct Transport {
    int fd = -1;
    std::string received;  ///< read before the socket
    std::size_t received_at = 0;
    std::string first;  ///< of the far side's bytes, during the handshake
    bool keep_first = false;
    bool ended = false;
    int error = 0;
  };
  enum class Want : std::uint8_t { kRead, kWrite, kFailed };

  SecureStream(std::shared_ptr<const SecureContext> context, TlsRole end, Start start);
  bool prepare();
  Want wanted(int result);
  Awaitable<error_code> wait_for(Want want);
  bool turn_is_over();
  error_code failure();
  HandshakeEnd handshake_failure();
  bool proven() const;
  friend struct SocketBio;

  std::shared_ptr<const SecureContext> context_;
  asio::posix::stream_descriptor socket_;
  Transport transport_;
  std::unique_ptr<SecureHandshake> handshake_;
  std::unique_ptr<ssl_st, FreeSsl> ssl_;
  TlsRole end_;
  std::uint64_t rekey_after_;
  std::uint64_t under_key_ = 0;  ///< bytes written
  unsigned turns_ = 0;           ///< operations since the loop had its turn
  bool ready_ = false;
  bool write_pending_ = false;  ///< OpenSSL holds a record that the socket did not take
  bool closed_ = false;
  bool goodbye_heard_ = false;
};

}  // namespace ddp::rendezvous
