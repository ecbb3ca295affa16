#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "apps/train/data/hash.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "tests/support/catch.h"
#include "tests/support/host_launch.h"

// For tests of device bodies on the host.

namespace ddp::train::kernels::device {

/// Tolerance for sums in different orders by the CPU's kernels and the bodies, relative to the largest
/// expected value.
template <class T>
constexpr double kDeviceTolerance = sizeof(T) == 4 ? 2e-5 : 1e-12;

template <class T>
AlignedBuffer<T> noise(std::size_t size, std::uint64_t stream) {
  AlignedBuffer<T> values(size);
  for (std::size_t i = 0; i < size; ++i)
    *values.at(i) = static_cast<T>(2 * random_unit(1, stream, i) - 1);
  return values;
}

/// Images with a border of two zero pixels.
template <class T>
AlignedBuffer<T> padded_noise(int batch, int side, int channels, std::uint64_t stream) {
  const int wide = side + 4;
  AlignedBuffer<T> values = noise<T>(static_cast<std::size_t>(batch) * wide * wide * channels, stream);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int x = static_cast<int>(i / channels) % wide, y = static_cast<int>(i / channels) / wide % wide;
    if (x < 2 || y < 2 || x >= side + 2 || y >= side + 2) *values.at(i) = T(0);
  }
  return values;
}

/// Returns the largest difference relative to the largest expected value; nan if there is any nan.
template <class A, class B>
double difference(const A& got, const B& expected) {
  REQUIRE(got.size() == expected.size());
  double largest = 1e-30, worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double right = static_cast<double>(expected.data()[i]);
    const double error = std::abs(static_cast<double>(got.data()[i]) - right);
    if (std::isnan(error)) return error;
    largest = std::max(largest, std::abs(right));
    worst = std::max(worst, error);
  }
  return worst / largest;
}

template <class A, class B>
bool same_bits(const A& a, const B& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(*a.data())) == 0;
}

inline const HostOrder kHostOrders[] = {{false, 0}, {true, 0}, {false, 1}, {true, 2}};

/// run(order) returns all outputs as one vector, which must have the same bits in every order. Returns the
/// first one.
template <class Run>
auto in_every_order(const Run& run) {
  const auto first = run(kHostOrders[0]);
  for (const HostOrder& order : std::span(kHostOrders).subspan(1)) {
    INFO((order.reverse_threads ? "threads in reverse, " : "threads in order, ")
         << "blocks shuffled by " << order.shuffle_blocks);
    CHECK(same_bits(run(order), first));
  }
  return first;
}

/// Returns nans, each of which the tested body must overwrite.
template <class T>
std::vector<T> unwritten(std::size_t size) {
  return std::vector<T>(size, std::numeric_limits<T>::quiet_NaN());
}

}  // namespace ddp::train::kernels::device
