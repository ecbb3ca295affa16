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

/// The effective SSH client configuration of one host, as `ssh -G` prints it. It combines the user's files,
/// the system's files and the program's defaults. Paths may still hold ~ and % (expand_ssh_tokens).
struct SshConfig {
  std::string host_name;  ///< name or address to connect to
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
  std::string control_path;  ///< the ssh program may find a shared connection; empty: none. It belongs to one
                             ///< of the hosts that share this answer
  int connect_timeout = 0;   ///< seconds for connecting, greeting and key exchange; 0: only the start limit
  int connection_attempts = 1;  ///< tries to connect to all addresses, one per second
  int required_rsa_size = 0;    ///< bits; 0: the library's own limit
  bool identities_only = false;
  bool gssapi_authentication = false;
  bool pubkey_authentication = true;
  bool hash_known_hosts = false;
  bool compression = false;

  /// Active options that libssh (0.10, 0.11) cannot serve, in the spelling of ssh_config(5). They make the
  /// host use the ssh program. Empty: libssh can serve the host.
  std::vector<std::string> beyond_libssh;

  /// Options (-o) that make the ssh program run a command and stay: "SessionType=default". Empty for programs
  /// that do not know such options.
  std::vector<std::string> for_a_command;
  std::string unread_file;  ///< a configuration file that cannot be read, because there is no ssh program
};

/// Reads the output of `ssh -G`. Unknown lines are skipped, because newer versions add some. Error (kSystem):
/// no "hostname" line, or an invalid port.
Result<SshConfig> parse_ssh_config(std::string_view output);

/// Returns OpenSSH's configuration without any file, for a machine that has no ssh program.
SshConfig default_ssh_config(const std::string& host, const std::string& local_user);

/// Returns the ciphers to offer, in order: aes128-gcm first (under libssh 30 % less CPU than OpenSSH's first
/// choice), unless the user gave an order. Where libssh does not check GCM's tags (`gcm_is_checked`), GCM
/// comes last: only a server without another cipher uses it. An empty text stays empty.
std::string preferred_ciphers(const std::string& ciphers, bool gcm_is_checked);

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

/// Expands ~/, %-tokens and ${NAME} in a path. Returns nullopt for an unknown token or variable.
std::optional<std::string> expand_ssh_tokens(std::string_view path, const SshTokens& tokens);

/// Returns the option with a path that expand_ssh_tokens cannot expand ("IdentityFile"), so that only ssh can
/// find the file. Empty: none.
std::string option_beyond_tokens(const SshConfig& config, const SshTokens& tokens);

}  // namespace ddp::remote
