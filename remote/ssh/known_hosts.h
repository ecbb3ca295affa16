#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ddp::remote {

/// One key line of a known_hosts file (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT").
struct KnownKey {
  enum class Marker { kNone, kRevoked, kAuthority };
  Marker marker = Marker::kNone;
  std::string type;  ///< "ssh-ed25519"
  std::string key;   ///< base64
  std::string file;
  int line = 0;
};

enum class KeyVerdict {
  kKnown,
  kUnknown,    ///< no key of the host is known
  kOtherType,  ///< keys of the host are known, but none of the presented type
  kChanged,    ///< another key of this type is known: a new installation, or a man in the middle
  kRevoked,
};

/// The keys that may belong to one host.
struct HostKeys {
  std::string name;            ///< the name that was searched: "gpu01", "[gpu01]:2222", or the alias
  std::vector<KnownKey> keys;  ///< lines for that name
  std::vector<KnownKey>
      plain;  ///< lines for the name without its port, which OpenSSH accepts if the key is the same

  KeyVerdict verify(std::string_view type, std::string_view key) const;
  /// Returns the line that contradicts a key of this type (kChanged, kOtherType, kRevoked), or null.
  const KnownKey* witness(std::string_view type, std::string_view key) const;
  /// Returns whether a certificate authority's or a revoked line applies, which needs the ssh program.
  bool has_markers() const;
  /// Returns `algorithms` with those of the known key types first, so that the server presents a key that can
  /// be checked.
  std::string order_algorithms(const std::string& algorithms) const;
};

/// The known_hosts files of a user, parsed once for all hosts. Pure: the caller provides the texts.
class KnownHosts {
 public:
  void add_file(const std::string& file, std::string_view text);

  /// `alias` is HostKeyAlias, or empty.
  HostKeys find(const std::string& host, std::uint16_t port, const std::string& alias) const;

  /// Returns the name of a host in these files: "gpu01", "[gpu01]:2222".
  static std::string name_of(const std::string& host, std::uint16_t port);
  /// Returns a line for a new key, ending with a line feed. The name is hashed with `salt` (20 bytes) unless
  /// `salt` is empty.
  static std::string new_line(const std::string& name, std::string_view type, std::string_view key,
                              const std::string& salt);

 private:
  std::vector<KnownKey> collect(const std::string& name) const;

  std::vector<KnownKey> keys_;
  std::unordered_map<std::string, std::vector<std::size_t>> exact_;
  struct Patterns {
    std::vector<std::string> patterns;
    std::size_t key;
  };
  std::vector<Patterns> patterns_;
  struct Hashed {
    std::string salt;
    std::string hash;
    std::size_t key;
  };
  std::vector<Hashed> hashed_;
};

}  // namespace ddp::remote
