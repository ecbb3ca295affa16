#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"

namespace ddp::train {

/// Type of numbers in GPU memory.
enum class DeviceType : std::uint8_t { kFloat32, kFloat64, kBfloat16 };

inline std::size_t size_of(DeviceType type) {
  return type == DeviceType::kFloat64 ? 8 : type == DeviceType::kFloat32 ? 4 : 2;
}

/// An operation of all ranks on `count` numbers in GPU memory, in place. The numbers of kReduceScatter and
/// kAllGather are world_size() equal parts; part r belongs to rank r. Reductions are sums.
struct DeviceOperation {
  enum class Kind : std::uint8_t { kAllReduce, kBroadcast, kReduceScatter, kAllGather };
  Kind kind = Kind::kAllReduce;
  void* data = nullptr;
  std::size_t count = 0;
  DeviceType type = DeviceType::kFloat32;
  int root = 0;  ///< of kBroadcast
};
/// Returns "all-reduce", as Communicator's errors name the operation.
inline const char* kind_text(DeviceOperation::Kind kind) {
  switch (kind) {
    case DeviceOperation::Kind::kAllReduce:
      return "all-reduce";
    case DeviceOperation::Kind::kBroadcast:
      return "broadcast";
    case DeviceOperation::Kind::kReduceScatter:
      return "reduce-scatter";
    case DeviceOperation::Kind::kAllGather:
      return "all-gather";
  }
  return "?";
}

/// Zeroed GPU memory. A registered piece is read and written by the network without copies. A window also
/// lies in one address space with those of the other ranks.
struct DeviceMemory {
  enum class RegistrationKind : std::uint8_t { kNone, kRegistered, kWindow };
  std::span<std::byte> bytes;
  RegistrationKind registration = RegistrationKind::kNone;
};

/// Returns whether work of the GPU is complete; called repeatedly. Its errors are the GPU's.
using IsDeviceDone = std::function<Result<bool>()>;

/// The owner of captured graphs that hold operations between ranks, for the end of the network. NCCL's end
/// waits for the destruction of these graphs, and CUDA may let a destruction wait for the graph's work, which
/// a lost peer keeps from ending. The calls come from the communicator's thread.
struct GraphOwner {
  std::function<void()> abandon_capture;  ///< ends an unfinished capture and drops what it captured
  std::function<bool()> is_idle;          ///< returns true if no graph is in flight; never blocks
  std::function<void()> drop;             ///< destroys the graphs
};

}  // namespace ddp::train
