#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/secret.h"

namespace ddp::rendezvous {

/// What all nodes of a job share: 32 characters at least, so that nobody who has seen a handshake can guess
/// it.
struct LinkToken {
  static constexpr std::size_t kMinSize = 32;
  static constexpr std::size_t kMaxSize = 4096;

  Secret secret;
  std::string origin;  ///< for messages: "DDPLAUNCH_TOKEN", "the file /run/token"

  LinkToken copy() const { return {Secret(secret.reveal()), origin}; }
};

/// Takes the token out of DDPLAUNCH_TOKEN and erases it there, so that neither a child nor a reader of
/// /proc/PID/environ sees it; an empty secret when it is not set. Before any thread. kUsage: too short, of
/// one line only, ….
Result<LinkToken> take_token_from_environment();

/// Reads `path`, a regular file that nobody but its owner may read (a file of root's that our group may read,
/// as a mounted Kubernetes secret, is good too). Blanks around the token do not count. kUsage: as above, or
/// readable by others; kSystem: it cannot be read.
Result<LinkToken> read_token_file(const std::string& path);

/// The same for a file that nobody chose by its name: kUsage also when the file belongs to another user or is
/// a link, or the directory that it lies in is not to be trusted (base/trusted_path.h).
Result<LinkToken> read_own_token_file(const std::string& path);

/// 256 random bits as 64 hexadecimal digits. kSystem: there is no randomness.
Result<LinkToken> random_token();

/// The rules for the text itself, `origin` in the words of the error.
Result<LinkToken> make_token(std::string_view text, std::string origin);

}  // namespace ddp::rendezvous
