#pragma once

#include <string_view>

#include "launcher/keeper/keeper.h"

namespace ddp {

/// Whether the first word of a command line is for the program that listens: --listen, --new-token,
/// --token-file, with or without a value behind "=".
bool is_for_listener(std::string_view word);

/// Becomes `ddplaunch-listen`, which lies beside this program: a static program that is sent to nodes holds
/// no TLS. Returns only when that is not to be executed: the exit code.
int run_listener(char** argv);

/// `ddplaunchd --fits PROTOCOL VERSION KEY…`: is this the agent that a master wants? Exit code 0: one of the
/// keys begins with our build id ("BUILD" or "BUILD.BUILD-OF-TRAIN"), and is printed, for any program may
/// exit with 0; remote::kSameVersion: only protocol and version are the same; 1: neither.
int answer_fits(int count, const char* const* words);

/// `ddplaunchd --verify SHA256 FILE`, for nodes without sha256sum: exit code 0 when the file has that sum.
int verify_file(const char* sum, const char* path);

/// Tells the caches' sweep (remote/bootstrap/push_script.cc) that this pushed agent is still in use.
void mark_as_used(const char* directory);

/// The agent of one job over this process's stdin and stdout (docs/protocol.md, Bootstrap). Returns the exit
/// code. Runs in the process that the keeper has forked; threads are still allowed to come, none has.
int run_stdio_agent(launcher::KeeperLink& keeper);

}  // namespace ddp
