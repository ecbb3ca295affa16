#pragma once

#include <cstdint>
#include <string>

namespace ddp::launcher {

/// A job with many restarts keeps the files of its first and its last attempts as they are.
inline constexpr std::uint32_t kFirstAttemptsKept = 3;
inline constexpr std::uint32_t kLastAttemptsKept = 20;

/// Moves the files of an attempt that has at most 64 KiB into short_attempts.txt of the job's directory, each
/// below a line "==> attempt_7/rank_00000.stderr, 512 bytes <==". Leaves an attempt with lines.jsonl or more
/// bytes as it is, and also one that cannot be moved as a whole: no byte is lost. Blocks.
void pack_short_attempt(const std::string& job_dir, std::uint32_t attempt);

}  // namespace ddp::launcher
