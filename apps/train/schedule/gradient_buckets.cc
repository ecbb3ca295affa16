#include "apps/train/schedule/gradient_buckets.h"

namespace ddp::train {

std::vector<GradientBucket> plan_buckets(std::span<const TensorInfo> tensors, std::size_t extra,
                                         std::size_t scalar_bytes, std::size_t first_bytes,
                                         std::size_t cap_bytes) {
  std::vector<GradientBucket> buckets;
  if (tensors.empty()) return buckets;
  const std::size_t total = tensors.back().offset + tensors.back().size + extra;
  GradientBucket open{total, total};
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
    const std::size_t cap = buckets.empty() ? first_bytes : cap_bytes;
    if (open.begin != open.end && (open.end - tensor->offset) * scalar_bytes > cap) {
      buckets.push_back(open);
      open = {open.begin, open.begin};
    }
    open.begin = tensor->offset;
  }
  buckets.push_back(open);
  return buckets;
}

}  // namespace ddp::train
