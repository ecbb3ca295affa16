#pragma once

#include <cstddef>
#include <cstdint>

#include "apps/train/data/image_size.h"
#include "apps/train/kernels/gpu/update_body.h"

namespace ddp::train::kernels::device {

/// Copies a batch of the images in GPU memory, and their labels: value / 255 with `border` zero pixels
/// around, as fill_batch() (dataset.h). `order` selects the samples. The step's slot says where in `order`
/// the batch begins, so that a captured graph takes another batch each time. One block per image.
template <class T>
struct Gather {
  struct Args {
    int batch;
    int border;
    const std::uint8_t* images;  ///< [samples][kImagePixels]
    const std::uint8_t* labels;  ///< [samples]
    const std::uint32_t* order;
    StepSlots step;
    T* batch_images;  ///< [batch][side * side]
    std::uint8_t* batch_labels;
  };
  static constexpr int kThreads = 256;
  struct Shared {
    std::size_t sample;
  };
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return args.batch; }
  static DDP_HD int phases(const Args&) { return 2; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    if (phase == 0) {
      if (at.thread == 0) shared.sample = args.order[args.step.present().input.first + at.block];
      return;
    }
    const std::size_t sample = shared.sample;
    const std::uint8_t* from = args.images + sample * kImagePixels;
    const int side = kImageSide + 2 * args.border;
    T* to = args.batch_images + static_cast<std::size_t>(at.block) * side * side;
    for (int i = at.thread; i < side * side; i += kThreads) {
      const int y = i / side - args.border, x = i % side - args.border;
      const bool inside = y >= 0 && y < kImageSide && x >= 0 && x < kImageSide;
      to[i] = inside ? static_cast<T>(from[y * kImageSide + x]) / T(255) : T(0);
    }
    if (at.thread == 0) args.batch_labels[at.block] = args.labels[sample];
  }
};

}  // namespace ddp::train::kernels::device
