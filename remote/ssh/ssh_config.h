#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddp::remote {

/// The effective SSH client configuration of one host, as `ssh -G` prints it: what the user's files, the
/// system's files and the program's defaults make together. Paths may still hold ~ and % (expand_ssh_tokens).
struct SshConfig {
  std::string host_name;  ///< what to connect to
  std::string user;
  std::uint16_t port = 22;
  std::vector<std::string> identity_files;
  std::vector<std::string> certificate_files;
  std::vector<std::string> user_known_hosts;  ///< new keys go into the first one
  std::vector<std::string> global_known_hosts;
  std::string host_key_alias;
  std::string identity_agent;  ///< empty: SSH_AUTH_SOCK; "none"
  std::string strict_host_key_checking = "ask";
  std::string address_family = "any";  ///< any, inet, inet6
  std::string ciphers, kex_algorithms, macs, host_key_algorithms, pubkey_algorithms;
  std::string preferred_authentications;
  std::string proxy;         ///< ProxyJump or ProxyCommand as written: the same text means the same jump host
  std::string proxy_jump;    ///< ProxyJump alone: "user@one:2222,two"; empty: none
  std::string control_path;  ///< the ssh program may find a shared connection; empty: none. Of one of the
                             ///< hosts that share this answer
  int connect_timeout = 0;   ///< seconds for connecting, greeting and key exchange; 0: the start limit alone
  int required_rsa_size = 0;  ///< bits; 0: the library's own limit
  bool identities_only = false;
  bool gssapi_authentication = false;
  bool pubkey_authentication = true;
  bool hash_known_hosts = false;
  bool compression = false;

  /// Options in use that libssh (0.10, 0.11) cannot serve, in the spelling of ssh_config(5): such a host is
  /// reached through the ssh program. Empty: libssh will do.
  std::vector<std::string> beyond_libssh;

  /// What the ssh program must be told (-o) so that it runs a command and stays: "SessionType=default". Empty
  /// with programs that know no such options.
  std::vector<std::string> for_a_command;
  std::string unread_file;  ///< a configuration that nothing here can read, since there is no ssh program
};

/// Reads the output of `ssh -G`. Lines that are not known are passed over: newer versions add some. Error
/// (kSystem): no "hostname" line, or a port that is not one.
Result<SshConfig> parse_ssh_config(std::string_view output);

/// What OpenSSH would do without any file, for a machine that has no ssh program.
SshConfig default_ssh_config(const std::string& host, const std::string& local_user);

/// The ciphers to offer, in order: aes128-gcm first (30 % less CPU than OpenSSH's first choice under libssh),
/// unless the user named an order. Empty stays empty.
std::string preferred_ciphers(const std::string& ciphers);

/// Values of the tokens in paths, for one host.
struct SshTokens {
  std::string home;                                                        ///< %d and ~
  std::string local_user;                                                  ///< %u
  std::string host_name;                                                   ///< %h
  std::string given_name;                                                  ///< %n
  std::string remote_user;                                                 ///< %r
  std::uint16_t port = 22;                                                 ///< %p
  std::string key_alias;                                                   ///< %k; empty: the given name
  std::function<std::optional<std::string>(const std::string&)> variable;  ///< ${NAME}
};

/// Expands ~/, %-tokens and ${NAME} in a path. Unset: a token or variable that is not known, so nothing can
/// be said.
std::optional<std::string> expand_ssh_tokens(std::string_view path, const SshTokens& tokens);

/// The option of which expand_ssh_tokens does not know a file, so that only ssh can tell it ("IdentityFile").
/// Empty: none.
std::string option_beyond_tokens(const SshConfig& config, const SshTokens& tokens);

}  // namespace ddp::remote
