#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "base/secret.h"

// OpenSSL's names; only secure_stream*.cc include its headers.
struct ssl_ctx_st;
struct ssl_st;

namespace ddp::rendezvous {

/// Shared by all TLS links of a process. Only TLS 1.3, TLS_AES_128_GCM_SHA256, X25519, and external
/// pre-shared keys with Diffie-Hellman; no certificate, ticket, session cache, early data, compression or
/// renegotiation. Thread-safe once made; must outlive its streams.
class SecureContext {
 public:
  /// kInternal: this machine's OpenSSL does not support that (FIPS mode without X25519, a policy without TLS
  /// 1.3).
  static Result<std::shared_ptr<const SecureContext>> make();

  ssl_ctx_st* native() const { return context_.get(); }

 private:
  struct FreeSslContext {
    void operator()(ssl_ctx_st* context) const;
  };
  explicit SecureContext(ssl_ctx_st* context) : context_(context) {}

  std::unique_ptr<ssl_ctx_st, FreeSslContext> context_;
};

/// Data for the callbacks of one handshake: set as the SSL's app data before it, removed after it.
struct SecureHandshake {
  std::string identity;
  Secret key;
  bool key_asked = false;  ///< server: the peer offered this identity
};

}  // namespace ddp::rendezvous
