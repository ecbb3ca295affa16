#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "remote/bootstrap/bootstrap.h"

namespace ddp::remote {

/// The facts that the first command needs about the agents that can be pushed.
struct AgentWanted {
  std::string path;               ///< expected path of an installed agent
  AgentHello hello;               ///< protocol and version that an agent must have
  std::vector<std::string> keys;  ///< keys of the pushed agents that fit, one for each kind of machine
  bool train = false;             ///< `train` must lie beside the agent
};

/// One file to push; `sha256` is in lower-case hex.
struct PushedFile {
  std::string name;
  std::size_t size = 0;
  std::string sha256;
};

/// Returns the command that starts an agent on a host that may have none. It runs the installed agent if that
/// is of this build, else the agent in the user's cache. Else it prints "ddplaunchd-need" and runs the script
/// that it then receives (docs/developers/protocol.md, Bootstrap). It is one short program for `sh -c` under
/// any login shell. An agent that is found at once needs no second round trip.
///
/// The command prints "ddplaunchd-runs PATH" when it becomes an agent. It tries no existing agent if `anew`
/// is set, because one that it found before sent no hello.
std::vector<std::string> first_lookup(const AgentWanted& wanted, bool anew = false);

/// Returns the command that runs the agent at a given path: `argv` (the path first) behind a test that the
/// file can be executed. The test prints "ddplaunchd-runs PATH" or "ddplaunchd-fail REASON". A failure of a
/// login shell or a wrapper is therefore never reported as a failure of the agent.
std::vector<std::string> given_lookup(const std::vector<std::string>& argv);

/// Returns the answer to "ddplaunchd-need": a line with the script's length, then the script. The script
/// looks for a place (docs/users/nodes.md), requests the files one by one, checks them, and becomes the
/// agent. `files` must end with "ddplaunchd": its presence shows that the set is complete. `key` names the
/// set. `anew` replaces what exists.
std::string push_script(const AgentWanted& wanted, std::string_view key, const std::vector<PushedFile>& files,
                        bool anew = false);

/// The same for a machine that no file can be pushed to and whose installed agent has the same version.
std::string installed_script();

}  // namespace ddp::remote
