#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp::rendezvous {

/// What the end that opens a TCP link is. It goes into the key, so that a key made for one role fits no
/// other.
enum class LinkRole : std::uint8_t {
  kAgent,   ///< a node that joins its job's master
  kMaster,  ///< a master that comes to a node's daemon
};
std::string_view role_name(LinkRole role);

/// Who opens a TCP link, in the clear: the identity of TLS's pre-shared key. Nothing in it is secret, and
/// nothing of it is true before the handshake has ended. As text, which is its form on the wire:
///   ddplaunch-link/1 agent JOB NODE 0123…(32 hexadecimal digits of the nonce)
struct LinkIdentity {
  /// Of this text and of the way from it to the key.
  static constexpr int kVersion = 1;
  static constexpr std::size_t kMaxName = 64;
  static constexpr std::size_t kMaxText = 200;

  LinkRole role = LinkRole::kAgent;
  std::string job;   ///< 1 … 64 letters, digits, '.', '_', '-'
  std::string node;  ///< the same; "-" when it has no name
  std::array<std::uint8_t, 16> nonce{};

  friend bool operator==(const LinkIdentity&, const LinkIdentity&) = default;
};

/// True for what may stand as job or node.
bool is_link_name(std::string_view name);
/// A host's name as one, foreign characters as '_'.
std::string link_name_of(std::string_view host);

std::string identity_text(const LinkIdentity& identity);

enum class IdentityFlaw : std::uint8_t {
  kForeign,       ///< somebody else's identity
  kOtherVersion,  ///< ours, of another version
};
/// Strict: `identity_text` of the result is `text`.
boost::system::result<LinkIdentity, IdentityFlaw> parse_identity(std::string_view text);

}  // namespace ddp::rendezvous
