#include "rendezvous/secure/secure_stream_key.h"

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <array>
#include <memory>
#include <vector>

namespace ddp::rendezvous {
namespace {

constexpr std::string_view kSalt = "ddplaunch link 1";
constexpr std::size_t kKeySize = 32;

struct FreeKdf {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

/// Fetched only once: a fetch walks all providers under a lock.
EVP_KDF* hkdf() {
  static const std::unique_ptr<EVP_KDF, FreeKdf> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  return kdf.get();
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
  std::string text;
  if (!digest) return text;
  for (const char c : digest->reveal()) {
    const auto byte = static_cast<unsigned char>(c);
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace ddp::rendezvous
