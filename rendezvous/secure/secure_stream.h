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

/// The end of a handshake.
struct HandshakeEnd {
  enum class Kind : std::uint8_t {
    kDone,
    kKeyDiffers,  ///< server: the identity is known, but its proof is wrong
    kAlert,       ///< the far side refused; `alert` has the reason
    kForeign,     ///< the bytes are of another protocol; `detail` is their printable start
    kClosed,      ///< the far side hung up; `error` may have the reason
    kBroken,      ///< a rule of TLS was violated; `detail` is OpenSSL's text
    kCancelled,   ///< close() was called on this end
  };
  Kind kind = Kind::kDone;
  std::uint8_t alert = 0;
  std::string detail;
  error_code error;
};

/// TLS 1.3 with a pre-shared key over a connected TCP socket, for control links without SSH. OpenSSL works on
/// the socket itself, so an idle stream holds no buffer (asio::ssl::stream keeps 34 KB for each). Loop thread
/// only; one read and one write at a time, like every ByteStream. The owner keeps the stream until both have
/// ended. The sending key is renewed before AES-GCM's limit.
class SecureStream final : public ByteStream {
 public:
  enum class TlsRole : std::uint8_t { kServer, kClient };
  struct Start {
    asio::posix::stream_descriptor socket;    ///< connected, non-blocking
    LinkIdentity identity;                    ///< of the client, on both ends
    Secret key;                               ///< session_key() of the identity
    std::string received = {};                ///< bytes already read from the socket
    std::uint64_t rekey_after = 64ull << 30;  ///< bytes written under one key
  };

  /// kSystem, kInternal: out of memory.
  static Result<std::unique_ptr<SecureStream>> make(std::shared_ptr<const SecureContext> context, TlsRole end,
                                                    Start start);
  /// Closes without a goodbye: after a fork, another process may own the link.
  ~SecureStream() override;

  /// Moves the stream to another loop. The handshake must be over, and no operation may be in progress. In
  /// the child of a fork, the previous loop may exist only as memory.
  void move_to(const asio::any_io_executor& loop);
  int native_socket() { return socket_.native_handle(); }

  /// Call it once, first. It has no deadline of its own: close() ends it.
  Awaitable<HandshakeEnd> handshake();

  Awaitable<Transferred> read_some(asio::mutable_buffer buffer) override;
  Awaitable<Transferred> write_some(asio::const_buffer buffer) override;
  /// Sends a goodbye if the socket takes it at once.
  void close() override;

 private:
  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };
  /// The BIO reads and writes through this.
  struct Transport {
    int fd = -1;
    std::string received;  ///< bytes read before the BIO existed
    std::size_t received_at = 0;
    std::string first;  ///< first bytes of the far side, during the handshake
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
  std::string quote_first_bytes();
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
  unsigned turns_ = 0;           ///< operations since other tasks on the loop could run
  bool ready_ = false;
  bool write_pending_ = false;  ///< OpenSSL holds a record that the socket did not take
  bool closed_ = false;
};

}  // namespace ddp::rendezvous
