#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddp::remote {

/// Returns `argv` as one command line that sh, csh, tcsh, fish and busybox read alike, including csh's
/// history expansion. The line goes through an account's login shell, which can be any of these. Words of
/// plain characters stay as they are, so that ddplaunch's own command lines need no quoting. Error (kUsage):
/// an empty argv, or a word with a line feed or NUL, which cannot be quoted for all of these shells.
Result<std::string> shell_quote(const std::vector<std::string>& argv);

/// The reverse, for a command in one option (--ssh-command 'ssh -F "my config"'). Blanks separate words; '…',
/// "…" and \ quote as in sh; nothing is expanded. Error (kUsage): a quote that is not closed, or a \ at the
/// end.
Result<std::vector<std::string>> split_words(std::string_view text);

/// Returns `text` with each % doubled, for settings in which ssh expands %-tokens.
std::string without_tokens(std::string_view text);

/// Returns a ProxyCommand that does what `ProxyJump jumps` does ("user@one:2222,two": through one, then two).
/// Every jump uses the caller's ssh program and options: `ssh` is the program's words so far. Only ssh's own
/// %h and %p are expanded. Error (kUsage): no host, or a word that shell_quote() refuses.
Result<std::string> jump_command(const std::vector<std::string>& ssh, std::string_view jumps);

}  // namespace ddp::remote
