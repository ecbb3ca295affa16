#pragma once

#include <string>
#include <vector>

#include "launcher/keeper/keeper.h"

namespace ddp {

/// Executes `ddplaunch-listen`, which lies beside this program: a static program that is sent to nodes has no
/// TLS. Returns the exit code if the program cannot be executed.
int run_listener(char** argv);

/// Answers `ddplaunchd --fits PROTOCOL VERSION [KEY…]`: whether this is the agent that a master wants. Exit
/// code 0: one of the keys begins with this build's id ("BUILD" or "BUILD.BUILD-OF-TRAIN"). The key is
/// printed, because any program may exit with 0. remote::kSameVersion: only protocol and version are the
/// same. 1: neither.
int answer_fits(const std::vector<std::string>& words);

/// `ddplaunchd --verify SHA256 FILE`, for nodes without sha256sum. Returns exit code 0 if the file has that
/// sum.
int verify_file(const std::string& sum, const std::string& path);

/// Runs the agent of one job over this process's stdin and stdout (docs/developers/protocol.md, Bootstrap).
/// Returns the exit code. It runs in the process that the keeper forked, where no thread exists yet and
/// threads may start.
int run_stdio_agent(launcher::KeeperLink& keeper);

}  // namespace ddp
