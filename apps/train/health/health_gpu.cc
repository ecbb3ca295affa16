#include "apps/train/gpu/device_model.h"
#include "apps/train/health/health.h"

#ifdef DDP_HAVE_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/ddplaunch_nvml/nvml_library.h"
#include "apps/train/data/hash.h"
#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/health/checks/health_diagnosis.h"
#include "apps/train/health/checks/health_kernels.h"
#include "apps/train/health/health_products.h"
#include "base/result.h"
#include "base/text.h"
#endif

namespace ddp::train {

#ifdef DDP_HAVE_CUDA

namespace {

/// Reads the state of one GPU during its test by NVML. If the library or a function is missing, or the GPU
/// does not know a value, it is 0, which is no error.
class NvmlMonitor {
 public:
  /// Opens the GPU at this place of the PCI bus; CUDA may number GPUs differently.
  void open(int domain, int bus, int device) {
    const std::string place = format_text("%08x:%02x:%02x.0", static_cast<unsigned>(domain),
                                          static_cast<unsigned>(bus), static_cast<unsigned>(device));
    if (!nvml_.load() || nvml_.init == nullptr || nvml_.find == nullptr || nvml_.init() != kNvmlSuccess ||
        nvml_.find(place.c_str(), &device_) != kNvmlSuccess)
      device_ = nullptr;
    if (device_ == nullptr || nvml_.make_events == nullptr || nvml_.want_events == nullptr ||
        nvml_.wait_event == nullptr)
      return;
    void* events = nullptr;
    if (nvml_.make_events(&events) == kNvmlSuccess &&
        nvml_.want_events(device_, kNvmlXidEvent, events) == kNvmlSuccess)
      events_ = events;
  }

  void begin() {
    seen_ = {};
    before_ = counters();
  }

  /// Samples power, clocks, temperature and throttle reasons; to be called while the GPU works.
  void sample() {
    if (device_ == nullptr) return;
    unsigned value = 0;
    if (ask(nvml_.power, &value)) seen_.watts = std::max<std::uint64_t>(seen_.watts, value / 1'000);
    if (ask(nvml_.temperature, kNvmlTemperatureOfGpu, &value))
      seen_.temperature = std::max<std::uint64_t>(seen_.temperature, value);
    if (ask(nvml_.clock, kNvmlClockOfMultiprocessors, &value))
      seen_.clock = seen_.clock == 0 ? value : std::min<std::uint64_t>(seen_.clock, value);
    if (ask(nvml_.most_clock, kNvmlClockOfMultiprocessors, &value)) seen_.most_clock = value;
    unsigned long long reasons = 0;
    if (ask(nvml_.throttle, &reasons)) seen_.throttle_reasons |= reasons;
    take_xids();
  }

  void end(HealthFigures& figures) {
    take_xids();
    const HealthFigures now = counters();
    for (const auto counter :
         {&HealthFigures::ecc_corrected, &HealthFigures::ecc_uncorrected, &HealthFigures::pcie_replays,
          &HealthFigures::nvlink_errors, &HealthFigures::remapped_rows})
      figures.*counter = now.*counter - std::min(now.*counter, before_.*counter);
    figures.remap_waits = now.remap_waits;
    for (const auto sample : {&HealthFigures::watts, &HealthFigures::temperature, &HealthFigures::clock,
                              &HealthFigures::most_clock, &HealthFigures::throttle_reasons,
                              &HealthFigures::xids, &HealthFigures::last_xid})
      figures.*sample = seen_.*sample;
  }

 private:
  template <class Function, class... Arguments>
  bool ask(Function function, Arguments... arguments) const {
    return function != nullptr && function(device_, arguments...) == kNvmlSuccess;
  }

  /// Reads the counters, which only grow.
  HealthFigures counters() const {
    HealthFigures now;
    if (device_ == nullptr) return now;
    unsigned long long count = 0;
    if (ask(nvml_.ecc, kNvmlCorrected, kNvmlVolatile, &count)) now.ecc_corrected = count;
    if (ask(nvml_.ecc, kNvmlUncorrected, kNvmlVolatile, &count)) now.ecc_uncorrected = count;
    unsigned replays = 0, corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    if (ask(nvml_.pcie_replays, &replays)) now.pcie_replays = replays;
    for (unsigned link = 0; link < kNvmlLinks; ++link) {
      for (int counter = 0; counter < kNvmlLinkErrors; ++counter) {
        if (ask(nvml_.link_errors, link, counter, &count)) now.nvlink_errors += count;
      }
    }
    if (ask(nvml_.remapped_rows, &corrected, &uncorrected, &pending, &failed)) {
      now.remapped_rows = corrected + uncorrected;
      now.remap_waits = pending != 0 || failed != 0 ? 1 : 0;
    }
    return now;
  }

  void take_xids() {
    NvmlEvent event{};
    while (events_ != nullptr && nvml_.wait_event(events_, &event, 0) == kNvmlSuccess) {
      ++seen_.xids;
      seen_.last_xid = event.data;
    }
  }

  Nvml nvml_{};
  NvmlDevice device_ = nullptr;  ///< null: all values are unknown
  void* events_ = nullptr;       ///< null: Xids are not reported
  HealthFigures seen_, before_;
};

using Clock = std::chrono::steady_clock;

constexpr int kGpuGemmSize = 1024;
/// Of the tensor cores' products, by capability: 8192 rows from 128 processors on.
constexpr int kMostBurnSize = 8192, kBurnRows = 256, kBurnRowsForProcessor = 64;
constexpr int kBf16Capability = 80, kFp8Capability = 89;
constexpr std::size_t kBusBytes = std::size_t{64} << 20;
constexpr int kBusCopies = 8;

constexpr std::size_t kBlock = kHealthBlockWords * sizeof(std::uint64_t);
constexpr std::size_t kPiece = std::size_t{1} << 30;  ///< a multiple of kBlock
constexpr std::size_t kLeftFree = std::size_t{64} << 20;

class GpuMemory {
 public:
  explicit GpuMemory(cudaStream_t stream) : stream_(stream) {}

  /// Allocates all of `bytes`; if 0, as much of `share` as is available.
  Result<> allocate(std::size_t bytes, std::size_t share) {
    // The records are allocated first: no memory is free afterwards.
    records_ = DDP_TRY(make_device_bytes(kPiece / kBlock * sizeof(PatternFaults)));
    const bool as_there_is = bytes == 0;
    if (as_there_is) bytes = share;
    for (std::size_t left = (std::max(bytes, kBlock) + kBlock - 1) / kBlock * kBlock; left > 0;) {
      const std::size_t size = std::min(left, kPiece);
      auto memory = make_device_bytes(size);
      // Free memory may be fragmented, or other processes were faster.
      if (!memory && as_there_is && !pieces_.empty()) return {};
      if (!memory) return memory.error();
      auto* const words = reinterpret_cast<std::uint64_t*>(memory->get());
      pieces_.push_back({words, size / sizeof(std::uint64_t), words_, HealthPattern::kAddress});
      memory_.push_back(std::move(*memory));
      words_ += pieces_.back().count;
      left -= size;
    }
    return {};
  }

  /// Writes everything before reading anything, so that values in caches do not pass for values in memory.
  Result<> test(HealthPattern pattern, bool inject, PatternFaults& faults) {
    const auto begin = Clock::now();
    for (HealthPiece& piece : pieces_) {
      piece.pattern = pattern;
      DDP_TRY(run<WritePattern>(piece));
    }
    DDP_TRY(wait());
    seconds_ += std::chrono::duration<double>(Clock::now() - begin).count();
    written_ += static_cast<double>(words_ * sizeof(std::uint64_t));
    if (inject) DDP_TRY(turn_a_bit(pieces_.front()));
    for (const HealthPiece& piece : pieces_)
      DDP_TRY(read(piece, faults));
    return {};
  }

  /// Returns GB/s of all writes.
  double speed() const { return written_ / seconds_ / 1e9; }

 private:
  template <class Body>
  Result<> run(const typename Body::Args& args) {
    const DeviceRunner runner(stream_);
    runner.run<Body>(args);
    return runner.outcome();
  }
  Result<> wait() { return DDP_CUDA_CHECK(cudaStreamSynchronize, stream_); }
  Result<> copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    DDP_TRY(DDP_CUDA_CHECK(cudaMemcpyAsync, to, from, bytes, kind, stream_));
    return wait();
  }

  Result<> turn_a_bit(const HealthPiece& piece) {
    std::uint64_t* const middle = piece.words + piece.count / 2;
    const std::uint64_t word =
        pattern_word(piece.pattern, piece.first + piece.count / 2) ^ (std::uint64_t{1} << 4);
    return copy(middle, &word, sizeof word, cudaMemcpyHostToDevice);
  }

  Result<> read(const HealthPiece& piece, PatternFaults& faults) {
    // The records are cleared, so that the previous piece's records do not pass for this piece's.
    const auto blocks = static_cast<std::size_t>(blocks_of(piece));
    std::vector<PatternFaults> block_faults(blocks, PatternFaults::none());
    auto* const records = reinterpret_cast<PatternFaults*>(records_.get());
    DDP_TRY(copy(records, block_faults.data(), blocks * sizeof block_faults[0], cudaMemcpyHostToDevice));
    DDP_TRY(run<ReadPattern>({piece, records}));
    DDP_TRY(copy(block_faults.data(), records, blocks * sizeof block_faults[0], cudaMemcpyDeviceToHost));
    for (std::size_t block = 0; block < blocks; ++block) {
      if (block_faults[block].compared != kHealthBlockWords)
        return Error{ErrorCode::kSystem, "the GPU's memory test read only " +
                                             std::to_string(block_faults[block].compared) + " of the " +
                                             std::to_string(kHealthBlockWords) + " words of a block"};
    }
    // The sampled block differs with each piece and each pattern.
    const std::size_t sample = (samples_++ * 4099) % blocks;
    const auto seen = DDP_TRY(check_block(piece, sample));
    block_faults[sample] = with_sample(block_faults[sample], seen);
    for (const PatternFaults& one : block_faults)
      faults.add(one);
    return {};
  }

  /// Checks one block of a piece on the host.
  Result<PatternFaults> check_block(const HealthPiece& piece, std::size_t block) {
    std::vector<std::uint64_t> words(kHealthBlockWords);
    const std::size_t begin = block * kHealthBlockWords;
    DDP_TRY(copy(words.data(), piece.words + begin, kBlock, cudaMemcpyDeviceToHost));
    PatternFaults seen = PatternFaults::none();
    for (std::size_t i = 0; i < words.size(); ++i)
      seen.compare(words[i], piece.pattern, piece.first + begin + i);
    return seen;
  }

  cudaStream_t stream_;
  DeviceBytes records_;
  std::vector<DeviceBytes> memory_;
  std::vector<HealthPiece> pieces_;
  std::uint64_t words_ = 0;
  std::size_t samples_ = 0;
  double seconds_ = 0, written_ = 0;  ///< of the writes; bytes
};

/// Returns the free memory of this thread's GPU, minus 2 % or at least 64 MiB that other processes may need.
/// `total` is set to all of it.
Result<std::size_t> testable_gpu_memory(std::size_t& total) {
  std::size_t free = 0;
  DDP_TRY(DDP_CUDA_CHECK(cudaMemGetInfo, &free, &total));
  return free - std::min(free, std::max(free / 50, kLeftFree));
}

/// Writes and reads memory of the GPU once for each pattern, by kernels, at the speed of the memory: the
/// task's memory, rounded up to 64 KiB, or as much of its share as is available. kSystem when the GPU has no
/// room, or when the kernels do not read all of it.
///
/// A GPU must not be its own only judge: it also reports how many words each block has read, and the host
/// reads a sample of each piece again.
///
/// `after_pattern` is called four times. Blocking.
Result<> test_gpu_memory(cudaStream_t stream, const HealthTask& task, HealthFigures& figures,
                         const std::function<void()>& after_pattern) {
  GpuMemory memory(stream);
  DDP_TRY(memory.allocate(task.memory, task.share));
  PatternFaults faults = PatternFaults::none();
  for (int i = 0; i < kHealthPatterns; ++i) {
    const auto pattern = static_cast<HealthPattern>(i);
    DDP_TRY(memory.test(pattern, task.inject == HealthFault::kMemory && pattern == HealthPattern::kFives,
                        faults));
    after_pattern();
  }
  figures.set_memory_result(faults);
  figures.memory_gbps = memory.speed();
  return {};
}

/// Measures copies over PCIe between pinned memory and the GPU, by the GPU's clock.
Result<> measure_bus(cudaStream_t stream, std::size_t share, HealthFigures& figures) {
  const std::size_t bytes = share == 0 ? kBusBytes : std::min(kBusBytes, share / 4);
  const auto there = DDP_TRY(make_device_bytes(bytes));
  const auto here = DDP_TRY(make_pinned_bytes(bytes));
  const auto begin = DDP_TRY(make_cuda_event(true)), end = DDP_TRY(make_cuda_event(true));
  const auto copy = [&](cudaMemcpyKind kind) {
    const bool up = kind == cudaMemcpyHostToDevice;
    return DDP_CUDA_CHECK(cudaMemcpyAsync, up ? there.get() : here.get(), up ? here.get() : there.get(),
                          bytes, kind, stream);
  };
  for (const auto& [kind, speed] : {std::pair(cudaMemcpyHostToDevice, &HealthFigures::to_gpu_gbps),
                                    std::pair(cudaMemcpyDeviceToHost, &HealthFigures::from_gpu_gbps)}) {
    DDP_TRY(copy(kind));
    DDP_TRY(record_time(begin.get(), stream));
    for (int i = 0; i < kBusCopies; ++i)
      DDP_TRY(copy(kind));
    DDP_TRY(record_time(end.get(), stream));
    DDP_TRY(DDP_CUDA_CHECK(cudaStreamSynchronize, stream));
    const double seconds = DDP_TRY(seconds_between(begin.get(), end.get()));
    figures.*speed = seconds > 0 ? static_cast<double>(bytes) * kBusCopies / seconds / 1e9 : 0;
  }
  return {};
}

class Gpu final : public HealthDevice {
 public:
  explicit Gpu(int number) : number_(number) {}

  Result<> open() {
    DDP_TRY(DDP_CUDA_CHECK(cudaSetDevice, number_));
    DDP_TRY(DDP_CUDA_CHECK(cudaGetDeviceProperties, &properties_, number_));
    stream_ = DDP_TRY(make_cuda_stream());
    nvml_.open(properties_.pciDomainID, properties_.pciBusID, properties_.pciDeviceID);
    return {};
  }

  std::string name() const override {
    return "GPU " + std::to_string(number_) + " (" + properties_.name + ")";
  }
  std::uint64_t identity() const override {
    const std::string text = gpu_identity(properties_);
    return std::max<std::uint64_t>(fnv_hash(std::as_bytes(std::span(text))), 1);
  }
  Result<std::size_t> testable_memory() override {
    DDP_TRY(DDP_CUDA_CHECK(cudaSetDevice, number_));
    std::size_t total = 0;
    const auto bytes = DDP_TRY(testable_gpu_memory(total));
    if (bytes == 0 || bytes + kLeftFree < total / 2)
      memory_left_out_ = concat("the memory: ", bytes >> 20, " of ", total >> 20, " MiB are free");
    return bytes;
  }
  void begin(HealthFigures& figures) override {
    figures.gpu = true;
    // CUDA's current device belongs to a thread, and the tests run on their own thread.
    begun_ = DDP_CUDA_CHECK(cudaSetDevice, number_);
    nvml_.begin();
  }
  void end(HealthFigures& figures) override { nvml_.end(figures); }

  Result<> make_current() override { return DDP_CUDA_CHECK(cudaSetDevice, number_); }
  int step_width() const override { return burn_size() / 4; }

  Result<> multiply(const HealthTask& task, HealthFigures& figures) override {
    if (!begun_) return begun_;
    const auto library = open_matrix_products();
    figures.products_by = library ? (*library)->name() : "own kernels (" + library.error().text + ")";
    if (gemms_.empty()) choose_products(library.has_value());
    const int capability = 10 * properties_.major + properties_.minor;
    if (!library && capability >= kBf16Capability)
      figures.left_out = "the tensor cores: " + library.error().text;
    HealthTask part = task;
    part.time /= static_cast<int>(gemms_.size());
    for (auto gemm = gemms_.begin(); gemm != gemms_.end();) {
      const bool is_float = gemm->number() == StoredNumber::kFloat;
      const int copies = is_float ? GpuProducts::copies_for(properties_.multiProcessorCount, gemm->size())
                                  : gemm->size() / gemm->rows();
      GpuProducts products(*gemm, copies, stream_.get(), library ? library->get() : nullptr);
      const Result<> begun = products.begin();
      if (!begun && is_float) return begun;
      // The library may lack a product of this kind, or the GPU room for it.
      if (!begun) {
        const std::string what =
            std::string(gemm->number() == StoredNumber::kFp8 ? "fp8" : "bf16") + ": " + begun.error().text;
        figures.products_by += ", no " + what;
        figures.left_out += (figures.left_out.empty() ? "" : "; ") + what;
        gemm = gemms_.erase(gemm);
        continue;
      }
      DDP_TRY(burn(products, part));
      part.inject.reset();
      products.report(figures);
      ++gemm;
    }
    return {};
  }

  Result<> remember(const HealthTask& task, HealthFigures& figures) override {
    if (!begun_) return begun_;
    if (task.memory == 0 && !memory_left_out_.empty())
      figures.left_out += (figures.left_out.empty() ? "" : "; ") + memory_left_out_;
    DDP_TRY(measure_bus(stream_.get(), task.share, figures));
    return test_gpu_memory(stream_.get(), task, figures, [this] { nvml_.sample(); });
  }

 private:
  int burn_size() const {
    const int rows = properties_.multiProcessorCount * kBurnRowsForProcessor / kBurnRows * kBurnRows;
    return std::clamp(rows, kBurnRows, kMostBurnSize);
  }

  /// The exact products are computed once for all rounds.
  void choose_products(bool by_library) {
    const int capability = 10 * properties_.major + properties_.minor;
    gemms_.emplace_back(kGpuGemmSize);
    if (by_library && capability >= kBf16Capability)
      gemms_.emplace_back(StoredNumber::kBf16, burn_size(), kBurnRows);
    if (by_library && capability >= kFp8Capability)
      gemms_.emplace_back(StoredNumber::kFp8, burn_size(), kBurnRows);
  }

  Result<> burn(GpuProducts& products, const HealthTask& task) {
    const auto end = Clock::now() + task.time;
    bool inject = task.inject == HealthFault::kGemm;
    do {
      auto done =
          products.run_batch(products.next_batch(), std::exchange(inject, false), [this] { nvml_.sample(); });
      if (!done) return done;
    } while (Clock::now() < end);
    return {};
  }

  int number_;
  Result<> begun_;  ///< outcome of begin() on the tests' thread
  cudaDeviceProp properties_{};
  CudaStream stream_;
  std::string memory_left_out_;  ///< set by testable_memory(), before any rank has taken its share
  NvmlMonitor nvml_;
  std::list<HealthGemm> gemms_;  ///< the products of each kind
};

}  // namespace

Result<std::unique_ptr<HealthDevice>> open_health_gpu(int local_rank) {
  const auto gpus = DDP_TRY(count_gpus());
  auto gpu = std::make_unique<Gpu>(std::max(local_rank, 0) % gpus);
  DDP_TRY(gpu->open());
  return std::unique_ptr<HealthDevice>(std::move(gpu));
}

#else

Result<std::unique_ptr<HealthDevice>> open_health_gpu(int) {
  return can_use_gpu().error();
}

#endif  // DDP_HAVE_CUDA

}  // namespace ddp::train
