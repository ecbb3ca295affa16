#include "apps/train/health/health_gpu_memory.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/health/checks/health_pattern_body.h"

namespace ddp::train {

namespace {

constexpr std::size_t kBlock = kHealthBlockWords * sizeof(std::uint64_t);
constexpr std::size_t kPiece = std::size_t{1} << 30;  ///< a multiple of kBlock
constexpr std::size_t kLeftFree = std::size_t{64} << 20;

class GpuMemory {
 public:
  explicit GpuMemory(cudaStream_t stream) : stream_(stream) {}

  /// All of `bytes`; where 0, of `share` as much as there is.
  Result<> take(std::size_t bytes, std::size_t share) {
    // The records first: nothing is free afterwards.
    auto records = make_device_bytes(kPiece / kBlock * sizeof(PatternFaults));
    if (!records) return records.error();
    records_ = std::move(*records);
    const bool as_there_is = bytes == 0;
    if (as_there_is) bytes = share;
    for (std::size_t left = (std::max(bytes, kBlock) + kBlock - 1) / kBlock * kBlock; left > 0;) {
      const std::size_t size = std::min(left, kPiece);
      auto memory = make_device_bytes(size);
      // What is free may be in parts, or others may have been faster.
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

  /// All is written before any of it is read, so that what the caches hold is not taken for the memory.
  Result<> test(HealthPattern pattern, bool plant, PatternFaults& faults) {
    for (HealthPiece& piece : pieces_) {
      piece.pattern = pattern;
      if (auto done = run<WritePattern>(piece); !done) return done;
    }
    if (plant) {
      if (auto done = turn_a_bit(pieces_.front()); !done) return done;
    }
    for (const HealthPiece& piece : pieces_) {
      if (auto done = read(piece, faults); !done) return done;
    }
    return {};
  }

 private:
  template <class Body>
  Result<> run(const typename Body::Args& args) {
    const DeviceRunner runner(stream_);
    runner.run<Body>(args);
    return runner.outcome();
  }
  Result<> wait() { return cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  Result<> copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (auto done = cuda_check(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync"); !done)
      return done;
    return wait();
  }

  Result<> turn_a_bit(const HealthPiece& piece) {
    std::uint64_t* const middle = piece.words + piece.count / 2;
    const std::uint64_t word =
        pattern_word(piece.pattern, piece.first + piece.count / 2) ^ (std::uint64_t{1} << 4);
    return copy(middle, &word, sizeof word, cudaMemcpyHostToDevice);
  }

  Result<> read(const HealthPiece& piece, PatternFaults& faults) {
    // Records of the piece before must not pass for those of this one.
    const auto blocks = static_cast<std::size_t>(blocks_of(piece));
    std::vector<PatternFaults> told(blocks, PatternFaults::none());
    auto* const records = reinterpret_cast<PatternFaults*>(records_.get());
    if (auto done = copy(records, told.data(), blocks * sizeof told[0], cudaMemcpyHostToDevice); !done)
      return done;
    if (auto done = run<ReadPattern>({piece, records}); !done) return done;
    if (auto done = copy(told.data(), records, blocks * sizeof told[0], cudaMemcpyDeviceToHost); !done)
      return done;
    for (std::size_t block = 0; block < blocks; ++block) {
      if (told[block].looked != kHealthBlockWords)
        return Error{ErrorCode::kSystem, "the GPU's memory test looked at " +
                                             std::to_string(told[block].looked) + " of the " +
                                             std::to_string(kHealthBlockWords) + " words of a block"};
    }
    // Other ones in each piece and with each pattern.
    const std::size_t sample = (looks_++ * 4099) % blocks;
    const auto seen = look_at(piece, sample);
    if (!seen) return seen.error();
    told[sample] = with_sample(told[sample], *seen);
    for (const PatternFaults& one : told)
      faults.add(one);
    return {};
  }

  /// One block of a piece, by the host.
  Result<PatternFaults> look_at(const HealthPiece& piece, std::size_t block) {
    std::vector<std::uint64_t> words(kHealthBlockWords);
    const std::size_t begin = block * kHealthBlockWords;
    if (auto done = copy(words.data(), piece.words + begin, kBlock, cudaMemcpyDeviceToHost); !done)
      return done.error();
    PatternFaults seen = PatternFaults::none();
    for (std::size_t i = 0; i < words.size(); ++i)
      seen.look(words[i], piece.pattern, piece.first + begin + i);
    return seen;
  }

  cudaStream_t stream_;
  DeviceBytes records_;
  std::vector<DeviceBytes> memory_;
  std::vector<HealthPiece> pieces_;
  std::uint64_t words_ = 0;
  std::size_t looks_ = 0;
};

}  // namespace

Result<std::size_t> testable_gpu_memory() {
  std::size_t free = 0, total = 0;
  if (auto done = cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"); !done) return done.error();
  return free - std::min(free, std::max(free / 50, kLeftFree));
}

Result<PatternFaults> test_gpu_memory(cudaStream_t stream, std::size_t bytes, std::size_t share, bool plant,
                                      const std::function<void()>& after_pattern) {
  GpuMemory memory(stream);
  if (auto taken = memory.take(bytes, share); !taken) return taken.error();
  PatternFaults faults = PatternFaults::none();
  for (int i = 0; i < kHealthPatterns; ++i) {
    const auto pattern = static_cast<HealthPattern>(i);
    if (auto done = memory.test(pattern, plant && pattern == HealthPattern::kFives, faults); !done)
      return done.error();
    after_pattern();
  }
  return faults;
}

}  // namespace ddp::train
