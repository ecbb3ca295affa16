#include "rendezvous/link/secure_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>

#include "base/text.h"

namespace ddp::rendezvous {

/// Data for the callbacks of one handshake: set as the SSL's app data before it, removed after it.
struct SecureHandshake {
  std::string identity;
  Secret key;
  std::string received;    ///< was read from the socket before, and comes first
  std::string first{};     ///< the first bytes from the socket, for an error text
  bool key_asked = false;  ///< server: the peer offered this identity
};

namespace {

constexpr std::size_t kFirstBytes = 48;   // of an unknown peer's answer, for the error text
constexpr unsigned kTurnsInARow = 16;     // operations in a row before other tasks on the loop run
constexpr std::size_t kTurn = 64u << 10;  // bytes written at once, for the same reason
constexpr int kAlertReasons = 1000;       // OpenSSL's reason for a received alert is this plus its number

/// The received bytes do not fit the encryption: they were changed on the way, or truncated.
error_code tls_error() {
  return {EBADMSG, boost::system::system_category()};
}

constexpr unsigned char kSuite[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256; its hash is bound to the key

SSL_SESSION* session_of(SSL* ssl, const Secret& key) {
  const std::string_view bytes = key.reveal();
  SSL_SESSION* session = SSL_SESSION_new();
  const bool made = session != nullptr &&
                    SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(bytes.data()),
                                                bytes.size()) == 1 &&
                    SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kSuite)) == 1 &&
                    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  if (made) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** id, std::size_t* size,
                SSL_SESSION** session) {
  auto* handshake = static_cast<SecureHandshake*>(SSL_get_app_data(ssl));
  *session = nullptr;
  if (handshake == nullptr || (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256)) return 1;
  *session = session_of(ssl, handshake->key);
  if (*session == nullptr) return 0;
  *id = reinterpret_cast<const unsigned char*>(handshake->identity.data());
  *size = handshake->identity.size();
  return 1;
}

int find_session(SSL* ssl, const unsigned char* identity, std::size_t size, SSL_SESSION** session) {
  auto* handshake = static_cast<SecureHandshake*>(SSL_get_app_data(ssl));
  *session = nullptr;
  if (handshake == nullptr || size != handshake->identity.size() ||
      std::memcmp(identity, handshake->identity.data(), size) != 0)
    return 1;  // no such key; without a certificate, this ends the handshake
  handshake->key_asked = true;
  *session = session_of(ssl, handshake->key);
  return *session != nullptr ? 1 : 0;
}

/// A server with a certificate is not ddplaunch, whoever signed it.
int reject_certificate(X509_STORE_CTX*, void*) {
  return 0;
}

bool configure(SSL_CTX* context) {
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE);
  // No dummy ChangeCipherSpec, since no middlebox needs it. No psk_ke, so that a stolen token decrypts no
  // recorded session.
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_cert_verify_callback(context, reject_certificate, nullptr);
  SSL_CTX_set_psk_use_session_callback(context, use_session);
  SSL_CTX_set_psk_find_session_callback(context, find_session);
  SSL_CTX_set_read_ahead(context, 1);  // header and body of a record in one read
  return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
         SSL_CTX_set1_groups_list(context, "X25519") == 1 && SSL_CTX_set_num_tickets(context, 0) == 1 &&
         SSL_CTX_set_max_early_data(context, 0) == 1 && SSL_CTX_set_recv_max_early_data(context, 0) == 1;
}

}  // namespace

Result<ssl_ctx_st*> secure_context() {
  static const Result<ssl_ctx_st*> made = []() -> Result<ssl_ctx_st*> {
    ssl_ctx_st* context = SSL_CTX_new(TLS_method());
    if (context != nullptr && configure(context)) return context;
    char why[160] = "";
    ERR_error_string_n(ERR_peek_last_error(), why, sizeof why);
    ERR_clear_error();
    SSL_CTX_free(context);
    return Error{
        ErrorCode::kInternal,
        std::string("this machine's OpenSSL offers no TLS 1.3 with TLS_AES_128_GCM_SHA256 and X25519 "
                    "(check for FIPS mode or a system policy): ") +
            why};
  }();
  return made;
}

namespace {

constexpr std::string_view kSalt = "ddplaunch link 1";
constexpr std::size_t kKeySize = 32;

OSSL_PARAM octets(const char* name, std::string_view bytes) {
  // OpenSSL only reads here; its type serves both directions.
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(bytes.data()), bytes.size());
}

}  // namespace

Result<Secret> hkdf_sha256(std::string_view key, std::string_view salt, std::string_view info,
                           std::size_t size) {
  // Fetched only once: a fetch walks all providers under a lock.
  static EVP_KDF* const kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  const std::unique_ptr<EVP_KDF_CTX, void (*)(EVP_KDF_CTX*)> context(
      kdf != nullptr ? EVP_KDF_CTX_new(kdf) : nullptr, EVP_KDF_CTX_free);
  std::array<char, 7> digest{"SHA256"};
  const std::array<OSSL_PARAM, 5> parameters{
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      octets(OSSL_KDF_PARAM_KEY, key), octets(OSSL_KDF_PARAM_SALT, salt), octets(OSSL_KDF_PARAM_INFO, info),
      OSSL_PARAM_construct_end()};
  std::vector<char> out(size);
  const bool derived = context && EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(out.data()),
                                                 out.size(), parameters.data()) == 1;
  Secret secret = Secret::take(out.data(), out.size());
  if (derived) return secret;
  ERR_clear_error();
  return Error{ErrorCode::kInternal, "this machine's OpenSSL derives no keys by HKDF"};
}

Result<Secret> link_key(const Secret& token, LinkRole role, std::string_view job, std::string_view node) {
  // Names contain no blank, so different inputs give different texts.
  const std::string info = concat("link ", role_name(role), ' ', job, ' ', node);
  return hkdf_sha256(token.reveal(), kSalt, info, kKeySize);
}

Result<Secret> session_key(const Secret& link_key, const LinkIdentity& identity) {
  return hkdf_sha256(link_key.reveal(), kSalt, "session " + identity_text(identity), kKeySize);
}

std::string token_check(const Secret& token) {
  const auto digest = hkdf_sha256(token.reveal(), kSalt, "check", 3);
  return digest ? format_hex(digest->reveal()) : "";
}

/// Replaces OpenSSL's socket BIO, which raises SIGPIPE and does not know bytes that were read earlier.
struct SocketBio {
  static SecureStream& of(BIO* bio) { return *static_cast<SecureStream*>(BIO_get_data(bio)); }
  /// Reports the result of recv() or send(). `direction` is BIO_FLAGS_READ or BIO_FLAGS_WRITE.
  static int report(BIO* bio, ssize_t count, int direction) {
    BIO_clear_retry_flags(bio);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
      BIO_set_flags(bio, direction | BIO_FLAGS_SHOULD_RETRY);
    else if (count < 0)
      of(bio).broken_ = error_code(errno, boost::system::system_category());
    return static_cast<int>(count);
  }
  static int read(BIO* bio, char* out, int size) {
    SecureStream& stream = of(bio);
    SecureHandshake* const handshake = stream.handshake_.get();
    if (handshake != nullptr && !handshake->received.empty()) {
      const std::size_t count = handshake->received.copy(out, static_cast<std::size_t>(size));
      handshake->received.erase(0, count);
      return report(bio, static_cast<ssize_t>(count), BIO_FLAGS_READ);
    }
    const ssize_t count = ::recv(stream.native_socket(), out, static_cast<std::size_t>(size), MSG_DONTWAIT);
    if (count == 0) stream.broken_ = asio::error::eof;
    if (count > 0 && handshake != nullptr && handshake->first.size() < kFirstBytes)
      handshake->first.append(out, static_cast<std::size_t>(std::min<ssize_t>(count, kFirstBytes)));
    return report(bio, count, BIO_FLAGS_READ);
  }
  static int write(BIO* bio, const char* bytes, int size) {
    const ssize_t count =
        ::send(of(bio).native_socket(), bytes, static_cast<std::size_t>(size), MSG_DONTWAIT | MSG_NOSIGNAL);
    return report(bio, count, BIO_FLAGS_WRITE);
  }
  static long control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return of(bio).broken_ == asio::error::eof ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }
  static BIO_METHOD* make_method() {
    BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "ddplaunch socket");
    if (method != nullptr) {
      BIO_meth_set_read(method, read);
      BIO_meth_set_write(method, write);
      BIO_meth_set_ctrl(method, control);
    }
    return method;
  }
  static BIO* make(SecureStream* stream) {
    static BIO_METHOD* const method = make_method();  // never freed
    BIO* bio = method != nullptr ? BIO_new(method) : nullptr;
    if (bio == nullptr) return nullptr;
    BIO_set_data(bio, stream);
    BIO_set_init(bio, 1);
    return bio;
  }
};

SecureStream::SecureStream(TlsRole end, Start start)
    : socket_(std::move(start.socket)),
      handshake_(std::make_unique<SecureHandshake>(
          SecureHandshake{identity_text(start.identity), std::move(start.key), std::move(start.received)})),
      ssl_(nullptr, SSL_free),
      end_(end),
      rekey_after_(start.rekey_after) {}

SecureStream::~SecureStream() {
  // Release the descriptor first, so that Asio removes it from the epoll set. After close alone, epoll would
  // keep reporting the connection while another process of a fork holds it.
  if (socket_.is_open()) ::close(socket_.release());
}

void SecureStream::move_to(const asio::any_io_executor& loop) {
  const int fd = socket_.release();
  socket_ = asio::posix::stream_descriptor(loop, fd);
}

Result<std::unique_ptr<SecureStream>> SecureStream::make(TlsRole end, Start start) {
  const auto context = DDP_TRY(secure_context());
  std::unique_ptr<SecureStream> stream(new SecureStream(end, std::move(start)));
  SSL* const ssl = SSL_new(context);
  stream->ssl_.reset(ssl);
  BIO* const bio = ssl != nullptr ? SocketBio::make(stream.get()) : nullptr;
  if (bio == nullptr) {
    ERR_clear_error();
    return Error{ErrorCode::kSystem, "no memory for a TLS link", ENOMEM};
  }
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, stream->handshake_.get());
  if (end == TlsRole::kServer) {
    SSL_set_accept_state(ssl);
  } else {
    SSL_set_connect_state(ssl);
    SSL_set_verify(ssl, SSL_VERIFY_PEER, nullptr);  // the context's callback rejects all certificates
  }
  return stream;
}

/// Waits until the call that gave `result` may be repeated. Returns the error when it failed: that of the
/// socket, or that the bytes were wrong.
Awaitable<error_code> SecureStream::until_ready(int result) {
  const int state = SSL_get_error(ssl_.get(), result);
  ERR_clear_error();
  if (state == SSL_ERROR_ZERO_RETURN && !handshake_) co_return error_code(asio::error::eof);
  if (state != SSL_ERROR_WANT_READ && state != SSL_ERROR_WANT_WRITE)
    co_return broken_ ? broken_ : tls_error();
  turns_ = 0;
  using Descriptor = asio::posix::stream_descriptor;
  const auto [error] = co_await socket_.async_wait(
      state == SSL_ERROR_WANT_READ ? Descriptor::wait_read : Descriptor::wait_write, kUseTuple);
  co_return closed_ ? error_code(asio::error::operation_aborted) : error;
}

/// A stream that always has data would keep the loop busy.
bool SecureStream::turn_is_over() {
  if (++turns_ < kTurnsInARow) return false;
  turns_ = 0;
  return true;
}

/// Returns whether both ends used the key and agreed only on what this link allows.
bool SecureStream::proven() const {
  const SSL_CIPHER* suite = SSL_get_current_cipher(ssl_.get());
  return SSL_session_reused(ssl_.get()) == 1 && SSL_version(ssl_.get()) == TLS1_3_VERSION &&
         suite != nullptr && SSL_CIPHER_get_protocol_id(suite) == 0x1301 &&
         SSL_get0_peer_certificate(ssl_.get()) == nullptr &&
         (end_ == TlsRole::kClient || handshake_->key_asked);
}

/// `code` is OpenSSL's first error.
HandshakeEnd SecureStream::handshake_failure(unsigned long code, const error_code& error) {
  const bool server = end_ == TlsRole::kServer;
  const int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  const char* text = ERR_reason_error_string(code);
  const std::string detail = text != nullptr ? text : "";
  if (closed_) return closed_by(error);
  if (reason > kAlertReasons && reason < kAlertReasons + 256) {
    const auto refusal =
        server ? std::nullopt : refusal_of(static_cast<std::uint8_t>(reason - kAlertReasons));
    return refusal ? HandshakeEnd{*refusal} : HandshakeEnd{LinkRefusal::kOtherTls, detail};
  }
  std::string& first = handshake_->first;
  if (!server && !first.empty() && static_cast<unsigned char>(first[0]) - 20u >= 4u) {  // no record of TLS
    // OpenSSL may have read no more than the header of a record.
    char rest[kFirstBytes];
    const ssize_t count = ::recv(native_socket(), rest, sizeof rest, MSG_DONTWAIT);
    if (count > 0) first.append(rest, static_cast<std::size_t>(count));
    return {LinkRefusal::kPlain, "it sent " + printable_start(first)};
  }
  if (handshake_->key_asked && reason == SSL_R_BINDER_DOES_NOT_VERIFY) return {LinkRefusal::kTokenDiffers};
  if (error != tls_error()) return closed_by(error);
  return {LinkRefusal::kOtherTls, detail};
}

/// The listening end logs the reason; the joining end tries again.
HandshakeEnd SecureStream::closed_by(const error_code& error) const {
  return {LinkRefusal::kBroken, end_ == TlsRole::kServer ? error.message() : ""};
}

Awaitable<HandshakeEnd> SecureStream::handshake() {
  for (;;) {
    if (closed_) co_return closed_by(asio::error::operation_aborted);
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) break;
    const unsigned long code = ERR_peek_error();
    if (const error_code error = co_await until_ready(result)) co_return handshake_failure(code, error);
  }
  if (!proven()) co_return HandshakeEnd{LinkRefusal::kOtherTls, "no key was used"};
  SSL_set_app_data(ssl_.get(), nullptr);
  handshake_.reset();
  co_return HandshakeEnd{};
}

Awaitable<ByteStream::Transferred> SecureStream::read_some(asio::mutable_buffer buffer) {
  if (turn_is_over()) co_await asio::post(socket_.get_executor(), asio::use_awaitable);
  while (!closed_ && !handshake_) {
    ERR_clear_error();
    std::size_t count = 0;
    const int result = SSL_read_ex(ssl_.get(), buffer.data(), buffer.size(), &count);
    if (result == 1) {
      // Read other complete records too: a record has at most 16 KiB.
      std::size_t more = 0;
      while (count < buffer.size() && SSL_has_pending(ssl_.get()) == 1 &&
             SSL_read_ex(ssl_.get(), static_cast<char*>(buffer.data()) + count, buffer.size() - count,
                         &more) == 1)
        count += more;
      co_return Transferred{error_code(), count};
    }
    if (const error_code error = co_await until_ready(result)) co_return Transferred{error, 0};
  }
  co_return Transferred{asio::error::operation_aborted, 0};
}

Awaitable<ByteStream::Transferred> SecureStream::write_some(asio::const_buffer buffer) {
  if (turn_is_over()) co_await asio::post(socket_.get_executor(), asio::use_awaitable);
  std::size_t sent = 0;
  while (!closed_ && !handshake_) {
    ERR_clear_error();
    // Only when the socket has room: with an unsent update OpenSSL wants to write before it reads. If both
    // ends had one and full sockets, neither would read again.
    if (!write_pending_ && under_key_ >= rekey_after_ && is_writable(native_socket()) &&
        SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1)
      under_key_ = 0;
    std::size_t count = 0;
    const int result = SSL_write_ex(ssl_.get(), static_cast<const char*>(buffer.data()) + sent,
                                    buffer.size() - sent, &count);
    write_pending_ = false;
    if (result == 1) {
      sent += count;
      under_key_ += count;
      if (sent == buffer.size() || sent >= kTurn) co_return Transferred{error_code(), sent};
      continue;
    }
    // OpenSSL holds the record and requires the same bytes again. They are not counted until the socket has
    // taken them.
    write_pending_ = true;
    if (const error_code error = co_await until_ready(result)) co_return Transferred{error, sent};
  }
  co_return Transferred{asio::error::operation_aborted, sent};
}

void SecureStream::close() {
  if (std::exchange(closed_, true)) return;
  if (!handshake_ && !write_pending_ && !broken_) SSL_shutdown(ssl_.get());
  ERR_clear_error();
  error_code ignored;
  socket_.close(ignored);
}

}  // namespace ddp::rendezvous
