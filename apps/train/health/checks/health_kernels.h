#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/gemm_body.h"

namespace ddp::train {

/// The value that is written into each word of memory and read again. It is the word's address (from 0),
/// which reveals a faulty address line, the complement of the address, or alternating bits.
enum class HealthPattern : int { kAddress, kComplement, kFives, kTens };
inline constexpr int kHealthPatterns = 4;

DDP_HD constexpr std::uint64_t pattern_word(HealthPattern pattern, std::uint64_t index) {
  return pattern == HealthPattern::kAddress      ? index * sizeof(std::uint64_t)
         : pattern == HealthPattern::kComplement ? ~(index * sizeof(std::uint64_t))
         : pattern == HealthPattern::kFives      ? 0x5555555555555555u
                                                 : 0xaaaaaaaaaaaaaaaau;
}

/// Faults of some words, with the same layout on a GPU and on the host. It begins as none().
struct PatternFaults {
  std::uint64_t compared;  ///< words that were compared, over all patterns
  std::uint64_t words;     ///< compared words that were wrong
  std::uint64_t first;     ///< offset in bytes of the first wrong word; all bits set: none
  std::uint64_t bits;      ///< mask of the bits that were ever wrong

  static DDP_HD constexpr PatternFaults none() { return {0, 0, ~std::uint64_t{0}, 0}; }
  /// Compares `word`, which was read at number `index`.
  DDP_HD void compare(std::uint64_t word, HealthPattern pattern, std::uint64_t index) {
    const std::uint64_t wrong = word ^ pattern_word(pattern, index);
    ++compared;
    if (wrong == 0) return;
    ++words;
    if (index * sizeof word < first) first = index * sizeof word;
    bits |= wrong;
  }
  DDP_HD void add(const PatternFaults& other) {
    compared += other.compared;
    words += other.words;
    if (other.first < first) first = other.first;
    bits |= other.bits;
  }
  bool operator==(const PatternFaults&) const = default;
};

/// Merges what a GPU reported of a part of memory with what the host saw in a sample of the same part. Wrong
/// words that the GPU did not report count, too.
PatternFaults with_sample(PatternFaults merged, const PatternFaults& seen);

/// Writes and reads `memory` once for each pattern. `inject`: a bit in the middle is inverted in between.
PatternFaults test_patterns(std::span<std::uint64_t> memory, bool inject = false);

}  // namespace ddp::train

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

/// Adds up what the threads of a block find, in Args::to[block].
template <class Body, class Faults>
struct FaultSum {
  static constexpr int kThreads = kHealthThreads;
  struct Shared {
    Faults of[kThreads];
  };
  using Local = kernels::device::NoMemory;

  static DDP_HD int phases(const auto&) { return 1 + kernels::device::halvings(kThreads) + 1; }
  static DDP_HD void phase(int phase, kernels::device::ThreadIndex at, Shared& shared, Local&,
                           const auto& args) {
    if (phase == 0) {
      shared.of[at.thread] = Body::find(at, args);
    } else if (phase < phases(args) - 1) {
      const int half = kThreads >> phase;
      if (at.thread < half) shared.of[at.thread].add(shared.of[at.thread + half]);
    } else if (at.thread == 0) {
      args.to[at.block] = shared.of[0];
    }
  }
};

/// Reads the words of each block and records the wrong ones. It also counts the words, so that a launch that
/// did nothing is found.
struct ReadPattern : FaultSum<ReadPattern, PatternFaults> {
  struct Args {
    HealthPiece piece;
    PatternFaults* to;  ///< [blocks]
  };

  static DDP_HD int blocks(const Args& args) { return blocks_of(args.piece); }
  static DDP_HD PatternFaults find(kernels::device::ThreadIndex at, const Args& args) {
    const HealthPiece& piece = args.piece;
    PatternFaults found = PatternFaults::none();
    const std::uint64_t begin = static_cast<std::uint64_t>(at.block) * kHealthBlockWords;
    for (std::uint64_t i = at.thread; i < kHealthBlockWords && begin + i < piece.count; i += kThreads)
      found.compare(piece.words[begin + i], piece.pattern, piece.first + begin + i);
    return found;
  }
};

}  // namespace ddp::train

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
struct CompareProduct : FaultSum<CompareProduct, ProductFaults> {
  struct Args {
    const float* product;  ///< [count]
    const float* first;    ///< [size], as the next two
    const float* lowest;
    const float* highest;
    int count;          ///< elements of all copies
    int size;           ///< elements of a copy
    ProductFaults* to;  ///< [blocks]
  };
  static constexpr int kElements = 32 * kThreads;  ///< of a block

  static DDP_HD int blocks(const Args& args) { return kernels::device::divide_up(args.count, kElements); }
  static DDP_HD std::uint32_t bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  static DDP_HD ProductFaults find(kernels::device::ThreadIndex at, const Args& args) {
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

/// Two matrices of random numbers, and their product in double. It is computed once, and every device's float
/// product is compared with it.
class HealthGemm {
 public:
  /// Square matrices of floats, both stored by rows.
  explicit HealthGemm(int size);
  /// Small whole numbers, which kBf16 and kFp8 (e4m3) store exactly. Only `rows` rows of both factors differ:
  /// row i of a repeats row i % rows, and so does column i of b, which is stored by columns. The product
  /// repeats alike, so large products have small exact ones.
  HealthGemm(StoredNumber number, int size, int rows);

  StoredNumber number() const { return number_; }
  int size() const { return size_; }
  /// The rows of a() and of the exact product.
  int rows() const { return rows_; }
  std::span<const float> a() const { return a_; }
  std::span<const float> b() const { return b_; }
  /// The elements of an exact product.
  std::size_t elements() const { return exact_.size(); }
  /// Of rows() rows.
  double flops() const { return 2.0 * rows_ * size_ * size_; }

  /// Returns how many elements lie further from the exact values than any order of float sums can bring them.
  std::uint64_t wrong(std::span<const float> product) const;
  /// The smallest and the largest float of each element that wrong() accepts.
  std::vector<float> lowest() const;
  std::vector<float> highest() const;

 private:
  StoredNumber number_ = StoredNumber::kFloat;
  int size_, rows_;
  std::vector<float> a_, b_;
  std::vector<double> exact_, bound_;
};

/// Returns the numbers as the factors of a product are stored.
std::vector<std::byte> stored(StoredNumber number, std::span<const float> numbers);

/// Counts the wrong and the differing results of many equal products.
class HealthProducts {
 public:
  explicit HealthProducts(const HealthGemm& gemm) : gemm_(gemm) {}
  struct Verdict {
    bool is_other = false;  ///< its bits differ from the first product's
    bool is_wrong = false;  ///< it is beyond the bounds
  };
  /// Compares a product with the first one, which the first call keeps, and with the bounds.
  Verdict compare(std::span<const float> product);
  /// Counts a product.
  void add_verdict(Verdict verdict);
  void add_product(std::span<const float> product) { add_verdict(compare(product)); }

  std::uint64_t products = 0;
  std::uint64_t wrong = 0;
  std::uint64_t other = 0;

 private:
  const HealthGemm& gemm_;
  std::vector<float> first_;
  std::uint64_t first_hash_ = 0;
  bool first_wrong_ = false;
};

}  // namespace ddp::train
