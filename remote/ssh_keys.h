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
  SshKey(std::string path, ssh_key_struct* key, std::string problem);
  ~SshKey();
  SshKey(const SshKey&) = delete;
  SshKey& operator=(const SshKey&) = delete;

  const std::string& path() const { return path_; }
  ssh_key_struct* get() const { return key_; }  ///< null when there is a problem
  const std::string& problem() const {
    return problem_;
  }                                 ///< "is encrypted", "cannot be read"; empty: usable
  std::string fingerprint() const;  ///< "SHA256:…"

 private:
  std::string path_;
  ssh_key_struct* key_;
  std::string problem_;
};

/// The keys of a user. Loop thread only (reads files; once for each path).
class SshKeys {
 public:
  using List = std::vector<std::shared_ptr<const SshKey>>;

  /// The keys behind these paths in their order, each preceded by its certificates: PATH-cert.pub, and those
  /// of `certificates` that fit. Files that do not exist are left out; those that cannot be used are in the
  /// list with their problem.
  List load(const std::vector<std::string>& paths, const std::vector<std::string>& certificates);

 private:
  std::shared_ptr<const SshKey> key(const std::string& path);
  std::shared_ptr<const SshKey> certified(const std::string& path, const std::string& certificate);
  std::map<std::string, std::shared_ptr<const SshKey>> loaded_;  ///< null: nothing there
};

}  // namespace ddp::remote
