#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

struct ssh_key_struct;

namespace ddp::remote {

/// One private key file (or key and certificate), read once and used by all sessions. libssh only reads it
/// when it signs, so several threads may use it at once.
class SshKey {
 public:
  /// Why libssh cannot sign with it.
  enum class Problem {
    kNone,
    kEncrypted,   ///< needs a passphrase, or an ssh-agent that holds it
    kUnreadable,  ///< no permission
    kAbsent,      ///< nothing is there, although somebody named it
    kOpen,        ///< ours, and others may read or write it: ssh does not use it either
    kNoFile,      ///< a pipe, a directory, …
    kPublic,      ///< a public key, or only PATH.pub is there: an ssh-agent or a token has the private one
    kUnknown,     ///< a key on a security token, or a format that libssh does not know: the ssh program may
  };

  SshKey(std::string path, ssh_key_struct* key, Problem problem, unsigned mode = 0);
  ~SshKey();
  SshKey(const SshKey&) = delete;
  SshKey& operator=(const SshKey&) = delete;

  const std::string& path() const { return path_; }
  ssh_key_struct* get() const { return key_; }  ///< null when there is a problem
  Problem problem() const { return problem_; }
  std::string problem_text() const;        ///< "is encrypted", "cannot be read"; empty: usable
  unsigned mode() const { return mode_; }  ///< of kOpen
  std::string fingerprint() const;         ///< "SHA256:…"

 private:
  std::string path_;
  ssh_key_struct* key_;
  Problem problem_;
  unsigned mode_;
};

/// The keys of a user. Loop thread only (reads files; once for each path).
class SshKeys {
 public:
  using List = std::vector<std::shared_ptr<const SshKey>>;

  /// The keys behind these paths in their order, each preceded by its certificates: PATH-cert.pub, and those
  /// of `certificates` that fit. Where PATH is missing it is PATH.pub; where that is, too, nothing for the
  /// names that ssh looks for by itself. Those that cannot be used are in the list with their problem.
  List load(const std::vector<std::string>& paths, const std::vector<std::string>& certificates);

  /// One of `certificates`, or PATH-cert.pub of a key that only an ssh-agent can use, that load() could give
  /// to no key; empty: none.
  std::string lonely_certificate(const List& keys, const std::vector<std::string>& certificates);

 private:
  std::shared_ptr<const SshKey> key(const std::string& path);
  std::shared_ptr<const SshKey> certified(const std::string& path, const std::string& certificate);
  std::map<std::string, std::shared_ptr<const SshKey>> loaded_;  ///< null: nothing there
};

}  // namespace ddp::remote
