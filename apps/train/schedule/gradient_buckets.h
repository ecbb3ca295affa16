#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "apps/train/model/model.h"

namespace ddp::train {

/// A range of the flat gradient, in elements.
struct GradientBucket {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Divides the flat gradient, followed by `extra` elements, into buckets; [core]. The buckets are in the
/// order in which backward completes them: from the end to the beginning. A tensor is never divided, so a
/// bucket of one large tensor may exceed the cap. The first bucket is small, so that the network has work
/// early; the others are filled up to `cap_bytes`.
std::vector<GradientBucket> plan_buckets(std::span<const TensorInfo> tensors, std::size_t extra,
                                         std::size_t scalar_bytes, std::size_t first_bytes,
                                         std::size_t cap_bytes);

}  // namespace ddp::train
