#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/asio.h"
#include "base/crypto.h"
#include "base/result.h"
#include "rendezvous/link/link_hello.h"

// OpenSSL's names; only secure_stream.cc includes its headers.
struct ssl_ctx_st;
struct ssl_st;

namespace ddp::rendezvous {

/// The settings of all TLS links of this process, made by the first call. Only TLS 1.3,
/// TLS_AES_128_GCM_SHA256, X25519, and external pre-shared keys with Diffie-Hellman; no certificate, ticket,
/// session cache, early data, compression or renegotiation. kInternal: this machine's OpenSSL does not
/// support that (FIPS mode without X25519, a policy without TLS 1.3).
Result<ssl_ctx_st*> secure_context();

/// Derives the key of one TLS handshake from a job's token by HKDF-SHA256 (RFC 5869):
///   link key    = HKDF(token, salt "ddplaunch link 1", info "link ROLE JOB NODE")
///   session key = HKDF(link key, salt "ddplaunch link 1", info "session IDENTITY")
/// An owner of the token can take any role. An owner of only a link key can be just that role and node of
/// that job, and cannot act as master to another node. 32 bytes each. kInternal: the library has no HKDF.
Result<Secret> link_key(const Secret& token, LinkRole role, std::string_view job, std::string_view node);
Result<Secret> session_key(const Secret& link_key, const LinkIdentity& identity);

/// Returns six hexadecimal digits by which two people can compare their tokens. The token stays strong (the
/// digits reveal 24 of at least 128 bits), but the digits belong only in logs of the job's own user.
std::string token_check(const Secret& token);

/// HKDF-SHA256 itself; `size` is at most 255 * 32.
Result<Secret> hkdf_sha256(std::string_view key, std::string_view salt, std::string_view info,
                           std::size_t size);

/// The end of a handshake: why there is no link, as the text of a refusal wants it. kBroken: the far side
/// hung up, or close() was called on this end.
struct HandshakeEnd {
  std::optional<LinkRefusal> refusal{};  ///< unset: the link is proven
  std::string detail{};                  ///< what is wrong with the far side; may be empty
};

/// TLS 1.3 with a pre-shared key over a connected TCP socket, for control links without SSH. OpenSSL works on
/// the socket itself, so an idle stream holds no buffer; asio::ssl::stream keeps 34 KB for each (decision
/// 0032). Loop thread only; one read and one write at a time, like every ByteStream. The owner keeps the
/// stream until both have ended. The sending key is renewed before AES-GCM's limit.
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

  /// kInternal: as secure_context(); kSystem: out of memory.
  static Result<std::unique_ptr<SecureStream>> make(TlsRole end, Start start);
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
  SecureStream(TlsRole end, Start start);
  Awaitable<error_code> until_ready(int result);
  bool turn_is_over();
  HandshakeEnd handshake_failure(unsigned long code, const error_code& error);
  HandshakeEnd closed_by(const error_code& error) const;
  bool proven() const;
  friend struct SocketBio;

  asio::posix::stream_descriptor socket_;
  std::unique_ptr<struct SecureHandshake> handshake_;  ///< none: the link is proven
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  TlsRole end_;
  std::uint64_t rekey_after_;
  std::uint64_t under_key_ = 0;  ///< bytes written
  unsigned turns_ = 0;           ///< operations since other tasks on the loop could run
  error_code broken_;            ///< the last error of the socket; eof: the far side has ended
  bool write_pending_ = false;   ///< OpenSSL holds a record that the socket did not take
  bool closed_ = false;
};

}  // namespace ddp::rendezvous
