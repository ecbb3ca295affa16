#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "base/secret.h"

// OpenSSL's own names; only secure_stream*.cc include its headers.
struct ssl_ctx_st;
struct ssl_st;

namespace ddp::rendezvous {

/// What all TLS links of a process share: TLS 1.3 only, TLS_AES_128_GCM_SHA256 only, X25519 only, external
/// pre-shared keys with Diffie-Hellman only; no certificate, ticket, session cache, early data, compression
/// or renegotiation. Thread-safe once made; outlives its streams.
class SecureContext {
 public:
  /// kInternal: this machine's OpenSSL does not do that (FIPS mode without X25519, a policy without TLS 1.3).
  static Result<std::shared_ptr<const SecureContext>> make();

  ssl_ctx_st* native() const { return context_.get(); }

 private:
  struct FreeSslContext {
    void operator()(ssl_ctx_st* context) const;
  };
  explicit SecureContext(ssl_ctx_st* context) : context_(context) {}

  std::unique_ptr<ssl_ctx_st, FreeSslContext> context_;
};

/// What the callbacks of one handshake need: set as the SSL's app data before it, gone after it.
struct SecureHandshake {
  std::string identity;
  Secret key;
  bool key_asked = false;  ///< server: the peer offered just this identity
};

}  // namespace ddp::rendezvous
