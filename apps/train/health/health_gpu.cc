#include "apps/train/gpu/device_model.h"
#include "apps/train/health/health.h"

#ifdef DDP_HAVE_CUDA
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

// Types and values of nvml.h.
using NvmlDevice = void*;
using NvmlEvents = void*;
constexpr int kNvmlSuccess = 0;
constexpr unsigned long long kXidCritical = 0x8;
constexpr int kSmClock = 1, kTemperatureOfGpu = 0, kVolatile = 0, kCorrected = 0, kUncorrected = 1;

template <class Function>
void load(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
}

struct NvmlState {
  struct NvmlEvent {
    NvmlDevice device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
  };
  int (*init)() = nullptr;
  int (*find)(const char*, NvmlDevice*) = nullptr;
  int (*temperature)(NvmlDevice, int, unsigned*) = nullptr;
  int (*clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*most_clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*reasons)(NvmlDevice, unsigned long long*) = nullptr;
  int (*ecc)(NvmlDevice, int, int, unsigned long long*) = nullptr;
  int (*make_events)(NvmlEvents*) = nullptr;
  int (*register_events)(NvmlDevice, unsigned long long, NvmlEvents) = nullptr;
  int (*wait_event)(NvmlEvents, NvmlEvent*, unsigned) = nullptr;

  NvmlDevice device = nullptr;
  NvmlEvents events = nullptr;  ///< null: Xids are not reported
  HealthFigures seen;
  std::uint64_t corrected = 0, uncorrected = 0;

  void load_all(void* library) {
    load(library, "nvmlInit_v2", init);
    load(library, "nvmlDeviceGetHandleByPciBusId_v2", find);
    load(library, "nvmlDeviceGetTemperature", temperature);
    load(library, "nvmlDeviceGetClockInfo", clock);
    load(library, "nvmlDeviceGetMaxClockInfo", most_clock);
    load(library, "nvmlDeviceGetCurrentClocksThrottleReasons", reasons);
    load(library, "nvmlDeviceGetTotalEccErrors", ecc);
    load(library, "nvmlEventSetCreate", make_events);
    load(library, "nvmlDeviceRegisterEvents", register_events);
    load(library, "nvmlEventSetWait_v2", wait_event);
  }

  std::uint64_t count_ecc(int kind) const {
    unsigned long long count = 0;
    return ecc != nullptr && ecc(device, kind, kVolatile, &count) == kNvmlSuccess ? count : 0;
  }

  void take_xids() {
    NvmlEvent event{};
    while (events != nullptr && wait_event(events, &event, 0) == kNvmlSuccess) {
      ++seen.xids;
      seen.last_xid = event.data;
    }
  }
};

/// Reads the state of one GPU during its test from the driver's library (NVML, loaded at run time). If the
/// library or a function is missing, the values are unknown, which is no error.
class NvmlMonitor {
 public:
  /// Opens the GPU at this place of the PCI bus; CUDA may number GPUs differently.
  static NvmlMonitor open(int domain, int bus, int device) {
    NvmlMonitor monitor;
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);  // stays loaded, as CUDA's do
    if (library == nullptr) return monitor;
    auto state = std::make_unique<NvmlState>();
    state->load_all(library);
    const std::string place = format_text("%08x:%02x:%02x.0", static_cast<unsigned>(domain),
                                          static_cast<unsigned>(bus), static_cast<unsigned>(device));
    if (state->init == nullptr || state->find == nullptr || state->init() != kNvmlSuccess ||
        state->find(place.c_str(), &state->device) != kNvmlSuccess)
      return monitor;
    monitor.state_ = std::move(state);
    return monitor;
  }

  void begin() {
    if (!state_) return;
    NvmlState& s = *state_;
    s.corrected = s.count_ecc(kCorrected);
    s.uncorrected = s.count_ecc(kUncorrected);
    if (s.make_events == nullptr || s.register_events == nullptr || s.wait_event == nullptr) return;
    NvmlEvents events = nullptr;
    if (s.make_events(&events) == kNvmlSuccess &&
        s.register_events(s.device, kXidCritical, events) == kNvmlSuccess)
      s.events = events;
  }

  /// Samples clocks, temperature and throttle reasons; to be called while the GPU works.
  void sample() {
    if (!state_) return;
    NvmlState& s = *state_;
    unsigned value = 0;
    if (s.temperature != nullptr && s.temperature(s.device, kTemperatureOfGpu, &value) == kNvmlSuccess)
      s.seen.temperature = std::max<std::uint64_t>(s.seen.temperature, value);
    if (s.clock != nullptr && s.clock(s.device, kSmClock, &value) == kNvmlSuccess)
      s.seen.clock = s.seen.clock == 0 ? value : std::min<std::uint64_t>(s.seen.clock, value);
    if (s.most_clock != nullptr && s.most_clock(s.device, kSmClock, &value) == kNvmlSuccess)
      s.seen.most_clock = value;
    unsigned long long reasons = 0;
    if (s.reasons != nullptr && s.reasons(s.device, &reasons) == kNvmlSuccess)
      s.seen.throttle_reasons |= reasons;
    s.take_xids();
  }

  void end(HealthFigures& figures) {
    if (!state_) return;
    NvmlState& s = *state_;
    s.take_xids();
    const auto more = [](std::uint64_t now, std::uint64_t before) { return now > before ? now - before : 0; };
    figures.ecc_corrected = more(s.count_ecc(kCorrected), s.corrected);
    figures.ecc_uncorrected = more(s.count_ecc(kUncorrected), s.uncorrected);
    figures.temperature = s.seen.temperature;
    figures.clock = s.seen.clock;
    figures.most_clock = s.seen.most_clock;
    figures.throttle_reasons = s.seen.throttle_reasons;
    figures.xids = s.seen.xids;
    figures.last_xid = s.seen.last_xid;
  }

 private:
  std::unique_ptr<NvmlState> state_;  ///< null: all values are unknown
};

using Clock = std::chrono::steady_clock;

constexpr int kGpuGemmSize = 1024;

constexpr std::size_t kBlock = kHealthBlockWords * sizeof(std::uint64_t);
constexpr std::size_t kPiece = std::size_t{1} << 30;  ///< a multiple of kBlock
constexpr std::size_t kLeftFree = std::size_t{64} << 20;

class GpuMemory {
 public:
  explicit GpuMemory(cudaStream_t stream) : stream_(stream) {}

  /// Takes all of `bytes`; if 0, as much of `share` as is available.
  Result<> take(std::size_t bytes, std::size_t share) {
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
    for (HealthPiece& piece : pieces_) {
      piece.pattern = pattern;
      DDP_TRY(run<WritePattern>(piece));
    }
    if (inject) DDP_TRY(turn_a_bit(pieces_.front()));
    for (const HealthPiece& piece : pieces_)
      DDP_TRY(read(piece, faults));
    return {};
  }

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
};

/// Returns the free memory of this thread's GPU, minus 2 % or at least 64 MiB that other processes may need.
Result<std::size_t> testable_gpu_memory() {
  std::size_t free = 0, total = 0;
  DDP_TRY(DDP_CUDA_CHECK(cudaMemGetInfo, &free, &total));
  return free - std::min(free, std::max(free / 50, kLeftFree));
}

/// Writes and reads memory of the GPU once for each pattern, by kernels, at the speed of the memory. `bytes`:
/// size, rounded up to 64 KiB; 0: as much of `share` as is available. kSystem when the GPU has no room for
/// `bytes`, or when the kernels do not read all of it.
///
/// A GPU must not be its own only judge: it also reports how many words each block has read, and the host
/// reads a sample of each piece again.
///
/// `inject`: a bit of one word is inverted in between. `after_pattern` is called four times. Blocking.
Result<PatternFaults> test_gpu_memory(cudaStream_t stream, std::size_t bytes, std::size_t share, bool inject,
                                      const std::function<void()>& after_pattern) {
  GpuMemory memory(stream);
  DDP_TRY(memory.take(bytes, share));
  PatternFaults faults = PatternFaults::none();
  for (int i = 0; i < kHealthPatterns; ++i) {
    const auto pattern = static_cast<HealthPattern>(i);
    DDP_TRY(memory.test(pattern, inject && pattern == HealthPattern::kFives, faults));
    after_pattern();
  }
  return faults;
}

class Gpu final : public HealthDevice {
 public:
  explicit Gpu(int number) : number_(number) {}

  Result<> open() {
    DDP_TRY(DDP_CUDA_CHECK(cudaSetDevice, number_));
    DDP_TRY(DDP_CUDA_CHECK(cudaGetDeviceProperties, &properties_, number_));
    stream_ = DDP_TRY(make_cuda_stream());
    nvml_ = NvmlMonitor::open(properties_.pciDomainID, properties_.pciBusID, properties_.pciDeviceID);
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
    return testable_gpu_memory();
  }
  void begin(HealthFigures& figures) override {
    figures.gpu = true;
    // CUDA's current device belongs to a thread, and the tests run on their own thread.
    begun_ = DDP_CUDA_CHECK(cudaSetDevice, number_);
    nvml_.begin();
  }
  void end(HealthFigures& figures) override { nvml_.end(figures); }

  Result<> multiply(const HealthTask& task, HealthFigures& figures) override {
    if (!begun_) return begun_;
    const HealthGemm gemm(kGpuGemmSize);
    const auto library = open_matrix_products();
    figures.products_by = library ? (*library)->name() : "own kernels (" + library.error().text + ")";
    const int copies = GpuProducts::copies_for(properties_.multiProcessorCount, kGpuGemmSize);
    GpuProducts products(gemm, copies, stream_.get(), library ? library->get() : nullptr);
    DDP_TRY(products.begin());
    const auto end = Clock::now() + task.time;
    bool inject = task.inject_gemm;
    do {
      auto done =
          products.run_batch(products.next_batch(), std::exchange(inject, false), [this] { nvml_.sample(); });
      if (!done) return done;
    } while (Clock::now() < end);
    products.report(figures);
    return {};
  }

  Result<> remember(const HealthTask& task, HealthFigures& figures) override {
    if (!begun_) return begun_;
    const auto faults = test_gpu_memory(stream_.get(), task.memory, task.share, task.inject_memory,
                                        [this] { nvml_.sample(); });
    if (!faults) return faults.error();
    figures.take(*faults);
    return {};
  }

 private:
  int number_;
  Result<> begun_;  ///< outcome of begin() on the tests' thread
  cudaDeviceProp properties_{};
  CudaStream stream_;
  NvmlMonitor nvml_;
};

}  // namespace

Result<std::unique_ptr<HealthDevice>> open_health_gpu(int local_rank) {
  const auto gpus = DDP_TRY(count_gpus());
  auto gpu = std::make_unique<Gpu>(std::max(local_rank, 0) % gpus);
  DDP_TRY(gpu->open());
  return std::unique_ptr<HealthDevice>(std::move(gpu));
}

bool health_gpu_is_stuck() {
  return gpus_are_given_up();
}

#else

Result<std::unique_ptr<HealthDevice>> open_health_gpu(int) {
  return can_use_gpu().error();
}

bool health_gpu_is_stuck() {
  return false;
}

#endif  // DDP_HAVE_CUDA

}  // namespace ddp::train
