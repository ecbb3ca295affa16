#include "apps/train/health/checks/health_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "apps/train/data/hash.h"

namespace ddp::train {

PatternFaults with_sample(PatternFaults merged, const PatternFaults& seen) {
  if (seen.words == 0) return merged;
  merged.words = std::max(merged.words, seen.words);
  merged.first = std::min(merged.first, seen.first);
  merged.bits |= seen.bits;
  return merged;
}

PatternFaults test_patterns(std::span<std::uint64_t> memory, bool inject) {
  PatternFaults faults = PatternFaults::none();
  for (int i = 0; i < kHealthPatterns; ++i) {
    const auto pattern = static_cast<HealthPattern>(i);
    for (std::size_t word = 0; word < memory.size(); ++word)
      memory[word] = pattern_word(pattern, word);
    asm volatile("" : : "r"(memory.data()) : "memory");  // the compiler must forget the written values
    if (inject && pattern == HealthPattern::kFives) memory[memory.size() / 2] ^= 1u << 4;
    asm volatile("" : : "r"(memory.data()) : "memory");
    for (std::size_t word = 0; word < memory.size(); ++word)
      faults.compare(memory[word], pattern, word);
  }
  return faults;
}

HealthGemm::HealthGemm(int size) : size_(size), rows_(size) {
  const auto count = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  const auto n = static_cast<std::size_t>(size);
  a_.resize(count);
  b_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    a_[i] = static_cast<float>(2 * random_unit(1, 0, i) - 1);
    b_[i] = static_cast<float>(2 * random_unit(1, 1, i) - 1);
  }
  exact_.assign(count, 0);
  bound_.assign(count, 0);
  for (std::size_t row = 0; row < n; ++row) {
    for (std::size_t d = 0; d < n; ++d) {
      const double left = static_cast<double>(a_[row * n + d]);
      for (std::size_t column = 0; column < n; ++column) {
        const double product = left * static_cast<double>(b_[d * n + column]);
        exact_[row * n + column] += product;
        bound_[row * n + column] += std::abs(product);
      }
    }
  }
  // The usual bound of a sum of `size` products in any order, with room for second-order terms.
  constexpr double kHalfUlp = std::numeric_limits<float>::epsilon() / 2;
  for (double& bound : bound_)
    bound *= 1.01 * (size + 1) * kHalfUlp;
}

HealthGemm::HealthGemm(StoredNumber number, int size, int rows) : number_(number), size_(size), rows_(rows) {
  const auto n = static_cast<std::size_t>(size), r = static_cast<std::size_t>(rows);
  // Sums of up to 32,768 products stay whole numbers in float. Tensor cores keep about 14 bits of a sum of
  // fp8 products: smaller numbers, and a bound.
  const int most = number == StoredNumber::kBf16 ? 8 : 2;
  const double lost = number == StoredNumber::kBf16 ? 0 : std::ldexp(1.0, -13);
  std::vector<int> whole[2];
  for (int factor = 0; factor < 2; ++factor) {
    std::vector<float>& floats = factor == 0 ? a_ : b_;
    for (std::size_t i = 0; i < r * n; ++i) {
      const double random = random_unit(2, static_cast<std::uint64_t>(factor), i);
      whole[factor].push_back(static_cast<int>(random * (2 * most + 1)) - most);
      floats.push_back(static_cast<float>(whole[factor].back()));
    }
  }
  exact_.resize(r * n);
  bound_.resize(r * n);
  for (std::size_t row = 0; row < r; ++row) {
    for (std::size_t column = 0; column < r; ++column) {
      const int* const left = whole[0].data() + row * n;
      const int* const right = whole[1].data() + column * n;
      int sum = 0, largest = 0;
      for (std::size_t d = 0; d < n; ++d) {
        sum += left[d] * right[d];
        largest += std::abs(left[d] * right[d]);
      }
      for (std::size_t repeated = column; repeated < n; repeated += r) {
        exact_[row * n + repeated] = sum;
        bound_[row * n + repeated] = lost * largest;
      }
    }
  }
}

std::vector<std::byte> stored(StoredNumber number, std::span<const float> numbers) {
  if (number == StoredNumber::kFloat) {
    const auto bytes = std::as_bytes(numbers);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::byte> bytes;
  for (const float value : numbers) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if (number == StoredNumber::kBf16) {
      bytes.push_back(static_cast<std::byte>(bits >> 16));
      bytes.push_back(static_cast<std::byte>(bits >> 24));
      continue;
    }
    // e4m3: sign, exponent + 7 in four bits, the fraction's first three bits; zero is the smallest number.
    const std::uint32_t exponent = (bits >> 23 & 0xff) - 127 + 7;
    bytes.push_back(
        static_cast<std::byte>(value == 0 ? 0 : (bits >> 31 << 7 | exponent << 3 | (bits >> 20 & 7))));
  }
  return bytes;
}

std::uint64_t HealthGemm::wrong(std::span<const float> product) const {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < product.size(); ++i)
    wrong += !(std::abs(static_cast<double>(product[i]) - exact_[i]) <= bound_[i]);  // a nan is wrong, too
  return wrong;
}

std::vector<float> HealthGemm::lowest() const {
  std::vector<float> lowest(exact_.size());
  for (std::size_t i = 0; i < lowest.size(); ++i) {
    lowest[i] = static_cast<float>(exact_[i] - bound_[i]);
    if (exact_[i] - static_cast<double>(lowest[i]) > bound_[i])
      lowest[i] = std::nextafter(lowest[i], std::numeric_limits<float>::infinity());
  }
  return lowest;
}

std::vector<float> HealthGemm::highest() const {
  std::vector<float> highest(exact_.size());
  for (std::size_t i = 0; i < highest.size(); ++i) {
    highest[i] = static_cast<float>(exact_[i] + bound_[i]);
    if (static_cast<double>(highest[i]) - exact_[i] > bound_[i])
      highest[i] = std::nextafter(highest[i], -std::numeric_limits<float>::infinity());
  }
  return highest;
}

void HealthProducts::add_verdict(Verdict verdict) {
  ++products;
  other += verdict.is_other;
  wrong += verdict.is_wrong;
}

HealthProducts::Verdict HealthProducts::compare(std::span<const float> product) {
  if (first_.empty()) {
    first_.assign(product.begin(), product.end());
    first_hash_ = fnv_hash(std::as_bytes(product));
    first_wrong_ = gemm_.wrong(product) > 0;
    return {false, first_wrong_};
  }
  // Products are compared bit by bit: a hash of as many bytes costs more than the product. The hash of the
  // first product shows whether the reference itself has changed since.
  const bool equal = std::memcmp(first_.data(), product.data(), product.size_bytes()) == 0;
  const bool kept = equal || fnv_hash(std::as_bytes(std::span(first_))) == first_hash_;
  return {!equal || !kept, equal ? first_wrong_ : gemm_.wrong(product) > 0};
}

}  // namespace ddp::train
