#pragma once

#include "apps/ddplaunch/join_door.h"
#include "launcher/job_spec.h"

namespace ddp {

/// Runs a validated job in the foreground: shells, master, exit code (docs/exit_codes.md).
/// `door`: where its nodes join, in per-node mode; else null.
int launch(const launcher::JobSpec& spec, JoinDoor* door = nullptr);

}  // namespace ddp
