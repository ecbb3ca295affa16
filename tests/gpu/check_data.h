#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "apps/train/data/hash.h"
#include "apps/train/kernels/cpu/kernel_table.h"

namespace ddp::train::gpu {

/// A batch that a model can learn: each class has its own picture, to which noise is added.
template <class T>
struct CheckBatch {
  std::vector<T> images;
  std::vector<std::uint8_t> labels;

  /// `border` is the width in pixels of the zeros around each image. `number` seeds the labels and the noise.
  CheckBatch(int count, int border, std::uint64_t number) {
    const int side = kImageSide + 2 * border;
    images.resize(static_cast<std::size_t>(count) * side * side);
    for (int n = 0; n < count; ++n) {
      const auto label =
          static_cast<std::uint8_t>(random_bits(number, 1, static_cast<std::uint64_t>(n)) % kClasses);
      labels.push_back(label);
      for (int p = 0; p < kImagePixels; ++p) {
        const auto pixel = static_cast<std::uint64_t>(p);
        const double value =
            0.5 * random_unit(7, label, pixel) +
            0.5 * random_unit(number, 2, static_cast<std::uint64_t>(n) * kImagePixels + pixel);
        const int y = p / kImageSide + border, x = p % kImageSide + border;
        images[(static_cast<std::size_t>(n) * side + y) * side + x] = static_cast<T>(value);
      }
    }
  }
};

}  // namespace ddp::train::gpu
