#pragma once

#include <string>

namespace ddp {

/// Makes this process survive the user's logout where logind ends processes then (KillUserProcesses=yes in
/// logind.conf): moves it into a scope NAME of the user's service manager, which stays if the user lingers.
/// Returns why the process will not survive, for the user; empty: it will. Takes a few seconds at most. Call
/// it before any thread or child starts.
std::string survive_logout(const std::string& name);

}  // namespace ddp
