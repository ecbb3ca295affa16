#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp::rendezvous {

/// Role of the end that opens a TCP link. The key depends on it, so a key for one role fits no other.
enum class LinkRole : std::uint8_t {
  kAgent,   ///< a node that joins its job's master
  kMaster,  ///< a master that connects to a node's daemon
};
std::string_view role_name(LinkRole role);

/// Identity of the end that opens a TCP link: the identity of TLS's pre-shared key, sent in the clear. It
/// contains no secret, and it is unproven until the handshake has ended. Its text, also used on the wire:
///   ddplaunch-link/1 agent JOB NODE 0123…(32 hexadecimal digits of the nonce)
struct LinkIdentity {
  /// version of this text and of the key derivation
  static constexpr int kVersion = 1;
  static constexpr std::size_t kMaxName = 64;
  static constexpr std::size_t kMaxText = 200;

  LinkRole role = LinkRole::kAgent;
  std::string job;   ///< 1 … 64 letters, digits, '.', '_', '-'
  std::string node;  ///< same characters; "-" when it has no name
  std::array<std::uint8_t, 16> nonce{};

  friend bool operator==(const LinkIdentity&, const LinkIdentity&) = default;
};

/// Returns whether `name` is valid as job or node.
bool is_link_name(std::string_view name);
/// Turns a host's name into such a name, with '_' for other characters.
std::string link_name_of(std::string_view host);

std::string identity_text(const LinkIdentity& identity);

enum class IdentityFlaw : std::uint8_t {
  kForeign,       ///< not an identity of ddplaunch
  kOtherVersion,  ///< an identity of ddplaunch in another version
};
/// Strict: accepts only text that `identity_text` produces.
boost::system::result<LinkIdentity, IdentityFlaw> parse_identity(std::string_view text);

/// Result of parsing the first bytes of a connection that has not proved its identity.
struct ParsedClientHello {
  enum class Kind : std::uint8_t {
    kNeedsMore,
    kOffer,     ///< a whole TLS 1.3 ClientHello that offers one key
    kHttp,      ///< a request of a browser, a scanner or a proxy
    kPlain,     ///< not TLS
    kOtherTls,  ///< TLS, but not an acceptable hello; `why` has the reason
  };
  Kind kind = Kind::kNeedsMore;
  std::string_view identity;  ///< of the key: arbitrary bytes, a view into the parsed bytes
  std::string_view why;       ///< static text: "it offers no TLS 1.3"
};

/// A ddplaunch hello has about 450 bytes. A longer one is not from ddplaunch.
constexpr std::size_t kMaxClientHello = 1024;

/// Parses all bytes so far (kMaxClientHello at most), before any memory or TLS library is spent on them
/// (sans-IO). Strict: accepts only one record with TLS 1.3, TLS_AES_128_GCM_SHA256, one pre-shared key with
/// (EC)DHE, and no early data. Bytes after that record give kOtherTls, since an honest client waits for the
/// answer. RFC 8446, 4.1.2 and 4.2.
ParsedClientHello parse_client_hello(std::string_view bytes);

}  // namespace ddp::rendezvous
