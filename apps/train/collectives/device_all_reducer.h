#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/result.h"

namespace ddp::train {

/// Type of numbers in GPU memory.
enum class DeviceType : std::uint8_t { kFloat32, kFloat64, kBfloat16 };

/// The owner of captured graphs that hold all-reduces, for the end of the network. NCCL's end waits for the
/// destruction of these graphs, and CUDA may let a destruction wait for the graph's work, which a lost peer
/// keeps from ending. The calls come from the all-reducer's thread.
struct GraphOwner {
  std::function<void()> abandon_capture;  ///< ends an unfinished capture and drops what it captured
  std::function<bool()> is_idle;          ///< returns true if no graph is in flight; never blocks
  std::function<void()> drop;             ///< destroys the graphs
};

/// All-reduces of GPU memory over the ranks. They are part of the work of a stream, mostly inside a captured
/// graph that is launched again and again. So enqueuing a sum, launching it and waiting for it are three
/// calls. A stream is a cudaStream_t, passed as void* so that code in between needs no CUDA. One thread;
/// errors as in Communicator.
class DeviceAllReducer {
 public:
  /// Returns whether the work is complete; called repeatedly. Its errors are the GPU's.
  using IsDone = std::function<Result<bool>()>;

  virtual ~DeviceAllReducer() = default;

  /// Puts the in-place sum of `count` numbers over the ranks into `stream`, and returns when the sum is
  /// enqueued. The stream may be under capture. NCCL then works on another thread, so the capture's mode must
  /// be relaxed.
  virtual Result<> enqueue(void* numbers, std::size_t count, DeviceType type, void* stream) = 0;
  /// Records that a sum of so many bytes begins, by itself or in a graph; for the flight recorder.
  virtual void launched(std::size_t /*bytes*/, DeviceType) {}
  /// Waits until done() returns true, while it watches the deadline, the revocation and the network's own
  /// errors. The runtime's own waits would wait forever for a sum that misses a rank. Call it once for each
  /// launched sum, in launch order.
  virtual Result<> wait(const IsDone& done, std::string_view operation) = 0;
  /// Sets the owner of graphs that hold these sums. When the network ends in any way (its end, an error), the
  /// graphs are dropped once they are idle. They stay if they do not become idle: the GPUs are given up then.
  virtual void on_end(GraphOwner owner) = 0;
  /// Returns zeroed GPU memory in which sums are faster, valid as long as this object; empty: there is none.
  /// All ranks call it with the same size, before their first sum.
  virtual std::span<std::byte> share_memory(std::size_t /*bytes*/) { return {}; }
};

}  // namespace ddp::train
