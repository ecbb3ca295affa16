#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddp::remote {

/// `argv` as one command line that sh, csh, tcsh, fish and busybox read alike, history expansion of csh
/// included: it goes through the login shell of an account, which can be any of them. Words of plain
/// characters stay as they are, so that our own command lines need no quoting at all. Error (kUsage): an
/// empty argv, and a word with a line feed or NUL, which no spelling brings through all of these shells.
Result<std::string> shell_quote(const std::vector<std::string>& argv);

/// The reverse for what a user writes in one option (--ssh-command 'ssh -F "my config"'): blanks separate
/// words; '…', "…" and \ quote as in sh; nothing is expanded. Error (kUsage): a quote that is not closed, a
/// \ at the end.
Result<std::vector<std::string>> split_words(std::string_view text);

/// `text` as ssh takes it where a % begins a token: each of its own is doubled.
std::string without_tokens(std::string_view text);

/// A ProxyCommand that does what `ProxyJump jumps` does ("user@one:2222,two": through one, then two), with an
/// ssh program and options of the caller's choice for every jump: `ssh` is the program's words so far.
/// Nothing in it is expanded but ssh's own %h and %p. Error (kUsage): no host, or a word that no shell can be
/// given.
Result<std::string> jump_command(const std::vector<std::string>& ssh, std::string_view jumps);

}  // namespace ddp::remote
