#include "apps/train/collectives/schedule/collective_machine.h"

namespace ddp::train {

namespace {

template <class T>
void add(std::byte* to, const std::byte* from, std::size_t bytes) {
  T* a = reinterpret_cast<T*>(to);
  const T* b = reinterpret_cast<const T*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(T); ++i)
    a[i] += b[i];
}

template <class T>
void sum(std::byte* to, const std::byte* left, const std::byte* right, std::size_t bytes) {
  T* result = reinterpret_cast<T*>(to);
  const T* a = reinterpret_cast<const T*>(left);
  const T* b = reinterpret_cast<const T*>(right);
  for (std::size_t i = 0; i < bytes / sizeof(T); ++i)
    result[i] = a[i] + b[i];
}

}  // namespace

template <class T>
VectorSum vector_sum() {
  return {sizeof(T), &add<T>, &sum<T>};
}

template VectorSum vector_sum<float>();
template VectorSum vector_sum<double>();

}  // namespace ddp::train
