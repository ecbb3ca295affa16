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

struct FreeKdf {
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

/// Fetched only once: a fetch walks all providers under a lock.
EVP_KDF* hkdf() {
  static EVP_KDF* const kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  return kdf;
}

OSSL_PARAM octets(const char* name, std::string_view bytes) {
  // OpenSSL only reads here; its type serves both directions.
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(bytes.data()), bytes.size());
}

}  // namespace

Result<Secret> hkdf_sha256(std::string_view key, std::string_view salt, std::string_view info,
                           std::size_t size) {
  const std::unique_ptr<EVP_KDF_CTX, FreeKdf> context(hkdf() ? EVP_KDF_CTX_new(hkdf()) : nullptr);
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
  std::string info = "link ";  // names contain no blank, so different inputs give different texts
  info += role_name(role);
  for (const std::string_view name : {job, node}) {
    info += ' ';
    info += name;
  }
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
  static SecureStream::Transport& of(BIO* bio) {
    return *static_cast<SecureStream::Transport*>(BIO_get_data(bio));
  }
  static int read(BIO* bio, char* out, int size) {
    auto& transport = of(bio);
    BIO_clear_retry_flags(bio);
    if (transport.received_at < transport.received.size()) {
      const std::size_t count =
          std::min(static_cast<std::size_t>(size), transport.received.size() - transport.received_at);
      std::memcpy(out, transport.received.data() + transport.received_at, count);
      transport.received_at += count;
      return static_cast<int>(count);
    }
    ssize_t count = 0;
    do {
      count = ::recv(transport.fd, out, static_cast<std::size_t>(size), MSG_DONTWAIT);
    } while (count < 0 && errno == EINTR);
    if (count > 0 && transport.keep_first && transport.first.size() < kFirstBytes)
      transport.first.append(out,
                             std::min(static_cast<std::size_t>(count), kFirstBytes - transport.first.size()));
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      BIO_set_retry_read(bio);
    else if (count < 0)
      transport.error = errno;
    else if (count == 0)
      transport.ended = true;
    return static_cast<int>(count);
  }
  static int write(BIO* bio, const char* bytes, int size) {
    auto& transport = of(bio);
    BIO_clear_retry_flags(bio);
    ssize_t count = 0;
    do {
      count = ::send(transport.fd, bytes, static_cast<std::size_t>(size), MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (count < 0 && errno == EINTR);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      BIO_set_retry_write(bio);
    else if (count < 0)
      transport.error = errno;
    return static_cast<int>(count);
  }
  static long control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return of(bio).ended ? 1 : 0;
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
  static BIO* make(SecureStream::Transport* transport) {
    static BIO_METHOD* const method = make_method();  // never freed
    BIO* bio = method != nullptr ? BIO_new(method) : nullptr;
    if (bio == nullptr) return nullptr;
    BIO_set_data(bio, transport);
    BIO_set_init(bio, 1);
    return bio;
  }
};

void SecureStream::FreeSsl::operator()(ssl_st* ssl) const {
  SSL_free(ssl);
}

SecureStream::SecureStream(TlsRole end, Start start)
    : socket_(std::move(start.socket)),
      handshake_(std::make_unique<SecureHandshake>(
          SecureHandshake{identity_text(start.identity), std::move(start.key)})),
      end_(end),
      rekey_after_(start.rekey_after) {
  transport_.fd = socket_.native_handle();
  transport_.received = std::move(start.received);
  transport_.keep_first = end == TlsRole::kClient;
}

SecureStream::~SecureStream() {
  // Release the descriptor first, so that Asio removes it from the epoll set. After close alone, epoll would
  // keep reporting the connection while another process of a fork holds it.
  if (socket_.is_open()) ::close(socket_.release());
}

void SecureStream::move_to(const asio::any_io_executor& loop) {
  const int fd = socket_.release();
  socket_ = asio::posix::stream_descriptor(loop, fd);
}

bool SecureStream::prepare(ssl_ctx_st* context) {
  ssl_.reset(SSL_new(context));
  BIO* bio = ssl_ ? SocketBio::make(&transport_) : nullptr;
  if (bio == nullptr) return false;
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), handshake_.get());
  if (end_ == TlsRole::kServer) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
    SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);  // the context's callback rejects all certificates
  }
  return true;
}

Result<std::unique_ptr<SecureStream>> SecureStream::make(TlsRole end, Start start) {
  const auto context = DDP_TRY(secure_context());
  std::unique_ptr<SecureStream> stream(new SecureStream(end, std::move(start)));
  if (stream->prepare(context)) return stream;
  ERR_clear_error();
  return Error{ErrorCode::kSystem, "no memory for a TLS link", ENOMEM};
}

SecureStream::Want SecureStream::wanted(int result) {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ: return Want::kRead;
    case SSL_ERROR_WANT_WRITE: return Want::kWrite;
    default: return Want::kFailed;
  }
}

Awaitable<error_code> SecureStream::wait_for(Want want) {
  turns_ = 0;
  using Descriptor = asio::posix::stream_descriptor;
  const auto [error] = co_await socket_.async_wait(
      want == Want::kRead ? Descriptor::wait_read : Descriptor::wait_write, kUseTuple);
  co_return closed_ ? error_code(asio::error::operation_aborted) : error;
}

/// A stream that always has data would keep the loop busy.
bool SecureStream::turn_is_over() {
  if (++turns_ < kTurnsInARow) return false;
  turns_ = 0;
  return true;
}

/// Returns the error of a failed call: that of the socket, or that the bytes were wrong.
error_code SecureStream::failure() {
  const int error = std::exchange(transport_.error, 0);
  ERR_clear_error();
  if (closed_) return asio::error::operation_aborted;
  if (error != 0) return {error, boost::system::system_category()};
  if (transport_.ended) return asio::error::eof;
  return tls_error();
}

/// Returns whether both ends used the key and agreed only on what this link allows.
bool SecureStream::proven() const {
  const SSL_CIPHER* suite = SSL_get_current_cipher(ssl_.get());
  return SSL_session_reused(ssl_.get()) == 1 && SSL_version(ssl_.get()) == TLS1_3_VERSION &&
         suite != nullptr && SSL_CIPHER_get_protocol_id(suite) == 0x1301 &&
         SSL_get0_peer_certificate(ssl_.get()) == nullptr &&
         (end_ == TlsRole::kClient || handshake_->key_asked);
}

/// Returns a printable quotation of the first bytes. OpenSSL may have read no more than the header of a
/// record, so the rest of what has arrived is read here.
std::string SecureStream::quote_first_bytes() {
  char rest[kFirstBytes];
  const std::size_t room = kFirstBytes - transport_.first.size();
  const ssize_t count = room > 0 ? ::recv(transport_.fd, rest, room, MSG_DONTWAIT) : 0;
  if (count > 0) transport_.first.append(rest, static_cast<std::size_t>(count));
  return printable_start(transport_.first);
}

HandshakeEnd SecureStream::handshake_failure() {
  const bool server = end_ == TlsRole::kServer;
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  const char* text = ERR_reason_error_string(code);
  const std::string detail = text != nullptr ? text : "";
  const bool record_came =
      transport_.first.empty() || static_cast<unsigned char>(transport_.first[0]) - 20u < 4u;
  const bool ended = transport_.ended;
  const error_code error = failure();
  if (closed_) return closed_by(error);
  if (reason > kAlertReasons && reason < kAlertReasons + 256) {
    const auto refusal =
        server ? std::nullopt : refusal_of(static_cast<std::uint8_t>(reason - kAlertReasons));
    return refusal ? HandshakeEnd{*refusal} : HandshakeEnd{LinkRefusal::kOtherTls, detail};
  }
  if (!record_came) return {LinkRefusal::kPlain, "it sent " + quote_first_bytes()};
  if (handshake_->key_asked && reason == SSL_R_BINDER_DOES_NOT_VERIFY) return {LinkRefusal::kTokenDiffers};
  if (ended || error != tls_error()) return closed_by(error);
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
    const Want want = wanted(result);
    if (want == Want::kFailed) co_return handshake_failure();
    if (const error_code error = co_await wait_for(want)) co_return closed_by(error);
  }
  if (!proven()) co_return HandshakeEnd{LinkRefusal::kOtherTls, "no key was used"};
  SSL_set_app_data(ssl_.get(), nullptr);
  handshake_.reset();
  transport_.keep_first = false;
  transport_.first = {};
  ready_ = true;
  co_return HandshakeEnd{};
}

Awaitable<ByteStream::Transferred> SecureStream::read_some(asio::mutable_buffer buffer) {
  if (turn_is_over()) co_await asio::post(socket_.get_executor(), asio::use_awaitable);
  while (!closed_ && ready_) {
    ERR_clear_error();
    std::size_t count = 0;
    int result = SSL_read_ex(ssl_.get(), buffer.data(), buffer.size(), &count);
    if (result == 1) {
      // Read other complete records too: a record has at most 16 KiB.
      std::size_t more = 0;
      while (count < buffer.size() && SSL_has_pending(ssl_.get()) == 1 &&
             SSL_read_ex(ssl_.get(), static_cast<char*>(buffer.data()) + count, buffer.size() - count,
                         &more) == 1)
        count += more;
      co_return Transferred{error_code(), count};
    }
    if (SSL_get_error(ssl_.get(), result) == SSL_ERROR_ZERO_RETURN)
      co_return Transferred{asio::error::eof, 0};
    const Want want = wanted(result);
    if (want == Want::kFailed) co_return Transferred{failure(), 0};
    if (transport_.received_at != 0) {
      transport_.received = {};  // all of it is read
      transport_.received_at = 0;
    }
    if (const error_code error = co_await wait_for(want)) co_return Transferred{error, 0};
  }
  co_return Transferred{asio::error::operation_aborted, 0};
}

Awaitable<ByteStream::Transferred> SecureStream::write_some(asio::const_buffer buffer) {
  if (turn_is_over()) co_await asio::post(socket_.get_executor(), asio::use_awaitable);
  std::size_t sent = 0;
  while (!closed_ && ready_) {
    ERR_clear_error();
    if (!write_pending_ && under_key_ >= rekey_after_ &&
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
    const Want want = wanted(result);
    if (want == Want::kFailed) co_return Transferred{failure(), sent};
    // OpenSSL holds the record and requires the same bytes again. They are not counted until the socket has
    // taken them.
    write_pending_ = true;
    if (const error_code error = co_await wait_for(want)) co_return Transferred{error, sent};
  }
  co_return Transferred{asio::error::operation_aborted, sent};
}

void SecureStream::close() {
  if (std::exchange(closed_, true)) return;
  if (ready_ && !write_pending_ && transport_.error == 0) SSL_shutdown(ssl_.get());
  ERR_clear_error();
  error_code ignored;
  socket_.close(ignored);
  transport_.fd = -1;
}

}  // namespace ddp::rendezvous
