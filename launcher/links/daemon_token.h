#pragma once

#include <string>

#include "base/result.h"
#include "rendezvous/link_token.h"

namespace ddp::launcher {

/// Where the token of daemons and of their masters lies unless somebody says otherwise:
/// $XDG_CONFIG_HOME/ddplaunch/token, else ~/.config/ddplaunch/token. kUsage: no home directory is known.
Result<std::string> default_token_path();

/// The token of --token-file (`file`), else of DDPLAUNCH_TOKEN, else of the default file. The variable is
/// erased in any case. kUsage: there is none, or it is no good; the text says how one is made.
Result<rendezvous::LinkToken> find_daemon_token(const std::string& file);

/// Writes a new random token into `path` (empty: the default one), which must not exist, for its owner
/// alone; makes the directory. The path.
Result<std::string> write_new_token(std::string path);

}  // namespace ddp::launcher
