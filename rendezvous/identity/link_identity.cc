#include "rendezvous/identity/link_identity.h"

#include <algorithm>
#include <optional>

#include "base/require.h"

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

}  // namespace ddp::rendezvous
