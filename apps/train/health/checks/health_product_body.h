#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "apps/train/health/checks/health_pattern_body.h"
#include "apps/train/kernels/gpu/body.h"

// The comparison of matrix products on a GPU: its body, written once for device and host
// (kernels/gpu/body.h).

namespace ddp::train {

/// The result of one block, in elements.
struct ProductFaults {
  std::uint32_t compared = 0;
  std::uint32_t other = 0;  ///< bits differ from the first product's
  std::uint32_t wrong = 0;  ///< not between the bounds; nan is wrong, too

  DDP_HD void add(const ProductFaults& more) {
    compared += more.compared;
    other += more.other;
    wrong += more.wrong;
  }
};

/// Compares the copies of a product, which lie behind one another, with the first product and with the bounds
/// of the exact one.
struct CompareProduct {
  struct Args {
    const float* product;  ///< [count]
    const float* first;    ///< [size], as the next two
    const float* lowest;
    const float* highest;
    int count;          ///< elements of all copies
    int size;           ///< elements of a copy
    ProductFaults* to;  ///< [blocks]
  };
  static constexpr int kThreads = kHealthThreads;
  static constexpr int kElements = 32 * kThreads;  ///< of a block
  struct Shared {
    ProductFaults of[kThreads];
  };
  using Local = kernels::device::NoMemory;

  static DDP_HD int blocks(const Args& args) { return kernels::device::divide_up(args.count, kElements); }
  static DDP_HD int phases(const Args&) { return 1 + kernels::device::halvings(kThreads) + 1; }
  static DDP_HD void phase(int phase, kernels::device::ThreadIndex at, Shared& shared, Local&,
                           const Args& args) {
    if (phase == 0) {
      shared.of[at.thread] = compare(at, args);
    } else if (phase < phases(args) - 1) {
      const int half = kThreads >> phase;
      if (at.thread < half) shared.of[at.thread].add(shared.of[at.thread + half]);
    } else if (at.thread == 0) {
      args.to[at.block] = shared.of[0];
    }
  }

 private:
  static DDP_HD std::uint32_t bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  static DDP_HD ProductFaults compare(kernels::device::ThreadIndex at, const Args& args) {
    ProductFaults found;
    const int begin = at.block * kElements,
              end = begin + kElements < args.count ? begin + kElements : args.count;
    int in_copy = (begin + at.thread) % args.size;
    for (int i = begin + at.thread; i < end; i += kThreads) {
      const float value = args.product[i];
      ++found.compared;
      found.other += bits(value) != bits(args.first[in_copy]);
      found.wrong += !(value >= args.lowest[in_copy] && value <= args.highest[in_copy]);
      in_copy += kThreads;
      while (in_copy >= args.size)
        in_copy -= args.size;
    }
    return found;
  }
};

}  // namespace ddp::train
