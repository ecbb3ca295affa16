#pragma once

#include <string_view>

namespace ddp {

/// Whether the first word of a command line is for the program that listens: --listen, --new-token,
/// --token-file, with or without a value behind "=".
bool is_for_listener(std::string_view word);

/// Becomes `ddplaunch-listen`, which lies beside this program: a static program that is sent to nodes holds
/// no TLS. Returns only when that is not to be executed: the exit code.
int run_listener(char** argv);

}  // namespace ddp
