#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "base/secret.h"
#include "rendezvous/identity/link_identity.h"

namespace ddp::rendezvous {

/// The way from a job's token to the key of one TLS handshake, HKDF-SHA256 (RFC 5869) all of it:
///   link key    = HKDF(token, salt "ddplaunch link 1", info "link ROLE JOB NODE")
///   session key = HKDF(link key, salt "ddplaunch link 1", info "session IDENTITY")
/// Who has the token can be anybody; who was given a link key alone can be that role and node of that job and
/// nobody else: it cannot play master to another node. 32 bytes each. kInternal: the library has no HKDF.
Result<Secret> link_key(const Secret& token, LinkRole role, std::string_view job, std::string_view node);
Result<Secret> session_key(const Secret& link_key, const LinkIdentity& identity);

/// Six hexadecimal digits by which two people see whether their tokens are the same. It leaves the token its
/// strength (24 of at least 128 bits) but belongs in logs of the job's own user only.
std::string token_check(const Secret& token);

/// HKDF-SHA256 itself; `size` is 255 * 32 at most.
Result<Secret> hkdf_sha256(std::string_view key, std::string_view salt, std::string_view info,
                           std::size_t size);

}  // namespace ddp::rendezvous
