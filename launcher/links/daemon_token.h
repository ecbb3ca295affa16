#pragma once

#include <string>

#include "base/result.h"
#include "rendezvous/secure/link_token.h"

namespace ddp::launcher {

/// The default path of the token of daemons and their masters: $XDG_CONFIG_HOME/ddplaunch/token, else
/// ~/.config/ddplaunch/token. Error kUsage: no home directory is known.
Result<std::string> default_token_path();

/// Returns the token of --token-file (`file`), else `given` (from DDPLAUNCH_TOKEN), else that of the default
/// file. Error kUsage: the token is missing or invalid; the text says how to make one.
Result<rendezvous::LinkToken> find_daemon_token(const std::string& file,
                                                const Result<rendezvous::LinkToken>& given);

/// Writes a new random token to `path`, readable only by its owner. An empty `path` means the default one,
/// whose directory is made. The file must not exist; a reader sees no file or the whole token. Returns the
/// path. Error kUsage with sys EEXIST: the file exists.
Result<std::string> write_new_token(std::string path);

/// The token by which the processes of one user on one machine authenticate each other: loopback-token beside
/// the default token file. The first call makes it. Errors kUsage, kSystem: it cannot be made, or is not this
/// user's alone.
Result<rendezvous::LinkToken> loopback_token();

}  // namespace ddp::launcher
