#pragma once

#include <cstdint>

namespace ddp::train {

/// How ranks talk. kAuto: shared memory inside a node where the environment tells which ranks share one, TCP
/// between nodes. kShm: the same, but an environment that does not tell is a mistake. kTcp: TCP only. kNccl:
/// NVIDIA's library, over GPUs.
enum class CommKind : std::uint8_t { kAuto, kTcp, kShm, kNccl };

}  // namespace ddp::train
