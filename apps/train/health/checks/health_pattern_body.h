#pragma once

#include <cstddef>
#include <cstdint>

#include "apps/train/health/checks/health_pattern.h"
#include "apps/train/kernels/gpu/body.h"

// The memory test of a GPU: its bodies, written once for device and host (kernels/device/body.h). One block
// has kHealthBlockWords neighboring words, and a launch has as many blocks as the piece needs.

namespace ddp::train {

inline constexpr int kHealthThreads = 256;
inline constexpr std::size_t kHealthBlockWords = 32 * kHealthThreads;  ///< 64 KiB

/// A piece of memory. The numbers of its words continue after the pieces before it.
struct HealthPiece {
  std::uint64_t* words = nullptr;  ///< in device memory
  std::uint64_t count = 0;
  std::uint64_t first = 0;  ///< number of the first word
  HealthPattern pattern = HealthPattern::kAddress;
};

DDP_HD int blocks_of(const HealthPiece& piece) {
  return static_cast<int>((piece.count + kHealthBlockWords - 1) / kHealthBlockWords);
}

struct WritePattern {
  using Args = HealthPiece;
  static constexpr int kThreads = kHealthThreads;
  using Shared = kernels::device::NoMemory;
  using Local = kernels::device::NoMemory;

  static DDP_HD int blocks(const Args& args) { return blocks_of(args); }
  static DDP_HD int phases(const Args&) { return 1; }
  static DDP_HD void phase(int, kernels::device::ThreadIndex at, Shared&, Local&, const Args& args) {
    const std::uint64_t begin = static_cast<std::uint64_t>(at.block) * kHealthBlockWords;
    for (std::uint64_t i = at.thread; i < kHealthBlockWords && begin + i < args.count; i += kThreads)
      args.words[begin + i] = pattern_word(args.pattern, args.first + begin + i);
  }
};

/// Reads the words of each block and records the wrong ones. It also counts the words, so that a launch that
/// did nothing is found.
struct ReadPattern {
  struct Args {
    HealthPiece piece;
    PatternFaults* to;  ///< [blocks]
  };
  static constexpr int kThreads = kHealthThreads;
  struct Shared {
    PatternFaults of[kThreads];
  };
  using Local = kernels::device::NoMemory;

  static DDP_HD int blocks(const Args& args) { return blocks_of(args.piece); }
  static DDP_HD int phases(const Args&) { return 1 + kernels::device::halvings(kThreads) + 1; }
  static DDP_HD void phase(int phase, kernels::device::ThreadIndex at, Shared& shared, Local&,
                           const Args& args) {
    if (phase == 0) {
      shared.of[at.thread] = read(at, args.piece);
    } else if (phase < phases(args) - 1) {
      const int half = kThreads >> phase;
      if (at.thread < half) shared.of[at.thread].add(shared.of[at.thread + half]);
    } else if (at.thread == 0) {
      args.to[at.block] = shared.of[0];
    }
  }

 private:
  static DDP_HD PatternFaults read(kernels::device::ThreadIndex at, const HealthPiece& piece) {
    PatternFaults found = PatternFaults::none();
    const std::uint64_t begin = static_cast<std::uint64_t>(at.block) * kHealthBlockWords;
    for (std::uint64_t i = at.thread; i < kHealthBlockWords && begin + i < piece.count; i += kThreads)
      found.compare(piece.words[begin + i], piece.pattern, piece.first + begin + i);
    return found;
  }
};

}  // namespace ddp::train
