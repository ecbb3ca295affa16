#include "apps/train/kernels/kernel_table.h"

#include "apps/train/kernels/isa_kernels.h"

namespace ddp::train::kernels {

template <>
std::vector<const KernelTable<float>*> all_kernels<float>() {
  std::vector<const KernelTable<float>*> tables{&generic::kFloat};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v2")) tables.push_back(&x86_64_v2::kFloat);
  if (__builtin_cpu_supports("x86-64-v3")) tables.push_back(&x86_64_v3::kFloat);
  if (__builtin_cpu_supports("x86-64-v4")) tables.push_back(&x86_64_v4::kFloat);
#endif
  return tables;
}

template <>
std::vector<const KernelTable<double>*> all_kernels<double>() {
  std::vector<const KernelTable<double>*> tables{&generic::kDouble};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v2")) tables.push_back(&x86_64_v2::kDouble);
  if (__builtin_cpu_supports("x86-64-v3")) tables.push_back(&x86_64_v3::kDouble);
  if (__builtin_cpu_supports("x86-64-v4")) tables.push_back(&x86_64_v4::kDouble);
#endif
  return tables;
}

template <class T>
const KernelTable<T>& best_kernels() {
  return *all_kernels<T>().back();
}

template const KernelTable<float>& best_kernels<float>();
template const KernelTable<double>& best_kernels<double>();

}  // namespace ddp::train::kernels
