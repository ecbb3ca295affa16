#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddp::remote {

/// `text` as ssh takes it where a % begins a token: each of its own is doubled.
std::string without_tokens(std::string_view text);

/// A ProxyCommand that does what `ProxyJump jumps` does ("user@one:2222,two": through one, then two), with an
/// ssh program and options of the caller's choice for every jump: `ssh` is the program's words so far.
/// Nothing in it is expanded but ssh's own %h and %p. Error (kUsage): no host, or a word that no shell can be
/// given.
Result<std::string> jump_command(const std::vector<std::string>& ssh, std::string_view jumps);

}  // namespace ddp::remote
