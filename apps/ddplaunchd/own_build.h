#pragma once

namespace ddp {

/// `ddplaunchd --fits PROTOCOL VERSION KEY…`: is this the agent that a master wants? Exit code 0: one of the
/// keys begins with our build id ("BUILD" or "BUILD.BUILD-OF-TRAIN"), and is printed, for any program may
/// exit with 0; remote::kSameVersion: only protocol and version are the same; 1: neither.
int answer_fits(int count, const char* const* words);

/// `ddplaunchd --verify SHA256 FILE`, for nodes without sha256sum: exit code 0 when the file has that sum.
int verify_file(const char* sum, const char* path);

/// Tells the caches' sweep (remote/bootstrap/push_script.cc) that this pushed agent is still in use.
void mark_as_used(const char* directory);

}  // namespace ddp
