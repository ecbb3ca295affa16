#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "apps/train/health/checks/health_pattern.h"
#include "base/result.h"

namespace ddp::train {

/// What is free on this thread's GPU, but for a fiftieth, and 64 MiB, which others may need.
Result<std::size_t> testable_gpu_memory();

/// Writes and reads memory of the GPU once for each pattern, by kernels, at the speed of the memory. `bytes`:
/// how much, rounded up to 64 KiB; 0: up to `share`, or what there is of it. kSystem when the GPU has no room
/// for `bytes`, or when the kernels do not look at all of it.
///
/// A GPU must not be judged by itself alone: it also tells how many words each block has looked at, and the
/// host looks at some of each piece again.
///
/// `plant`: a bit of one word is turned over in between. `after_pattern` is called four times. Blocking.
Result<PatternFaults> test_gpu_memory(cudaStream_t stream, std::size_t bytes, std::size_t share, bool plant,
                                      const std::function<void()>& after_pattern);

}  // namespace ddp::train
