#pragma once

#include "apps/ddplaunch/join_door.h"
#include "launcher/job/job_spec.h"

namespace ddp {

/// Runs a validated job in the foreground: shells, master, exit code (docs/exit_codes.md).
/// `token` is DDPLAUNCH_TOKEN's, for daemons. `door`: where its nodes join, in per-node mode; else null.
int launch(const launcher::JobSpec& spec, const GivenToken& token, JoinDoor* door = nullptr);

}  // namespace ddp
