#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "remote/hosts/host.h"
#include "remote/start/resolver.h"

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

/// Finds what can distinguish hosts in SSH configuration files. `ssh -G` costs 8 ms per host. Hosts for which
/// every Host line matches alike have the same configuration, so one query serves them all.
class SshConfigShape {
 public:
  /// Adds one file's text. Returns the words of its Include lines, which the caller reads and adds as well.
  std::vector<std::string> add(std::string_view text);

  /// Hosts with equal signatures share one answer of `ssh -G`, in which each host's name replaces the queried
  /// name. Empty: the files can distinguish any two hosts (Match, tokens, canonical names), so each host
  /// needs its own query.
  std::string signature(const std::string& host) const;

  /// Returns the keywords in the files that have no effect on a login through libssh, although a user may
  /// expect one, in alphabetical order: "IPQoS".
  const std::set<std::string>& without_effect() const { return without_effect_; }

 private:
  std::vector<std::vector<std::string>> host_lines_;
  std::vector<std::string> host_names_;
  std::set<std::string> without_effect_;
  bool asks_for_each_ = false;
};

/// Matches ssh's pattern lists: * and ? match, ! excludes, case counts.
bool matches_ssh_pattern(std::string_view pattern, std::string_view text);
bool matches_ssh_patterns(const std::vector<std::string>& patterns, std::string_view text);

/// Finds the effective SSH configuration of hosts with `ssh -G`, run as rarely as the user's files allow and
/// at most eight at a time. It returns OpenSSH's defaults if this machine has no ssh program. Loop thread
/// only.
class SshConfigSource : public std::enable_shared_from_this<SshConfigSource> {
 public:
  /// `file` as in `ssh -F`: only that file is read. Empty: the user's and the system's files.
  SshConfigSource(asio::any_io_executor loop, std::string program, std::string file);
  SshConfigSource(const SshConfigSource&) = delete;
  SshConfigSource& operator=(const SshConfigSource&) = delete;

  /// Returns the configuration after the overrides of the host's entry: user, port, address, identity.
  /// Errors: kUnreachable with the program's text when it refuses the configuration, and when `file` cannot
  /// be read; kTimeout at `deadline`.
  Awaitable<Result<SshConfig>> find(Host host, std::chrono::steady_clock::time_point deadline);

  /// SshConfigShape::without_effect; complete after the first answer of find().
  const std::set<std::string>& without_effect() const { return shape_.without_effect(); }

  int questions() const { return questions_; }  ///< number of ssh -G runs

 private:
  struct Answer;
  void read_files();
  void read_file(const std::string& path, int depth);
  static Awaitable<void> ask(std::shared_ptr<SshConfigSource> self, std::shared_ptr<Answer> answer,
                             Host host);
  Awaitable<Result<SshConfig>> run(Host host);
  Awaitable<Result<SshConfig>> run_program(Host host, bool with_command);
  Result<SshConfig> without_program() const;

  asio::any_io_executor loop_;
  std::string program_;
  std::string file_;
  bool files_read_ = false;
  SshConfigShape shape_;
  std::map<std::string, std::shared_ptr<Answer>> answers_;
  int questions_ = 0;
  int running_ = 0;
  asio::steady_timer slot_free_;  ///< never expires; cancelled when a query has ended
};

/// Returns the user who runs this program (user database, else HOME). The first call may wait for the name
/// service. Thread-safe.
const User& local_user();

/// Returns the content of a file with keys or hosts, at most 16 MiB. Returns nullopt if the file is missing,
/// may not be read, or is a directory, a device or a pipe: these could give endless bytes or none. Blocking.
std::optional<std::string> read_regular_file(const std::string& path);

}  // namespace ddp::remote
