#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "remote/ssh/known_hosts.h"
#include "remote/ssh/ssh_config.h"
#include "remote/ssh/ssh_keys.h"
#include "remote/start/resolver.h"

struct ssh_session_struct;

namespace ddp::remote {

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

/// Reads libssh's text "… no match for method NAME: server [A,B], client […]". Returns what the server offers
/// and the option that allows it, or an empty text. For advice only.
std::string mismatch_advice(std::string_view libssh_text);

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
