#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "base/secret.h"
#include "rendezvous/identity/link_identity.h"

namespace ddp::rendezvous {

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

}  // namespace ddp::rendezvous
