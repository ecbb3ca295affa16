#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "apps/train/health_pattern.h"
#include "base/result.h"

namespace ddp::train {

/// Writes and reads memory of the GPU once for each pattern, by kernels, at the speed of the memory. `bytes`:
/// how much, rounded up to 64 KiB; 0: all that is free but for a fiftieth, which others may need. kSystem
/// when the GPU has no room for `bytes`, or when the kernels do not look at all of it.
///
/// A GPU must not be judged by itself alone: it also tells how many words each block has looked at, and the
/// host looks at some of each piece again.
///
/// `plant`: a bit of one word is turned over in between. `after_pattern` is called four times. Blocking.
Result<PatternFaults> test_gpu_memory(cudaStream_t stream, std::size_t bytes, bool plant,
                                      const std::function<void()>& after_pattern);

}  // namespace ddp::train
