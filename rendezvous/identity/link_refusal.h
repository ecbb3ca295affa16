#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/identity/link_identity.h"

namespace ddp::rendezvous {

/// Why a TCP link did not come about. The listening end tells the joining one by a TLS alert; where it has
/// none, by closing.
enum class LinkRefusal : std::uint8_t {
  kTokenDiffers,  ///< the key fits the identity, not the token
  kOtherJob,      ///< the identity names a job that is not here
  kOtherRole,     ///< a master came where agents are awaited, or the other way round
  kOtherVersion,  ///< of the identity and the way to the key
  kHttp,          ///< a browser, a scanner, a proxy
  kPlain,         ///< other bytes than TLS
  kOtherTls,      ///< TLS, but no offer of ours
  kSilent,        ///< the deadline passed
  kEvicted,       ///< it was too slow when others waited
  kTooMany,       ///< its address has too many unproven connections, or failed too often
  kBroken,        ///< it hung up, or broke the protocol
};

/// The alert that says it (RFC 8446, 6.2); nothing where the peer speaks no TLS or would not wait.
std::optional<std::uint8_t> alert_of(LinkRefusal refusal);
/// What an alert from the far side means for the one who joins; nothing when it tells no reason of ours.
std::optional<LinkRefusal> refusal_of(std::uint8_t alert);
/// A fatal alert as one TLS record.
std::string alert_record(std::uint8_t alert);

/// The listening end's line for its log. `peer` is its address, `claim` whom its identity names ("agent gpu02
/// of job x", unproven, may be empty), `detail` what it said or what is wrong with it (printable, may be
/// empty).
struct RefusedPeer {
  std::string peer;
  std::string claim;
  std::string detail;
};
struct ListenSide {
  std::string where;         ///< "the control port 29400"
  std::string token_origin;  ///< LinkToken::origin
  std::string token_check;   ///< token_check() of it
};
std::string refusal_line(LinkRefusal refusal, const RefusedPeer& peer, const ListenSide& here);

/// The joining end's text: who refused, what this node has, what to do.
struct JoinSide {
  std::string where;  ///< "gpu01:29400 (10.0.0.2)"
  std::string job;
  std::string token_origin;
  std::string token_check;
  LinkRole role = LinkRole::kAgent;  ///< of this end
};
std::string join_refusal_text(LinkRefusal refusal, const JoinSide& here);

/// At most `limit` bytes of what a stranger said, as one line of printable ASCII.
std::string printable_start(std::string_view bytes, std::size_t limit = 40);

}  // namespace ddp::rendezvous
