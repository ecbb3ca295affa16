#include "rendezvous/identity/link_identity.h"

#include <algorithm>
#include <optional>

namespace ddp::rendezvous {
namespace {

constexpr std::string_view kPrefix = "ddplaunch-link/";
constexpr std::string_view kDigits = "0123456789abcdef";

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

/// Takes the word before the next space off `text`, with the space. Without a space, takes all of `text`.
std::string_view take_word(std::string_view& text) {
  const std::size_t space = text.find(' ');
  const std::string_view word = text.substr(0, space);
  text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  return word;
}

std::optional<LinkRole> role_of(std::string_view name) {
  for (const LinkRole role : {LinkRole::kAgent, LinkRole::kMaster}) {
    if (name == role_name(role)) return role;
  }
  return std::nullopt;
}

bool read_nonce(std::string_view text, std::array<std::uint8_t, 16>& nonce) {
  if (text.size() != 2 * nonce.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) return false;
    nonce[i / 2] = static_cast<std::uint8_t>(nonce[i / 2] << 4 | digit);
  }
  return true;
}

}  // namespace

std::string_view role_name(LinkRole role) {
  switch (role) {
    case LinkRole::kAgent:
      return "agent";
    case LinkRole::kMaster:
      return "master";
  }
  return "?";
}

bool is_link_name(std::string_view name) {
  return !name.empty() && name.size() <= LinkIdentity::kMaxName &&
         std::all_of(name.begin(), name.end(), is_name_character);
}

std::string link_name_of(std::string_view host) {
  std::string name(host.substr(0, LinkIdentity::kMaxName));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !is_name_character(c); }, '_');
  return name.empty() ? "-" : name;
}

std::string identity_text(const LinkIdentity& identity) {
  DDP_REQUIRE(is_link_name(identity.job) && is_link_name(identity.node), identity.job, identity.node);
  std::string text(kPrefix);
  text += std::to_string(LinkIdentity::kVersion);
  for (const std::string_view word :
       {role_name(identity.role), std::string_view(identity.job), std::string_view(identity.node)}) {
    text += ' ';
    text += word;
  }
  text += ' ';
  for (const std::uint8_t byte : identity.nonce) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

boost::system::result<LinkIdentity, IdentityFlaw> parse_identity(std::string_view text) {
  if (!text.starts_with(kPrefix)) return IdentityFlaw::kForeign;
  text.remove_prefix(kPrefix.size());
  const std::string_view version = take_word(text);
  const bool is_number =
      !version.empty() && version.size() < 6 && version[0] != '0' &&
      std::all_of(version.begin(), version.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!is_number) return IdentityFlaw::kForeign;
  if (version != std::to_string(LinkIdentity::kVersion)) return IdentityFlaw::kOtherVersion;
  LinkIdentity identity;
  const auto role = role_of(take_word(text));
  const std::string_view job = take_word(text);
  const std::string_view node = take_word(text);
  if (!role || !is_link_name(job) || !is_link_name(node) || !read_nonce(text, identity.nonce))
    return IdentityFlaw::kForeign;
  identity.role = *role;
  identity.job = job;
  identity.node = node;
  return identity;
}

namespace {

using Kind = ParsedClientHello::Kind;

constexpr std::size_t kRecordHeader = 5;
constexpr std::uint8_t kHandshakeRecord = 22;
constexpr std::uint8_t kClientHello = 1;
constexpr std::size_t kSha256Size = 32;

enum ExtensionType : std::uint16_t {
  kPreSharedKey = 41,
  kEarlyData = 42,
  kSupportedVersions = 43,
  kKeyExchangeModes = 45,
};

/// Takes fields off the front. After a missing field, good() stays false.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}

  bool good() const { return good_; }
  bool empty() const { return bytes_.empty(); }
  bool done() const { return good_ && bytes_.empty(); }
  std::size_t number(std::size_t width) {
    std::size_t value = 0;
    for (const char c : take(width))
      value = value << 8 | static_cast<std::uint8_t>(c);
    return value;
  }
  std::string_view take(std::size_t size) {
    if (size > bytes_.size()) {
      good_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  /// Takes a field that follows its length, a number of `width` bytes.
  std::string_view sized(std::size_t width) { return take(number(width)); }

 private:
  std::string_view bytes_;
  bool good_ = true;
};

/// Returns whether a list of numbers of `width` bytes contains `wanted`.
bool holds(std::string_view list, std::size_t width, std::size_t wanted) {
  Fields fields(list);
  bool found = false;
  while (fields.good() && !fields.empty())
    found = fields.number(width) == wanted || found;
  return fields.good() && found;
}

ParsedClientHello other(std::string_view why) {
  return {Kind::kOtherTls, {}, why};
}

constexpr std::string_view kMalformed = "its hello is malformed";

struct Offer {
  bool tls13 = false;
  bool with_dhe = false;
  bool early_data = false;
  std::optional<std::string_view> keys;  ///< the pre_shared_key extension
};

/// Returns false when malformed. pre_shared_key must be the last extension, since its binder covers all bytes
/// before it.
bool read_extensions(std::string_view bytes, Offer& offer) {
  Fields fields(bytes);
  while (fields.good() && !fields.empty()) {
    if (offer.keys) return false;
    const std::size_t type = fields.number(2);
    const std::string_view body = fields.sized(2);
    Fields in_body(body);
    if (type == kSupportedVersions)
      offer.tls13 = holds(in_body.sized(1), 2, 0x0304);
    else if (type == kKeyExchangeModes)
      offer.with_dhe = holds(in_body.sized(1), 1, 1);
    else if (type == kEarlyData)
      offer.early_data = true;
    else if (type == kPreSharedKey)
      offer.keys = body;
  }
  return fields.good();
}

ParsedClientHello read_keys(std::string_view extension) {
  Fields fields(extension);
  Fields identities(fields.sized(2));
  Fields binders(fields.sized(2));
  const std::string_view identity = identities.sized(2);
  (void)identities.take(4);  // the age of a ticket
  const std::string_view binder = binders.sized(1);
  if (!fields.done() || !identities.good() || !binders.good()) return other(kMalformed);
  if (!identities.empty() || !binders.empty()) return other("it offers more than one key");
  if (identity.empty() || binder.size() != kSha256Size) return other(kMalformed);
  return {Kind::kOffer, identity, {}};
}

/// `bytes` is the hello's body.
ParsedClientHello read_hello(std::string_view bytes) {
  Fields fields(bytes);
  const std::size_t version = fields.number(2);
  (void)fields.take(32);  // random
  const std::string_view session = fields.sized(1);
  const std::string_view suites = fields.sized(2);
  const std::string_view compressions = fields.sized(1);
  if (!fields.good() || version != 0x0303 || session.size() > 32) return other("it is not TLS 1.3");
  if (fields.empty()) return other("it is not TLS 1.3");
  const std::string_view extensions = fields.sized(2);
  Offer offer;
  if (!fields.done() || compressions != std::string_view("\0", 1) || !read_extensions(extensions, offer))
    return other(kMalformed);
  if (!offer.tls13) return other("it offers no TLS 1.3");
  if (!holds(suites, 2, 0x1301)) return other("it does not offer TLS_AES_128_GCM_SHA256");
  if (offer.early_data) return other("it sends early data");
  if (!offer.keys) return other("it offers no key");
  if (!offer.with_dhe) return other("it offers a key without Diffie-Hellman");
  return read_keys(*offer.keys);
}

/// Classifies bytes that are not TLS, for the log. Waits for a whole HTTP method if the bytes may start one.
ParsedClientHello read_plain(std::string_view bytes) {
  static constexpr std::array<std::string_view, 9> kMethods{
      "GET ", "POST ", "HEAD ", "PUT ", "OPTIONS ", "CONNECT ", "DELETE ", "TRACE ", "PRI * "};
  for (const std::string_view method : kMethods) {
    if (bytes.starts_with(method)) return {Kind::kHttp, {}, {}};
    if (method.starts_with(bytes)) return {};
  }
  return {Kind::kPlain, {}, {}};
}

}  // namespace

ParsedClientHello parse_client_hello(std::string_view bytes) {
  if (bytes.empty()) return {};
  if (static_cast<std::uint8_t>(bytes[0]) != kHandshakeRecord) return read_plain(bytes);
  if (bytes.size() >= 2 && bytes[1] != 3) return {Kind::kPlain, {}, {}};
  if (bytes.size() < kRecordHeader) return {};
  Fields record(bytes);
  (void)record.take(3);
  const std::size_t length = record.number(2);
  if (length < 4 || length > kMaxClientHello - kRecordHeader)
    return other("its hello is longer than a hello of ddplaunch");
  if (bytes.size() < kRecordHeader + length) {
    // The bytes so far may already be wrong; then do not wait for the rest.
    if (bytes.size() > kRecordHeader && bytes[kRecordHeader] != kClientHello) return other(kMalformed);
    return {};
  }
  if (bytes.size() > kRecordHeader + length) return other("it does not wait for an answer");
  Fields handshake(record.take(length));
  if (handshake.number(1) != kClientHello) return other(kMalformed);
  const std::string_view body = handshake.sized(3);
  if (!handshake.done()) return other(kMalformed);
  return read_hello(body);
}

}  // namespace ddp::rendezvous
