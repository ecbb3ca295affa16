#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/crypto.h"
#include "base/result.h"

namespace ddp::rendezvous {

/// The secret that all nodes of a job share: at least 32 characters, so that a recorded handshake does not
/// help to guess it.
struct LinkToken {
  static constexpr std::size_t kMinSize = 32;
  static constexpr std::size_t kMaxSize = 4096;

  Secret secret;
  std::string origin;  ///< for messages: "DDPLAUNCH_TOKEN", "the file /run/token"

  LinkToken copy() const { return {Secret(secret.reveal()), origin}; }
};

/// Takes the token out of DDPLAUNCH_TOKEN and erases it there, so that neither a child nor a reader of
/// /proc/PID/environ sees it. Returns an empty secret when the variable is not set. Call it before any thread
/// starts. kUsage: too short, more than one line, ….
Result<LinkToken> take_token_from_environment();

/// Reads `path`, a regular file that only its owner may read. A file of root that this user's group may read
/// is accepted too, as a mounted Kubernetes secret is. Blanks around the token are ignored. kUsage: as above,
/// or others may read the file; kSystem: it cannot be read.
Result<LinkToken> read_token_file(const std::string& path);

/// Does the same for a file at a default path, which the user did not choose. kUsage also when the file
/// belongs to another user or is a link, or when its directory cannot be trusted (base/files.h).
Result<LinkToken> read_own_token_file(const std::string& path);

/// Returns the token of --token-file (`file`), else `given` (from DDPLAUNCH_TOKEN), else an empty secret.
Result<LinkToken> given_token(const std::string& file, const Result<LinkToken>& given);
/// The same, and then that of the default file, for daemons and their masters. kUsage: there is none; the
/// text says how to make one.
Result<LinkToken> find_daemon_token(const std::string& file, const Result<LinkToken>& given);
/// The token by which the processes of one user on one machine authenticate each other: loopback-token beside
/// the default file. The first call makes it. kUsage, kSystem: it cannot be made, or is not this user's
/// alone.
Result<LinkToken> loopback_token();

/// Writes a new random token to `path`, readable only by its owner. An empty `path` means the default one,
/// whose directory is made. The file must not exist; a reader sees no file or the whole token. Returns the
/// path. kUsage with sys EEXIST: the file exists.
Result<std::string> write_new_token(std::string path);

/// Checks the rules for the text itself; error texts name `origin`.
Result<LinkToken> make_token(std::string_view text, std::string origin);

}  // namespace ddp::rendezvous
