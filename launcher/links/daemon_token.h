#pragma once

#include <string>

#include "base/result.h"
#include "rendezvous/secure/link_token.h"

namespace ddp::launcher {

/// Where the token of daemons and of their masters lies unless somebody says otherwise:
/// $XDG_CONFIG_HOME/ddplaunch/token, else ~/.config/ddplaunch/token. kUsage: no home directory is known.
Result<std::string> default_token_path();

/// The token of --token-file (`file`), else `given` (DDPLAUNCH_TOKEN's), else of the default file. kUsage:
/// there is none, or it is no good; the text says how one is made.
Result<rendezvous::LinkToken> find_daemon_token(const std::string& file,
                                                const Result<rendezvous::LinkToken>& given);

/// Writes a new random token into `path` (empty: the default one), which must not exist, for its owner
/// alone; makes the directory of the default one. A reader sees no file or the whole token. The path; kUsage
/// with sys EEXIST: there is one.
Result<std::string> write_new_token(std::string path);

/// The token by which the processes of one user on one machine know each other: loopback-token beside the
/// default token file. The first call makes it. kUsage, kSystem: it cannot be made, or is not this user's
/// alone.
Result<rendezvous::LinkToken> loopback_token();

}  // namespace ddp::launcher
