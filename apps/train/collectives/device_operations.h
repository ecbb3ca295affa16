#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/result.h"

namespace ddp::train {

/// The operations of Communicator on GPU memory, in place, for measurements. A call puts one operation into a
/// stream that all share. wait() waits for all operations in the stream. One thread; errors as in
/// Communicator.
class DeviceOperations {
 public:
  virtual ~DeviceOperations() = default;

  /// Returns zeroed GPU memory, valid as long as the communicator. All ranks call it with the same count,
  /// before their first operation on it.
  virtual Result<std::span<float>> make_buffer(std::size_t count) = 0;
  /// Copy from and to the host, in the stream's order; get() waits.
  virtual Result<> put(std::span<float> to, std::span<const float> from) = 0;
  virtual Result<> get(std::span<float> to, std::span<const float> from) = 0;

  virtual Result<> all_reduce_sum(std::span<float> values) = 0;
  virtual Result<> broadcast(std::span<float> values, int root) = 0;
  /// `parts` are world_size() equal parts; part r belongs to rank r.
  virtual Result<> reduce_scatter_sum(std::span<float> parts) = 0;
  virtual Result<> all_gather_parts(std::span<float> parts) = 0;
  /// Waits for all operations in the stream.
  virtual Result<> wait(std::string_view operation) = 0;
};

}  // namespace ddp::train
