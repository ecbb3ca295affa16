#pragma once

#include <cstddef>

#include "launcher/job/job_spec.h"

namespace ddp::launcher {

/// Descriptors of the master that belong to no node: terminal, loops of the SSH threads, a few of the job's
/// files.
inline constexpr std::size_t kReservedDescriptors = 64;
/// The same without SSH. With its node that is what an agent needs, too (kFewestFiles of ddplaunchd).
inline constexpr std::size_t kReservedLocally = 34;
/// Of a node: both ends of its link and of its stderr, and an SSH connection or a child.
inline constexpr std::size_t kDescriptorsPerNode = 6;

/// How many descriptors the master of this job may have open at once. A node that comes by itself has one,
/// its TLS link.
inline std::size_t descriptors_needed(const JobSpec& spec) {
  const std::size_t each = spec.launcher == LauncherKind::kJoin ? 1 : kDescriptorsPerNode;
  const bool local = spec.launcher == LauncherKind::kLocal;
  return (local ? kReservedLocally : kReservedDescriptors) + each * hosts_used(spec);
}

}  // namespace ddp::launcher
