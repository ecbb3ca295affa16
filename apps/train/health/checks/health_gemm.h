#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddp::train {

/// Two square matrices of random numbers, and their product in double. It is computed once, and every
/// device's float product is compared with it.
class HealthGemm {
 public:
  explicit HealthGemm(int size);

  int size() const { return size_; }
  std::span<const float> a() const { return a_; }
  std::span<const float> b() const { return b_; }
  double flops() const { return 2.0 * size_ * size_ * size_; }

  /// Returns how many elements lie further from the exact values than any order of float sums can bring them.
  std::uint64_t wrong(std::span<const float> product) const;
  /// The smallest and the largest float of each element that wrong() accepts.
  std::vector<float> lowest() const;
  std::vector<float> highest() const;

 private:
  int size_;
  std::vector<float> a_, b_;
  std::vector<double> exact_, bound_;
};

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
  void take(Verdict verdict);
  void take(std::span<const float> product) { take(compare(product)); }

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
