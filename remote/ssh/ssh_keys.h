#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

struct ssh_key_struct;

namespace ddp::remote {

/// One private key file (or key and certificate), read once and used by all sessions. libssh only reads it to
/// sign, so several threads may use it at once.
class SshKey {
 public:
  /// The reason why libssh cannot sign with the key.
  enum class Problem {
    kNone,
    kEncrypted,   ///< needs a passphrase, or an ssh-agent that holds the key
    kUnreadable,  ///< no permission
    kAbsent,      ///< named, but missing
    kOpen,        ///< the user's own file, which others may read or write: ssh does not use it either
    kNoFile,      ///< a pipe, a directory, …
    kPublic,      ///< a public key, or only PATH.pub exists: an ssh-agent or a token has the private key
    kUnknown,     ///< a key on a security token, or a format unknown to libssh: the ssh program may support
                  ///< it
  };

  SshKey(std::string path, ssh_key_struct* key, Problem problem, unsigned mode = 0);
  ~SshKey();
  SshKey(const SshKey&) = delete;
  SshKey& operator=(const SshKey&) = delete;

  const std::string& path() const { return path_; }
  ssh_key_struct* get() const { return key_; }  ///< null if there is a problem
  Problem problem() const { return problem_; }
  std::string problem_text() const;        ///< "is encrypted", "cannot be read"; empty: usable
  unsigned mode() const { return mode_; }  ///< the file mode, for kOpen

 private:
  std::string path_;
  ssh_key_struct* key_;
  Problem problem_;
  unsigned mode_;
};

/// The keys of a user. Loop thread only. It reads each file once.
class SshKeys {
 public:
  using List = std::vector<std::shared_ptr<const SshKey>>;

  /// Returns the keys at these paths in their order. Before each key come its certificates: PATH-cert.pub and
  /// the fitting ones of `certificates`. If PATH is missing, PATH.pub takes its place. If both are missing,
  /// names that ssh tries by default are left out. Unusable keys stay in the list with their problem.
  List load(const std::vector<std::string>& paths, const std::vector<std::string>& certificates);

  /// Returns a certificate that load() could give to no key; empty: none. It is one of `certificates`, or
  /// PATH-cert.pub of a key that only an ssh-agent can use.
  std::string lonely_certificate(const List& keys, const std::vector<std::string>& certificates);

 private:
  std::shared_ptr<const SshKey> key(const std::string& path);
  std::shared_ptr<const SshKey> certified(const std::string& path, const std::string& certificate);
  std::map<std::string, std::shared_ptr<const SshKey>> loaded_;  ///< null: no such key
};

}  // namespace ddp::remote
