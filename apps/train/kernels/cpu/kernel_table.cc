#include "apps/train/kernels/cpu/kernel_table.h"

// CMakeLists.txt chooses the instruction sets of a build: DDP_KERNELS_….
namespace ddp::train::kernels {

#if defined(__x86_64__)
namespace {

/// Returns which of x86-64-v2, v3 and v4 the processor runs; 1: none. Tests features, since Clang 14 does not
/// know the levels' names. The features of v3 that are not tested come with the others on every existing
/// processor.
[[maybe_unused]] int x86_level() {
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("popcnt")) return 1;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
    return 2;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return 3;
  }
  return 4;
}

}  // namespace
#endif

template <>
std::vector<const KernelTable<float>*> all_kernels<float>() {
  std::vector<const KernelTable<float>*> tables{&generic::kFloat};
#ifdef DDP_KERNELS_x86_64_v2
  if (x86_level() >= 2) tables.push_back(&x86_64_v2::kFloat);
#endif
#ifdef DDP_KERNELS_x86_64_v3
  if (x86_level() >= 3) tables.push_back(&x86_64_v3::kFloat);
#endif
#ifdef DDP_KERNELS_x86_64_v4
  if (x86_level() >= 4) tables.push_back(&x86_64_v4::kFloat);
#endif
  return tables;
}

template <>
std::vector<const KernelTable<double>*> all_kernels<double>() {
  std::vector<const KernelTable<double>*> tables{&generic::kDouble};
#ifdef DDP_KERNELS_x86_64_v2
  if (x86_level() >= 2) tables.push_back(&x86_64_v2::kDouble);
#endif
#ifdef DDP_KERNELS_x86_64_v3
  if (x86_level() >= 3) tables.push_back(&x86_64_v3::kDouble);
#endif
#ifdef DDP_KERNELS_x86_64_v4
  if (x86_level() >= 4) tables.push_back(&x86_64_v4::kDouble);
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

template const KernelTable<float>* find_kernels<float>(std::string_view);
template const KernelTable<double>* find_kernels<double>(std::string_view);
template const KernelTable<float>& best_kernels<float>();
template const KernelTable<double>& best_kernels<double>();

}  // namespace ddp::train::kernels
