// gpu_costs costs: measures copies and launches on the device by themselves, for comparison with a step.

#include <chrono>
#include <functional>
#include <string>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/kernels/gpu/gemm_body.h"
#include "tests/gpu/checks.h"

namespace ddp::train::gpu {

namespace {

using Clock = std::chrono::steady_clock;
/// The smallest possible launch: one block copies one number.
using Small = kernels::device::ColumnSums<float>;

constexpr std::size_t kCopied = std::size_t{256} << 20;  // larger than any GPU's cache
constexpr int kLaunches = 14;                            ///< about as many as in a step of the ConvNet

/// Returns the mean seconds of a call of `enqueue`. `times` calls run between two waits for the stream, after
/// some calls that warm up.
Result<double> seconds_each(cudaStream_t stream, int times, const std::function<Result<>()>& enqueue) {
  const auto wait = [&] { return cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); };
  for (int i = 0; i <= times / 5; ++i) {
    if (auto done = enqueue(); !done) return done.error();
  }
  if (auto done = wait(); !done) return done.error();
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) {
    if (auto done = enqueue(); !done) return done.error();
  }
  if (auto done = wait(); !done) return done.error();
  return std::chrono::duration<double>(Clock::now() - start).count() / times;
}

Result<> measure_copies(cudaStream_t stream, CheckLog& log) {
  auto from = make_device_bytes(kCopied), to = make_device_bytes(kCopied);
  if (!from) return from.error();
  if (!to) return to.error();
  const auto each = seconds_each(stream, 20, [&] {
    return cuda_check(cudaMemcpyAsync(to->get(), from->get(), kCopied, cudaMemcpyDeviceToDevice, stream),
                      "cudaMemcpyAsync");
  });
  if (!each) return each.error();
  log.record("copy on the device: GB/s read and written", 2.0 * kCopied / *each / 1e9);
  return {};
}

Result<> measure_launches(cudaStream_t stream, CheckLog& log) {
  auto memory = make_device_bytes(2 * sizeof(float));
  if (!memory) return memory.error();
  auto* const numbers = reinterpret_cast<float*>(memory->get());
  const Small::Args args{1, 1, numbers, numbers + 1};
  const auto launches = [&](int count) {
    const DeviceRunner runner(stream);
    for (int i = 0; i < count; ++i)
      runner.run<Small>(args);
    return runner.outcome();
  };
  for (const int count : {1, kLaunches}) {
    const auto graph = capture_graph(stream, [&] { return launches(count); });
    if (!graph) return graph.error();
    const auto each = seconds_each(
        stream, 1000, [&] { return cuda_check(cudaGraphLaunch(graph->get(), stream), "cudaGraphLaunch"); });
    if (!each) return each.error();
    log.record("graph of " + std::to_string(count) + (count == 1 ? " launch" : " launches") + ": us each",
               *each * 1e6);
  }
  const auto each = seconds_each(stream, 1000, [&] { return launches(kLaunches); });
  if (!each) return each.error();
  log.record(std::to_string(kLaunches) + " launches one by one: us", *each * 1e6);
  return {};
}

void measure_costs(CheckLog& log) {
  const auto stream = make_cuda_stream();
  if (!stream) return log.failed(stream.error());
  if (auto done = measure_copies(stream->get(), log); !done) return log.failed(done.error());
  if (auto done = measure_launches(stream->get(), log); !done) return log.failed(done.error());
}

}  // namespace

std::span<const GpuCheck> all_checks() {
  static constexpr GpuCheck kChecks[] = {{"costs", measure_costs}};
  return kChecks;
}

}  // namespace ddp::train::gpu
