#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "apps/train/health/checks/health_kernels.h"
#include "apps/train/health/health.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "base/files.h"
#include "base/text.h"

namespace ddp::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kGemmSize = 384;
constexpr std::size_t kUsualMemory = std::size_t{256} << 20;

/// Returns the thermal events of all cores since boot; 0 if the kernel does not count them.
std::uint64_t count_throttles() {
  std::uint64_t sum = 0;
  for (const auto& cpu : list_directory("/sys/devices/system/cpu")) {
    const std::string count = first_line(cpu / "thermal_throttle/core_throttle_count");
    sum += leading_number<std::uint64_t>(count).value_or(0);
  }
  return sum;
}

class Cpu final : public HealthDevice {
 public:
  std::string name() const override { return "CPU"; }
  void begin(HealthFigures&) override { throttles_ = count_throttles(); }
  void end(HealthFigures& figures) override {
    const std::uint64_t now = count_throttles();
    figures.throttled = now > throttles_ ? now - throttles_ : 0;
  }

  Result<> multiply(const HealthTask& task, HealthFigures& figures) override {
    const HealthGemm gemm(kGemmSize);
    const auto count = static_cast<std::size_t>(std::max(task.threads, 1));
    std::vector<HealthProducts> results(count, HealthProducts(gemm));
    std::vector<std::thread> threads;
    const auto begin = Clock::now();
    const auto end = begin + task.time;
    for (std::size_t i = 0; i < count; ++i)
      threads.emplace_back([&gemm, &results, i, end, inject = task.inject == HealthFault::kGemm && i == 0] {
        multiply_until(gemm, end, inject, results[i]);
      });
    for (std::thread& thread : threads)
      thread.join();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    figures.threads = count;
    for (const HealthProducts& one : results) {
      figures.products += one.products;
      figures.wrong_products += one.wrong;
      figures.other_products += one.other;
    }
    figures.gflops = static_cast<double>(figures.products) * gemm.flops() / seconds / 1e9;
    return {};
  }

  Result<> remember(const HealthTask& task, HealthFigures& figures) override {
    const std::size_t usual = task.share != 0 ? std::min(task.share, kUsualMemory) : kUsualMemory;
    const std::size_t bytes = task.memory != 0 ? task.memory : usual;
    const auto memory = map_file(-1, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    if (!memory)
      return Error{ErrorCode::kSystem,
                   system_error(errno, std::to_string(bytes >> 20) + " MiB of memory to test").text +
                       "; give a smaller --memory"};
    wish_large_pages(memory.get(), bytes);
    const auto begin = Clock::now();
    const PatternFaults faults =
        test_patterns({reinterpret_cast<std::uint64_t*>(memory.get()), bytes / sizeof(std::uint64_t)},
                      task.inject == HealthFault::kMemory);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    figures.set_memory_result(faults);
    figures.memory_gbps = 2.0 * kHealthPatterns * static_cast<double>(bytes) / seconds / 1e9;
    return {};
  }

 private:
  /// Multiplies at least twice, so that two results are compared.
  static void multiply_until(const HealthGemm& gemm, Clock::time_point end, bool inject,
                             HealthProducts& results) {
    const int n = gemm.size();
    const kernels::GemmShape shape{n, n, n, n, 1, n, 1, n};
    AlignedBuffer<float> product(static_cast<std::size_t>(n) * static_cast<std::size_t>(n));
    AlignedBuffer<float> scratch(kernels::kGemmScratch);
    const auto& table = kernels::best_kernels<float>();
    do {
      table.gemm(shape, gemm.a().data(), gemm.b().data(), product.data(), scratch.data());
      if (inject && results.products == 1) product.data()[n] += 1;
      results.add_product(product.span());
    } while (results.products < 2 || Clock::now() < end);
  }

  std::uint64_t throttles_ = 0;
};

}  // namespace

std::unique_ptr<HealthDevice> open_health_cpu() {
  return std::make_unique<Cpu>();
}

std::size_t memory_share(std::span<const std::uint64_t> sizes, int rank) {
  const std::uint64_t mine = sizes[2 * static_cast<std::size_t>(rank)];
  if (mine == 0) return 0;
  std::uint64_t ranks = 0, least = 0;
  for (std::size_t i = 0; i + 1 < sizes.size(); i += 2) {
    if (sizes[i] != mine || sizes[i + 1] == 0) continue;
    least = ranks == 0 ? sizes[i + 1] : std::min(least, sizes[i + 1]);
    ++ranks;
  }
  return ranks == 0 ? 0 : least / ranks;
}

}  // namespace ddp::train
