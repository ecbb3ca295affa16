#include "apps/train/health/health_products.h"

#include <string>
#include <utility>

#include "apps/train/kernels/gpu/gemm_body.h"

namespace ddp::train {

namespace {

using Clock = std::chrono::steady_clock;
using Product = kernels::device::Gemm<float>;

}  // namespace

GpuProducts::GpuProducts(const HealthGemm& gemm, int copies, cudaStream_t stream, MatrixProducts* library,
                         std::chrono::milliseconds limit)
    : gemm_(gemm),
      copies_(copies),
      stream_(stream),
      library_(library),
      limit_(limit),
      results_(gemm),
      product_(gemm.elements()) {}

Result<> GpuProducts::begin() {
  const auto n = static_cast<std::size_t>(gemm_.size()), copies = static_cast<std::size_t>(copies_);
  auto memory = DDP_TRY(make_device_bytes((kC + copies) * product_.size() * sizeof(float) +
                                          factor_bytes(copies * gemm_.a().size()) + factor_bytes(n * n)));
  auto records = DDP_TRY(make_device_bytes(kMostProducts * blocks() * sizeof(ProductFaults)));
  memory_ = std::move(memory);
  records_ = std::move(records);
  const std::vector<float> lowest = gemm_.lowest(), highest = gemm_.highest();
  const std::size_t bytes = product_.size() * sizeof(float);
  DDP_TRY(copy(matrix(kLowest), lowest.data(), bytes, cudaMemcpyHostToDevice));
  DDP_TRY(copy(matrix(kHighest), highest.data(), bytes, cudaMemcpyHostToDevice));
  DDP_TRY(put_factor(first_factor(), gemm_.a(), copies));
  DDP_TRY(put_factor(second_factor(), gemm_.b(), n * n / gemm_.b().size()));
  DDP_TRY(multiply());
  DDP_TRY(read_copy());
  results_.add_product(product_);
  return copy(matrix(kFirst), product_.data(), bytes, cudaMemcpyHostToDevice);
}

Result<> GpuProducts::run_batch(std::size_t count, bool inject, const std::function<void()>& meanwhile) {
  const auto begin = Clock::now();
  const float changed = product_[7] + 1;
  // A launch that does nothing must not leave the records of an earlier batch.
  DDP_TRY(
      DDP_CUDA_CHECK(cudaMemsetAsync, records_.get(), 0, count * blocks() * sizeof(ProductFaults), stream_));
  for (std::size_t i = 0; i < count; ++i) {
    DDP_TRY(multiply());
    if (inject && i == 0)
      DDP_TRY(DDP_CUDA_CHECK(cudaMemcpyAsync, matrix(kC) + 7, &changed, sizeof changed,
                             cudaMemcpyHostToDevice, stream_));
    const DeviceRunner runner(stream_);
    runner.run<CompareProduct>({matrix(kC), matrix(kFirst), matrix(kLowest), matrix(kHighest),
                                copies_ * static_cast<int>(product_.size()),
                                static_cast<int>(product_.size()), record(i)});
    DDP_TRY(runner.outcome());
  }
  meanwhile();
  DDP_TRY(wait());
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  busy_ += seconds;
  timed_ += count;
  each_ = seconds / static_cast<double>(count);
  DDP_TRY(read_copy());
  return take_batch(count, results_.compare(product_));
}

std::size_t GpuProducts::next_batch() const {
  if (each_ == 0) return 2;
  const double fit = std::chrono::duration<double>(kBatchTime).count() / each_;
  return static_cast<std::size_t>(std::clamp(fit, 2.0, static_cast<double>(kMostProducts)));
}

void GpuProducts::report(HealthFigures& figures) const {
  figures.products += results_.products;
  figures.wrong_products += results_.wrong;
  figures.other_products += results_.other;
  double& gflops = gemm_.number() == StoredNumber::kFloat  ? figures.gflops
                   : gemm_.number() == StoredNumber::kBf16 ? figures.bf16_gflops
                                                           : figures.fp8_gflops;
  gflops = busy_ == 0 ? 0 : static_cast<double>(timed_) * copies_ * gemm_.flops() / busy_ / 1e9;
}

float* GpuProducts::matrix(Matrix which) const {
  return reinterpret_cast<float*>(memory_.get()) + which * product_.size();
}

std::byte* GpuProducts::first_factor() const {
  return reinterpret_cast<std::byte*>(matrix(kC) + static_cast<std::size_t>(copies_) * product_.size());
}

std::byte* GpuProducts::second_factor() const {
  return first_factor() + factor_bytes(static_cast<std::size_t>(copies_) * gemm_.a().size());
}

std::size_t GpuProducts::factor_bytes(std::size_t elements) const {
  constexpr std::size_t kBytes[] = {4, 2, 1};
  return elements * kBytes[static_cast<std::size_t>(gemm_.number())];
}

Result<> GpuProducts::put_factor(std::byte* to, std::span<const float> factor, std::size_t times) {
  const std::vector<std::byte> bytes = stored(gemm_.number(), factor);
  for (std::size_t i = 0; i < times; ++i)
    DDP_TRY(copy(to + i * bytes.size(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  return {};
}

std::size_t GpuProducts::blocks() const {
  CompareProduct::Args args{};
  args.count = copies_ * static_cast<int>(product_.size());
  return static_cast<std::size_t>(CompareProduct::blocks(args));
}

ProductFaults* GpuProducts::record(std::size_t product) const {
  return reinterpret_cast<ProductFaults*>(records_.get()) + product * blocks();
}

Result<> GpuProducts::multiply() {
  const int n = gemm_.size(), rows = copies_ * gemm_.rows();
  if (library_ != nullptr) {
    // Only float factors have b stored by rows. Products of fp8 need both stored along the depth.
    const bool by_rows = gemm_.number() == StoredNumber::kFloat;
    return library_->enqueue({rows, n, n, n, 1, by_rows ? n : 1, by_rows ? 1 : n, n, gemm_.number()},
                             first_factor(), second_factor(), matrix(kC), stream_);
  }
  const DeviceRunner runner(stream_);
  runner.run<Product>({rows, n, n, reinterpret_cast<const float*>(first_factor()), n, 1,
                       reinterpret_cast<const float*>(second_factor()), n, 1, matrix(kC), n,
                       kernels::device::GemmEnd::kPlain, nullptr, nullptr});
  return runner.outcome();
}

Result<> GpuProducts::read_copy() {
  const float* const from = matrix(kC) + copies_read_++ % static_cast<std::size_t>(copies_) * product_.size();
  return copy(product_.data(), from, product_.size() * sizeof product_[0], cudaMemcpyDeviceToHost);
}

Result<> GpuProducts::take_batch(std::size_t count, HealthProducts::Verdict last) {
  std::vector<ProductFaults> found(count * blocks());
  DDP_TRY(copy(found.data(), record(0), found.size() * sizeof found[0], cudaMemcpyDeviceToHost));
  const std::size_t elements = static_cast<std::size_t>(copies_) * product_.size();
  for (std::size_t product = 0; product < count; ++product) {
    ProductFaults faults;
    for (std::size_t block = 0; block < blocks(); ++block)
      faults.add(found[product * blocks() + block]);
    if (faults.compared != elements)
      return Error{ErrorCode::kSystem, "the GPU compared only " + std::to_string(faults.compared) +
                                           " of the " + std::to_string(elements) + " elements of a product"};
    HealthProducts::Verdict verdict{faults.other > 0, faults.wrong > 0};
    if (product + 1 == count)
      verdict = {verdict.is_other || last.is_other, verdict.is_wrong || last.is_wrong};
    results_.add_verdict(verdict);
  }
  return {};
}

Result<> GpuProducts::wait() {
  auto done = wait_for_stream(stream_, limit_, "its matrix products");
  if (!done && done.error().code == ErrorCode::kTimeout) give_up_gpus();
  return done;
}

Result<> GpuProducts::copy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  // A copy waits for all earlier work, and without a deadline.
  DDP_TRY(wait());
  return DDP_CUDA_CHECK(cudaMemcpyAsync, to, from, size, kind, stream_);
}

}  // namespace ddp::train
