#include "apps/train/kernels/cpu/kernel_table.h"

#include <cmath>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

// CMakeLists.txt chooses the instruction sets of a build: DDP_KERNELS_….

namespace ddp::train::kernels {

#if defined(__x86_64__)
namespace {

/// Returns which of x86-64-v2, v3 and v4 processor and kernel run; 1: none. The features of a level that are
/// not tested come with the others on every existing processor. Asks the processor, since
/// __builtin_cpu_supports depends on a run-time library that not every compiler has.
[[maybe_unused]] int x86_level() {
  const auto has = [](unsigned value, unsigned bits) { return (value & bits) == bits; };
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !has(c, bit_SSE4_2 | bit_POPCNT)) return 1;
  if (!has(c, bit_OSXSAVE | bit_FMA) || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return 2;
  // The registers that the kernel saves: 0x6 are those of AVX, 0xe6 also those of AVX-512.
  unsigned saved = 0;
  __asm__("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
  if (!has(saved, 0x6) || !has(b, bit_AVX2 | bit_BMI2)) return 2;
  constexpr unsigned kAvx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
  return has(saved, 0xe6) && has(b, kAvx512) ? 4 : 3;
}

}  // namespace
#endif

template <class T>
std::vector<const KernelTable<T>*> all_kernels() {
  const auto of_type = [](const KernelTable<float>& floats, const KernelTable<double>& doubles) {
    if constexpr (sizeof(T) == sizeof(double)) return &doubles;
    if constexpr (sizeof(T) == sizeof(float)) return &floats;
  };
  std::vector<const KernelTable<T>*> tables{of_type(generic::kFloat, generic::kDouble)};
#ifdef DDP_KERNELS_x86_64_v2
  if (x86_level() >= 2) tables.push_back(of_type(x86_64_v2::kFloat, x86_64_v2::kDouble));
#endif
#ifdef DDP_KERNELS_x86_64_v3
  if (x86_level() >= 3) tables.push_back(of_type(x86_64_v3::kFloat, x86_64_v3::kDouble));
#endif
#ifdef DDP_KERNELS_x86_64_v4
  if (x86_level() >= 4) tables.push_back(of_type(x86_64_v4::kFloat, x86_64_v4::kDouble));
#endif
  return tables;
}

template <class T>
const KernelTable<T>& best_kernels() {
  return *all_kernels<T>().back();
}

template <class T>
const KernelTable<T>* find_kernels(std::string_view name) {
  const auto tables = all_kernels<T>();
  if (name.empty()) return tables.back();
  for (const KernelTable<T>* table : tables) {
    if (table->name == name) return table;
  }
  return nullptr;
}

template std::vector<const KernelTable<float>*> all_kernels<float>();
template std::vector<const KernelTable<double>*> all_kernels<double>();
template const KernelTable<float>* find_kernels<float>(std::string_view);
template const KernelTable<double>* find_kernels<double>(std::string_view);
template const KernelTable<float>& best_kernels<float>();
template const KernelTable<double>& best_kernels<double>();

template <class T>
BatchScore softmax_loss(std::span<const T> logits, std::span<const std::uint8_t> labels, int classes,
                        std::span<T> gradient) {
  BatchScore score;
  const std::size_t width = static_cast<std::size_t>(classes);
  const T share = T(1) / static_cast<T>(labels.size());
  for (std::size_t n = 0; n < labels.size(); ++n) {
    const auto row = logits.subspan(n * width, width);
    std::size_t best = 0;
    for (std::size_t c = 1; c < width; ++c) {
      if (row[c] > row[best]) best = c;
    }
    T sum = 0;
    for (std::size_t c = 0; c < width; ++c)
      sum += std::exp(row[c] - row[best]);
    const T log_sum = std::log(sum);
    score.loss_sum += static_cast<double>(log_sum - (row[labels[n]] - row[best]));
    if (best == labels[n]) ++score.correct;
    if (gradient.empty()) continue;
    for (std::size_t c = 0; c < width; ++c) {
      const T probability = std::exp(row[c] - row[best]) / sum;
      gradient[n * width + c] = (probability - (c == labels[n] ? T(1) : T(0))) * share;
    }
  }
  return score;
}

template BatchScore softmax_loss<float>(std::span<const float>, std::span<const std::uint8_t>, int,
                                        std::span<float>);
template BatchScore softmax_loss<double>(std::span<const double>, std::span<const std::uint8_t>, int,
                                         std::span<double>);

}  // namespace ddp::train::kernels
