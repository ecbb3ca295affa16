#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/result.h"

namespace ddp::train {

/// The operations of Communicator on numbers in each rank's GPU, to measure them: a call puts one into a
/// stream that all have in common, and wait() waits for all that are in it. In place. One thread; errors as
/// of Communicator.
class DeviceOperations {
 public:
  virtual ~DeviceOperations() = default;

  /// In the GPU's memory, zeroed, as long as the communicator lives. All ranks call it with the same count,
  /// before their first operation on it.
  virtual Result<std::span<float>> make_buffer(std::size_t count) = 0;
  /// From and to the host, in the stream's order; get() waits.
  virtual Result<> put(std::span<float> to, std::span<const float> from) = 0;
  virtual Result<> get(std::span<float> to, std::span<const float> from) = 0;

  virtual Result<> all_reduce_sum(std::span<float> values) = 0;
  virtual Result<> broadcast(std::span<float> values, int root) = 0;
  /// world_size() equal parts, of which part r is rank r's.
  virtual Result<> reduce_scatter_sum(std::span<float> parts) = 0;
  virtual Result<> all_gather_parts(std::span<float> parts) = 0;
  /// The first half to the next rank, the second from the previous.
  virtual Result<> wait(std::string_view operation) = 0;
};

}  // namespace ddp::train
