#include "rendezvous/secure/secure_stream_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cstring>
#include <string_view>

namespace ddp::rendezvous {
namespace {

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

void SecureContext::FreeSslContext::operator()(ssl_ctx_st* context) const {
  SSL_CTX_free(context);
}

Result<std::shared_ptr<const SecureContext>> SecureContext::make() {
  std::shared_ptr<const SecureContext> made(new SecureContext(SSL_CTX_new(TLS_method())));
  if (made->native() != nullptr && configure(made->native())) return made;
  char why[160] = "";
  ERR_error_string_n(ERR_peek_last_error(), why, sizeof why);
  ERR_clear_error();
  return Error{ErrorCode::kInternal,
               std::string("this machine's OpenSSL offers no TLS 1.3 with TLS_AES_128_GCM_SHA256 and X25519 "
                           "(check for FIPS mode or a system policy): ") +
                   why};
}

}  // namespace ddp::rendezvous
