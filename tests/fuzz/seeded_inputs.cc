// The main of a fuzz target in builds without libFuzzer: gives the target inputs from a fixed seed, so that
// each run is the same. Nothing guides them to code that was not reached; `./dev fuzz` does that.
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

// libFuzzer's interface (https://llvm.org/docs/LibFuzzer.html#fuzz-target).
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr int kInputs = 8000;
constexpr int kMaxSizeBits = 11;

class Inputs {
 public:
  /// Returns new bytes, or the previous input with some bytes changed. Small inputs are as frequent as large
  /// ones.
  Bytes next() {
    if (below(2) == 0) {
      last_.resize(below(1u << below(kMaxSizeBits + 1)));
      const std::uint32_t kind = below(3);
      for (std::uint8_t& byte : last_)
        byte = static_cast<std::uint8_t>(byte_of(kind));
    }
    for (std::uint32_t changes = below(4); changes > 0 && !last_.empty(); --changes)
      last_[below(static_cast<std::uint32_t>(last_.size()))] = static_cast<std::uint8_t>(below(256));
    return last_;
  }

 private:
  std::uint32_t byte_of(std::uint32_t kind) {
    if (kind == 0) return below(256);
    if (kind == 1) return ' ' + below('~' - ' ' + 1);  // text
    return below(4) == 0 ? below(64) : 0;  // sizes and kinds, which are small numbers of several bytes
  }
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_()) % bound; }

  std::mt19937 random_{1};
  Bytes last_;
};

}  // namespace

int main() {
  Inputs inputs;
  for (int i = 0; i < kInputs; ++i) {
    const Bytes input = inputs.next();
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
}
