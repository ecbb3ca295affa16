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

/// Everything a session needs to know of its host: found on the loop thread, read on an I/O thread.
struct SshTarget {
  std::string label;  ///< the host's name in messages
  SshConfig config;
  std::vector<Endpoint> endpoints;  ///< in the order to try; never empty
  HostKeys known;
  std::string
      known_hosts_file;  ///< where a new key goes, and the first file that messages name; may be empty
  bool accept_new_host_keys = false;
  SshKeys::List keys;
  std::string agent_socket;  ///< path of the ssh-agent's socket; empty: none is to be asked
  std::string ssh_command;   ///< "ssh -F FILE gpu01", for advice
  std::string command;       ///< the remote command line
  std::chrono::steady_clock::time_point deadline;
};

/// Sets a new session's options from the target; libssh reads no file itself. `fd` is given to libssh.
/// Returns the name of an option whose values libssh does not know, or nothing.
std::optional<std::string> configure(ssh_session_struct* session, const SshTarget& target, int fd);

/// What is wrong with the first line of a server, or nothing: it is no SSH server, or one of version 1 alone.
std::optional<std::string> wrong_greeting(std::string_view line);

/// From libssh's words "… no match for method NAME: server [A,B], client […]": what the server has, and the
/// option that allows it. Empty without such words. For advice only.
std::string mismatch_advice(std::string_view libssh_text);

/// After the key exchange: nothing when the server's key is known, or is new and was accepted and noted. Else
/// kUnreachable with what to do.
std::optional<Error> check_host_key(ssh_session_struct* session, const SshTarget& target,
                                    const Endpoint& endpoint);

/// No key was accepted: kUnreachable with all that was tried. `offered` are the server's methods (a libssh
/// bit set). `agent_problem`: why the ssh-agent could not be asked; empty: it was, or there is none.
Error login_refused(const SshTarget& target, const Endpoint& endpoint, int offered, bool agent_asked,
                    const std::string& agent_problem);

}  // namespace ddp::remote
