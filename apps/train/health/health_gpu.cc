#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "apps/train/data/checksum.h"
#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/health/checks/health_gemm.h"
#include "apps/train/health/health_device.h"
#include "apps/train/health/health_gpu_memory.h"
#include "apps/train/health/health_nvml.h"
#include "apps/train/kernels/gpu/gemm_body.h"

namespace ddp::train {

namespace {

using Clock = std::chrono::steady_clock;
using Product = kernels::device::Gemm<float>;

constexpr int kGpuGemmSize = 1024;

/// Products are copied to the host, which compares them: a wrong value of the GPU must not be judged by the
/// GPU.
class Gpu final : public HealthDevice {
 public:
  explicit Gpu(int number) : number_(number) {}

  Result<> open() {
    if (auto done = cuda_check(cudaSetDevice(number_), "cudaSetDevice"); !done) return done;
    if (auto done = cuda_check(cudaGetDeviceProperties(&properties_, number_), "cudaGetDeviceProperties");
        !done)
      return done;
    auto stream = make_cuda_stream();
    if (!stream) return stream.error();
    stream_ = std::move(*stream);
    nvml_ = NvmlWatch::open(properties_.pciDomainID, properties_.pciBusID, properties_.pciDeviceID);
    return {};
  }

  std::string name() const override {
    return "GPU " + std::to_string(number_) + " (" + properties_.name + ")";
  }
  /// A GPU's own number where it has one: ranks in containers have other names for their host.
  std::uint64_t identity() const override {
    std::string text(properties_.uuid.bytes, sizeof properties_.uuid.bytes);
    if (text.find_first_not_of('\0') == std::string::npos) {
      char host[256] = {};
      (void)::gethostname(host, sizeof host - 1);
      text = std::string(host) + " " + std::to_string(properties_.pciDomainID) + ":" +
             std::to_string(properties_.pciBusID) + ":" + std::to_string(properties_.pciDeviceID);
    }
    return std::max<std::uint64_t>(fnv_hash(std::as_bytes(std::span(text))), 1);
  }
  Result<std::size_t> testable_memory() override {
    if (auto done = cuda_check(cudaSetDevice(number_), "cudaSetDevice"); !done) return done.error();
    return testable_gpu_memory();
  }
  void begin(HealthFigures& figures) override {
    figures.gpu = true;
    // A device belongs to a thread, and the tests have one of their own.
    begun_ = cuda_check(cudaSetDevice(number_), "cudaSetDevice");
    nvml_.begin();
  }
  void end(HealthFigures& figures) override { nvml_.end(figures); }

  Result<> multiply(const HealthTask& task, HealthFigures& figures) override {
    if (!begun_) return begun_;
    const HealthGemm gemm(kGpuGemmSize);
    const std::size_t bytes = gemm.a().size_bytes();
    auto memory = make_device_bytes(3 * bytes);
    if (!memory) return memory.error();
    auto* a = reinterpret_cast<float*>(memory->get());
    float *b = a + gemm.a().size(), *c = b + gemm.a().size();
    if (auto done = copy(a, gemm.a().data(), bytes, cudaMemcpyHostToDevice); !done) return done;
    if (auto done = copy(b, gemm.b().data(), bytes, cudaMemcpyHostToDevice); !done) return done;
    const int n = gemm.size();
    const Product::Args args{n,       n,      n, a, n, 1, b, n, 1, c, n, kernels::device::GemmEnd::kPlain,
                             nullptr, nullptr};
    HealthProducts results(gemm);
    std::vector<float> product(gemm.a().size());
    double busy = 0;
    for (const auto end = Clock::now() + task.time; results.products < 2 || Clock::now() < end;) {
      const auto begin = Clock::now();
      const DeviceRunner runner(stream_.get());
      runner.run<Product>(args);
      if (auto done = runner.outcome(); !done) return done;
      if (auto done = wait(); !done) return done;
      busy += std::chrono::duration<double>(Clock::now() - begin).count();
      if (auto done = copy(product.data(), c, bytes, cudaMemcpyDeviceToHost); !done) return done;
      if (task.plant_gemm && results.products == 1) product[7] += 1;
      results.take(product);
      nvml_.look();
    }
    figures.products = results.products;
    figures.wrong_products = results.wrong;
    figures.other_products = results.other;
    figures.gflops = static_cast<double>(results.products) * gemm.flops() / busy / 1e9;
    return {};
  }

  Result<> remember(const HealthTask& task, HealthFigures& figures) override {
    if (!begun_) return begun_;
    const auto faults =
        test_gpu_memory(stream_.get(), task.memory, task.share, task.plant_memory, [this] { nvml_.look(); });
    if (!faults) return faults.error();
    figures.take(*faults);
    return {};
  }

 private:
  Result<> wait() { return cuda_check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize"); }
  Result<> copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (auto done = cuda_check(cudaMemcpyAsync(to, from, bytes, kind, stream_.get()), "cudaMemcpyAsync");
        !done)
      return done;
    return wait();
  }

  int number_;
  Result<> begun_;  ///< the tests, on their thread
  cudaDeviceProp properties_{};
  CudaStream stream_;
  NvmlWatch nvml_;
};

}  // namespace

Result<> can_test_gpu() {
  const auto gpus = count_gpus();
  if (!gpus) return Error{ErrorCode::kUsage, "no usable NVIDIA GPU: " + gpus.error().text};
  return {};
}

Result<std::unique_ptr<HealthDevice>> open_health_gpu(int local_rank) {
  const auto gpus = count_gpus();
  if (!gpus) return gpus.error();
  auto gpu = std::make_unique<Gpu>(std::max(local_rank, 0) % *gpus);
  if (auto opened = gpu->open(); !opened) return opened.error();
  return std::unique_ptr<HealthDevice>(std::move(gpu));
}

}  // namespace ddp::train
