#include "remote/ssh/known_hosts.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/text.h"
#include "remote/ssh/ssh_config.h"

namespace ddp::remote {
namespace {

std::string_view next_word(std::string_view& line) {
  const std::size_t start = line.find_first_not_of(" \t");
  if (start == std::string_view::npos) return line = {};
  line.remove_prefix(start);
  const std::string_view word = line.substr(0, line.find_first_of(" \t"));
  line.remove_prefix(word.size());
  return word;
}

std::vector<std::string> split_list(const std::string& list) {
  const std::vector<std::string_view> parts = split(list, ',');
  return {parts.begin(), parts.end()};
}

std::string hmac_sha1(const std::string& key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  HMAC(EVP_sha1(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &size);
  return {reinterpret_cast<char*>(digest.data()), size};
}

std::optional<std::string> decode_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3 + 3, '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  // OpenSSL counts the padding as bytes.
  const auto padding = static_cast<std::size_t>(std::count(text.begin(), text.end(), '='));
  bytes.resize(static_cast<std::size_t>(size) -
               std::min<std::size_t>(padding, static_cast<std::size_t>(size)));
  return bytes;
}

std::string encode_base64(const std::string& bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

/// Returns the key type that a negotiated algorithm proves ("rsa-sha2-512" proves an "ssh-rsa" key).
std::string_view type_of_algorithm(std::string_view algorithm) {
  return algorithm == "rsa-sha2-256" || algorithm == "rsa-sha2-512" ? "ssh-rsa" : algorithm;
}

}  // namespace

void KnownHosts::add_file(const std::string& file, std::string_view text) {
  int number = 0;
  for (std::string_view line : split_lines(text)) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);

    KnownKey key;
    key.file = file;
    key.line = number;
    std::string_view names = next_word(line);
    if (names.empty() || names.front() == '#') continue;
    if (names.front() == '@') {
      // A line with an unknown marker must not count as trusted.
      if (names != "@revoked" && names != "@cert-authority") continue;
      key.marker = names == "@revoked" ? KnownKey::Marker::kRevoked : KnownKey::Marker::kAuthority;
      names = next_word(line);
    }
    key.type = next_word(line);
    key.key = next_word(line);
    if (key.key.empty()) continue;
    keys_.push_back(std::move(key));
    const std::size_t index = keys_.size() - 1;

    if (names.substr(0, 3) == "|1|") {
      const auto parts = split(names.substr(3), '|');
      const auto salt = decode_base64(parts.front());
      const auto hash = decode_base64(parts.back());
      if (parts.size() == 2 && salt && hash) hashed_.push_back({*salt, *hash, index});
      continue;
    }
    std::vector<std::string> patterns = split_list(lower_case(names));
    if (names.find_first_of("*?!") == std::string_view::npos) {
      for (const std::string& name : patterns)
        exact_[name].push_back(index);
    } else {
      patterns_.push_back({std::move(patterns), index});
    }
  }
}

std::vector<KnownKey> KnownHosts::collect(const std::string& name) const {
  std::vector<std::size_t> found;
  if (const auto exact = exact_.find(name); exact != exact_.end()) found = exact->second;
  for (const Patterns& line : patterns_) {
    if (matches_ssh_patterns(line.patterns, name)) found.push_back(line.key);
  }
  for (const Hashed& line : hashed_) {
    // Each salt needs its own hash. Only hosts of hashed lines pay for that (HashKnownHosts).
    if (hmac_sha1(line.salt, name) == line.hash) found.push_back(line.key);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  std::vector<KnownKey> keys;
  for (std::size_t index : found)
    keys.push_back(keys_[index]);
  return keys;
}

std::string KnownHosts::name_of(const std::string& host, std::uint16_t port) {
  const std::string name = lower_case(host);
  return port == 22 ? name : "[" + name + "]:" + std::to_string(port);
}

HostKeys KnownHosts::find(const std::string& host, std::uint16_t port, const std::string& alias) const {
  HostKeys answer;
  answer.name = alias.empty() ? name_of(host, port) : lower_case(alias);
  answer.keys = collect(answer.name);
  if (alias.empty() && port != 22) answer.plain = collect(lower_case(host));
  return answer;
}

std::string KnownHosts::new_line(const std::string& name, std::string_view type, std::string_view key,
                                 const std::string& salt) {
  std::string shown = name;
  if (!salt.empty()) shown = "|1|" + encode_base64(salt) + "|" + encode_base64(hmac_sha1(salt, name));
  return shown + " " + std::string(type) + " " + std::string(key) + "\n";
}

KeyVerdict HostKeys::verify(std::string_view type, std::string_view key) const {
  bool any = false;
  bool same_type = false;
  bool known = false;
  for (const KnownKey& line : keys) {
    if (line.marker == KnownKey::Marker::kRevoked && line.key == key) return KeyVerdict::kRevoked;
    if (line.marker != KnownKey::Marker::kNone) continue;
    any = true;
    same_type = same_type || line.type == type;
    known = known || (line.type == type && line.key == key);
  }
  // As in ssh: a key that is known for the name without the port is accepted if there is none for this port.
  // A revoked one counts in both.
  for (const KnownKey& line : plain) {
    if (line.marker == KnownKey::Marker::kRevoked && line.key == key) return KeyVerdict::kRevoked;
    if (!any && line.marker == KnownKey::Marker::kNone && line.type == type && line.key == key) known = true;
  }
  if (known) return KeyVerdict::kKnown;
  if (!any) return KeyVerdict::kUnknown;
  return same_type ? KeyVerdict::kChanged : KeyVerdict::kOtherType;
}

const KnownKey* HostKeys::witness(std::string_view type, std::string_view key) const {
  const KnownKey* other = nullptr;
  for (const auto* list : {&keys, &plain}) {
    for (const KnownKey& line : *list) {
      if (line.marker == KnownKey::Marker::kRevoked && line.key == key) return &line;
    }
  }
  for (const KnownKey& line : keys) {
    if (line.marker != KnownKey::Marker::kNone) continue;
    if (line.type == type) return &line;
    if (other == nullptr) other = &line;
  }
  return other;
}

bool HostKeys::has_markers() const {
  const auto marked = [](const KnownKey& line) { return line.marker != KnownKey::Marker::kNone; };
  return std::any_of(keys.begin(), keys.end(), marked) || std::any_of(plain.begin(), plain.end(), marked);
}

std::string HostKeys::order_algorithms(const std::string& algorithms) const {
  const auto is_known = [this](const std::string& algorithm) {
    const auto same = [&algorithm](const KnownKey& line) {
      return line.marker == KnownKey::Marker::kNone && line.type == type_of_algorithm(algorithm);
    };
    return std::any_of(keys.begin(), keys.end(), same) ||
           (keys.empty() && std::any_of(plain.begin(), plain.end(), same));
  };
  std::vector<std::string> list = split_list(algorithms);
  // Known types first, so that the server shows the key that can be compared (ssh's order_hostkeyalgs).
  std::stable_partition(list.begin(), list.end(), is_known);
  return join(list, ",");
}

}  // namespace ddp::remote
