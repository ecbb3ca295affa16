#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddp::train {

/// Two square matrices of random numbers, and their product in double: computed once, and what every device's
/// float product is held against.
class HealthGemm {
 public:
  explicit HealthGemm(int size);

  int size() const { return size_; }
  std::span<const float> a() const { return a_; }
  std::span<const float> b() const { return b_; }
  double flops() const { return 2.0 * size_ * size_ * size_; }

  /// Elements that lie further from the exact ones than any order of float sums can bring them.
  std::uint64_t wrong(std::span<const float> product) const;

 private:
  int size_;
  std::vector<float> a_, b_;
  std::vector<double> exact_, bound_;
};

/// Counts what comes out of many equal products.
class HealthProducts {
 public:
  explicit HealthProducts(const HealthGemm& gemm) : gemm_(gemm) {}
  /// All equal to the first one's bits, which lies within the bound, or counted.
  void take(std::span<const float> product);

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
