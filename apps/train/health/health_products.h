#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/health/checks/health_diagnosis.h"
#include "apps/train/health/checks/health_kernels.h"
#include "base/result.h"

namespace ddp::train {

/// Equal products on a GPU, in batches. A product has several copies of the first factor's rows, so that it
/// has work for all processors of the GPU. Products of bf16 and fp8 need a library. The GPU compares each
/// product. The host compares a copy of the first product of all, and of the last one of each batch, since a
/// GPU must not be its only judge. Calls block, but no longer than `limit`; the GPUs are given up after a
/// kTimeout.
class GpuProducts {
 public:
  /// The largest batch. A product has two or three launches. A launch into a full queue, of about 1000, waits
  /// for the GPU without a deadline.
  static constexpr std::size_t kMostProducts = 256;
  static constexpr std::chrono::milliseconds kBatchTime{200};
  static constexpr std::chrono::milliseconds kBatchLimit{60'000};

  /// Returns how many copies give each of a GPU's processors about two blocks of 128 x 128 results.
  static int copies_for(int processors, int size) {
    const int blocks = size / 128 * (size / 128);
    return std::max(2 * processors / std::max(blocks, 1), 1);
  }

  /// `library` makes the products; null: the own kernel does. The references must outlive this object.
  GpuProducts(const HealthGemm& gemm, int copies, cudaStream_t stream, MatrixProducts* library,
              std::chrono::milliseconds limit = kBatchLimit);

  /// Allocates memory, and takes the first product.
  Result<> begin();
  /// Makes `count` products (2 to kMostProducts). `inject`: an element of the first of them is changed.
  /// `meanwhile` is called while the GPU works.
  Result<> run_batch(std::size_t count, bool inject, const std::function<void()>& meanwhile);
  /// Returns how many products make a batch that takes about kBatchTime.
  std::size_t next_batch() const;
  /// Adds the products and the speed.
  void report(HealthFigures& figures) const;

 private:
  /// Matrices of floats. kC has as many copies as a product; the factors lie behind it.
  enum Matrix : std::size_t { kFirst, kLowest, kHighest, kC };

  float* matrix(Matrix which) const;
  std::byte* first_factor() const;
  std::byte* second_factor() const;
  std::size_t factor_bytes(std::size_t elements) const;
  /// Copies a factor to the GPU `times` times, one behind the other.
  Result<> put_factor(std::byte* to, std::span<const float> factor, std::size_t times);
  std::size_t blocks() const;
  ProductFaults* record(std::size_t product) const;
  Result<> multiply();
  /// Reads a copy of the last product, another one each time.
  Result<> read_copy();
  /// Counts the products of a batch. `last`: the host's verdict about the last one.
  Result<> take_batch(std::size_t count, HealthProducts::Verdict last);
  Result<> wait();
  /// `size`: in bytes.
  Result<> copy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind);

  const HealthGemm& gemm_;
  int copies_;
  cudaStream_t stream_;
  MatrixProducts* library_;
  std::chrono::milliseconds limit_;
  HealthProducts results_;
  std::vector<float> product_;  ///< one copy
  std::size_t copies_read_ = 0;
  DeviceBytes memory_;
  DeviceBytes records_;         ///< ProductFaults[kMostProducts][blocks()]
  double busy_ = 0, each_ = 0;  ///< seconds of all batches, and of one product of the last batch
  std::size_t timed_ = 0;       ///< products of all batches
};

}  // namespace ddp::train
