#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/identity/link_identity.h"

namespace ddp::rendezvous {

/// The reason why a TCP link was refused. The listening end reports it to the joining end by a TLS alert, or,
/// where there is no alert for it, by closing.
enum class LinkRefusal : std::uint8_t {
  kTokenDiffers,  ///< the key fits the identity but not the token
  kOtherJob,      ///< the identity names a job that does not run here
  kOtherRole,     ///< a master connected to a port for agents, or vice versa
  kOtherVersion,  ///< another version of the identity and the key derivation
  kHttp,          ///< HTTP from a browser, a scanner or a proxy
  kPlain,         ///< bytes that are not TLS
  kOtherTls,      ///< TLS, but not a hello of ddplaunch
  kSilent,        ///< the deadline passed
  kEvicted,       ///< too slow while others waited
  kTooMany,       ///< its address has too many unproven connections, or failed too often
  kBroken,        ///< hung up, or violated the protocol
};

/// Returns the alert for a refusal (RFC 8446, 6.2), or nothing if the peer does not speak TLS or would not
/// wait.
std::optional<std::uint8_t> alert_of(LinkRefusal refusal);
/// Returns the refusal that an alert means to the joining end, or nothing if the alert is no such refusal.
std::optional<LinkRefusal> refusal_of(std::uint8_t alert);
/// Builds a fatal alert as one TLS record.
std::string alert_record(std::uint8_t alert);

/// Builds the listening end's log line. `peer` is the address. `claim` is the peer's identity ("agent gpu02
/// of job x", unproven, may be empty). `detail` is what the peer sent or what is wrong with it (printable,
/// may be empty).
struct RefusedPeer {
  std::string peer;
  std::string claim;
  std::string detail;
  std::string place{};  ///< "node gpu02, job job1", as it claims; empty: no claim
};
struct ListenSide {
  std::string where;         ///< "the control port 29400"
  std::string token_origin;  ///< LinkToken::origin
  std::string token_check;   ///< token_check() of the token
};
std::string refusal_line(LinkRefusal refusal, const RefusedPeer& peer, const ListenSide& here);

/// Builds the joining end's text: who refused, what this node has, what to do.
struct JoinSide {
  std::string where;  ///< "gpu01:29400 (10.0.0.2)"
  std::string job;
  std::string token_origin;
  std::string token_check;
  LinkRole role = LinkRole::kAgent;  ///< of this end
};
std::string join_refusal_text(LinkRefusal refusal, const JoinSide& here);

/// Returns at most `limit` bytes from an unproven peer as one line of printable ASCII.
std::string printable_start(std::string_view bytes, std::size_t limit = 40);

}  // namespace ddp::rendezvous
