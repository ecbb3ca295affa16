#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "remote/bootstrap/bootstrap.h"

namespace ddp::remote {

/// What the first command must know of the agents that could be pushed.
struct AgentWanted {
  std::string path;               ///< where an installed agent would lie
  AgentHello hello;               ///< whose protocol and version an agent must have
  std::vector<std::string> keys;  ///< of the pushed agents that would do, one for each kind of machine
  bool train = false;             ///< it must have `train` beside it
};

/// One file to push; `sha256` in lower-case hex.
struct PushedFile {
  std::string name;
  std::size_t size = 0;
  std::string sha256;
};

/// The command that starts an agent on a host where none may be: it runs the installed agent when that is of
/// this build, else the one in the user's cache, else it says "ddplaunchd-need" and runs the script that it
/// is then sent (docs/protocol.md, Bootstrap). One short program for `sh -c`, whatever the login shell is:
/// what is found at once needs no second round trip.
///
/// It says "ddplaunchd-runs PATH" when it becomes an agent. `anew`: it looks at none, since one that it found
/// did not greet.
std::vector<std::string> first_lookup(const AgentWanted& wanted, bool anew = false);

/// The command that runs an agent which is to be at a certain place: `argv` (its path first) behind a look
/// whether it can be, which says "ddplaunchd-runs PATH" or "ddplaunchd-fail REASON". So the failure of what
/// lies between (a login shell, a wrapper) is never taken for one of the agent.
std::vector<std::string> given_lookup(const std::vector<std::string>& argv);

/// What is sent upon "ddplaunchd-need": its own length in one line, then the script. It looks for a place
/// (docs/nodes.md), asks for the files one by one, checks them, and becomes the agent. `files`: "ddplaunchd"
/// last, since its being there tells that all is. `key` names the set. `anew`: what is there is replaced.
std::string push_script(const AgentWanted& wanted, std::string_view key, const std::vector<PushedFile>& files,
                        bool anew = false);

/// The same for a machine that nothing can be pushed to, whose installed agent is the same version after all.
std::string installed_script();

}  // namespace ddp::remote
