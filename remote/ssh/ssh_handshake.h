#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "remote/ssh/known_hosts.h"
#include "remote/ssh/ssh_config.h"
#include "remote/start/resolver.h"

struct ssh_key_struct;
struct ssh_session_struct;

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

/// All that a session needs to know about its host. The loop thread fills it, an I/O thread reads it.
struct SshTarget {
  std::string label;  ///< the host's name in messages
  SshConfig config;
  std::vector<Endpoint> endpoints;  ///< in the order to try; never empty
  HostKeys known;
  std::string known_hosts_file;  ///< file for a new key, and the first file that messages name; may be empty
  bool accept_new_host_keys = false;
  SshKeys::List keys;
  std::string agent_socket;  ///< path of the ssh-agent's socket; empty: do not use one
  std::string ssh_command;   ///< "ssh -F FILE gpu01", for advice
  std::string command;       ///< the remote command line
  std::chrono::steady_clock::time_point deadline;
};

/// Sets a new session's options from the target; libssh reads no file itself. libssh owns `fd` afterwards.
/// Returns the name of an option whose value libssh does not know, or nullopt.
std::optional<std::string> configure(ssh_session_struct* session, const SshTarget& target, int fd);

/// Returns what is wrong with a server's first line (no SSH server, or only version 1), or nullopt.
std::optional<std::string> wrong_greeting(std::string_view line);

/// Runs after the key exchange. Returns nullopt when the server's key is known, or is new and was accepted
/// and saved. Else it returns kUnreachable with what to do.
std::optional<Error> check_host_key(ssh_session_struct* session, const SshTarget& target,
                                    const Endpoint& endpoint);

/// Returns the error when no key was accepted: kUnreachable with all that was tried. `offered` are the
/// server's methods (a libssh bit set). `agent_problem` says why the ssh-agent could not be used; empty: it
/// was used, or there is none.
Error login_refused(const SshTarget& target, const Endpoint& endpoint, int offered, bool agent_asked,
                    const std::string& agent_problem);

}  // namespace ddp::remote
