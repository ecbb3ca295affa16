#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/result.h"

namespace ddp::train {

/// Numbers in a GPU's memory.
enum class DeviceType : std::uint8_t { kFloat32, kFloat64, kBfloat16 };

/// Sums over ranks of what lies in the memory of each one's GPU. They are part of the work of a stream (a
/// cudaStream_t, given as void* so that what only hands this on needs no CUDA), mostly inside a captured
/// graph that is launched again and again: so putting a sum into the stream, launching it and waiting for it
/// are three calls. One thread, as of Communicator, whose errors these calls have too.
class DeviceAllReducer {
 public:
  /// Whether what is waited for is complete; asked again and again. An error is the GPU's.
  using IsDone = std::function<Result<bool>()>;

  virtual ~DeviceAllReducer() = default;

  /// Puts the sum over the ranks of `count` numbers, in place, into `stream`, and returns when it is in
  /// there. The stream may be under capture; NCCL works on another thread then, so the capture's mode must be
  /// the relaxed one.
  virtual Result<> enqueue(void* numbers, std::size_t count, DeviceType type, void* stream) = 0;
  /// A sum of so many bytes now begins, by itself or in a graph: for the log of collectives.
  virtual void launched(std::size_t /*bytes*/, DeviceType) {}
  /// Until done() says so, with the deadline, the revoke and the network's own errors watched: a sum that
  /// misses a rank would let the run time's own waits wait for ever. Once for each sum that was launched, in
  /// their order.
  virtual Result<> wait(const IsDone& done, std::string_view operation) = 0;
  /// Called once, before the network is given up in any way (its end, an error): graphs that hold these sums
  /// must not be there then, for NCCL waits for them to go.
  virtual void on_end(std::function<void()> callback) = 0;
  /// Memory of the GPU in which sums are faster, zeroed, as long as this lives; empty: there is none. All
  /// ranks call it with the same size, before their first sum.
  virtual std::span<std::byte> share_memory(std::size_t /*bytes*/) { return {}; }
};

}  // namespace ddp::train
