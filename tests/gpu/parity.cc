#include <cxxabi.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/device_launch.h"
#include "apps/train/kernels/gpu/net_programs.h"
#include "tests/gpu/check_data.h"
#include "tests/gpu/checks.h"
#include "tests/support/host_launch.h"

// The host driver runs a program and keeps a copy of the memory after each launch. Then the GPU runs the same
// program. After each launch, the host's copy replaces the GPU's memory. Thus each launch is checked by
// itself.

namespace ddp::train::gpu {

namespace {

using namespace kernels::device;
using Bytes = std::vector<std::byte>;

std::string readable(const char* name) {
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, nullptr),
                                                    std::free);
  std::string words = text ? text.get() : name;
  const std::string prefix = "ddp::train::kernels::device::";
  for (std::size_t at = 0; (at = words.find(prefix)) != std::string::npos;)
    words.erase(at, prefix.size());
  return words;
}

/// Returns whether the launch computes the part with exp, log or pow. Their last places differ between a GPU
/// and a CPU. This applies to all results of the loss, but only to the state of StepDecision: the gradients
/// that it checks are sums and products.
bool is_rounded(const std::string& body, const ArenaPart& part) {
  if (body.find("StepDecision<") != std::string::npos)
    return part.count == 1 && part.size == sizeof(StepState);
  return body.find("Head<") != std::string::npos || body.find("SoftmaxLoss<") != std::string::npos;
}

struct Launch {
  std::string body;
  Bytes after;
};

struct Recorder {
  HostOrder order;
  const std::byte* memory;
  std::size_t size;
  std::vector<Launch>& launches;

  template <class Body>
  void run(const typename Body::Args& args) const {
    run_on_host<Body>(args, order);
    launches.push_back({readable(typeid(Body).name()), Bytes(memory, memory + size)});
  }
};

/// Returns the largest difference in a part, relative to the largest number of the part. 0: all numbers are
/// equal. Infinity: a NaN differs.
template <class T>
double apart(const std::byte* got, const std::byte* expected, std::size_t count) {
  double worst = 0, largest = 1e-30;
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, got + i * sizeof(T), sizeof a);
    std::memcpy(&b, expected + i * sizeof(T), sizeof b);
    if (std::memcmp(&a, &b, sizeof a) != 0 && !(a == b)) {
      if (std::isnan(a) || std::isnan(b)) return INFINITY;
      worst = std::max(worst, std::abs(static_cast<double>(a) - static_cast<double>(b)));
    }
    if (!std::isnan(b)) largest = std::max(largest, std::abs(static_cast<double>(b)));
  }
  return worst / largest;
}

/// Runs the last operation on a product as a kernel of its own, as after a library's product.
template <class Runner>
struct LikeLibrary {
  const Runner& runner;

  template <class Body>
  void run(const typename Body::Args& args) const {
    finish(args, static_cast<Body*>(nullptr));
  }
  template <class Args, class Body>
  void finish(const Args& args, Body*) const {
    runner.template run<Body>(args);
  }
  template <class Args, class S, class C>
  void finish(Args args, Gemm<float, S, S, C>*) const {
    const GemmEnd end = std::exchange(args.end, GemmEnd::kPlain);
    runner.template run<Gemm<float, S, S, C>>(args);
    if (end != GemmEnd::kPlain)
      runner.template run<FinishProduct<float, S, C>>(
          {args.rows, args.columns, args.c, end, args.bias, args.mask});
  }
};

template <class T>
class ParityChecker {
 public:
  ParityChecker(std::byte* memory, cudaStream_t stream, const std::vector<ArenaPart>& parts,
                std::vector<Launch> launches, std::string place, CheckLog& log)
      : memory_(memory),
        stream_(stream),
        parts_(parts),
        launches_(std::move(launches)),
        place_(std::move(place)),
        log_(log) {}

  template <class Body>
  void run(const typename Body::Args& args) const {
    const Launch& launch = launches_.at(next_++);
    Bytes got(launch.after.size());
    auto done = cuda_check(launch_on_device<Body>(args, stream_), launch.body.c_str());
    if (done) done = copy(got.data(), memory_, got.size(), cudaMemcpyDeviceToHost);
    if (!done) {
      log_.failed(done.error());
      return;
    }
    compare(launch, got);
    if (auto made = copy(memory_, launch.after.data(), got.size(), cudaMemcpyHostToDevice); !made)
      log_.failed(made.error());
  }

  Result<> copy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) const {
    if (auto done = cuda_check(cudaMemcpyAsync(to, from, size, kind, stream_), "cudaMemcpyAsync"); !done)
      return done;
    return cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  void compare(const Launch& launch, const Bytes& got) const {
    double exact = 0, rounded = 0;
    for (const ArenaPart& part : parts_) {
      double& worst = is_rounded(launch.body, part) ? rounded : exact;
      const std::byte *a = got.data() + part.begin, *b = launch.after.data() + part.begin;
      const std::size_t bytes = part.count * part.size;
      if (std::memcmp(a, b, bytes) == 0) continue;
      if (part.floating_point && part.size == sizeof(float)) {
        worst = std::max(worst, apart<float>(a, b, part.count));
      } else if (part.size % sizeof(double) == 0) {  // includes structs of doubles
        worst = std::max(worst, apart<double>(a, b, bytes / sizeof(double)));
      } else {
        worst = INFINITY;
      }
    }
    const double limit = std::is_same_v<T, float> ? 3e-6 : 1e-14;
    log_.add(place_ + " " + launch.body, exact, 0);
    if (rounded > 0) log_.add(place_ + " " + launch.body + ", rounded", rounded, limit);
  }

  std::byte* memory_;
  cudaStream_t stream_;
  const std::vector<ArenaPart>& parts_;
  std::vector<Launch> launches_;
  std::string place_;
  CheckLog& log_;
  mutable std::size_t next_ = 0;
};

/// `lay_out(arena)` returns the memory of a model. `program(runner, memory)` runs the launches.
template <class T>
Result<> check_program(const std::string& place, const auto& lay_out, const auto& program, const Bytes& begin,
                       const std::vector<ArenaPart>& parts, CheckLog& log) {
  Bytes host_bytes(begin.size() + 256);
  std::byte* const host =
      host_bytes.data() + (256 - reinterpret_cast<std::uintptr_t>(host_bytes.data()) % 256);
  std::ranges::copy(begin, host);
  Arena host_arena(host);
  std::vector<Launch> launches;
  program(Recorder{{}, host, begin.size(), launches}, lay_out(host_arena));

  auto bytes = make_device_bytes(begin.size());
  if (!bytes) return bytes.error();
  const auto stream = make_cuda_stream();
  if (!stream) return stream.error();
  const ParityChecker<T> checker(bytes->get(), stream->get(), parts, std::move(launches), place, log);
  if (auto done = checker.copy(bytes->get(), begin.data(), begin.size(), cudaMemcpyHostToDevice); !done)
    return done;
  Arena device_arena(bytes->get());
  program(checker, lay_out(device_arena));
  return {};
}

/// Returns the memory at the start of a step: a batch, weights, and the state of an optimizer after 3 steps.
/// `parts` receives the layout.
template <class T>
Bytes beginning(const auto& lay_out, std::vector<ArenaPart>& parts, int batch, int border) {
  Arena counting(parts);
  lay_out(counting);
  Bytes bytes(counting.size() + 256);
  std::byte* const begin = bytes.data() + (256 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 256);
  Arena arena(begin);
  const auto memory = lay_out(arena);
  const auto& t = memory.training;
  const CheckBatch<T> data(batch, border, 5);
  std::ranges::copy(data.images, t.images);
  std::ranges::copy(data.labels, t.labels);
  const auto fill = [](T* to, int count, std::uint64_t stream, double low, double high) {
    for (int i = 0; i < count; ++i)
      to[i] = static_cast<T>(low + (high - low) * random_unit(11, stream, static_cast<std::uint64_t>(i)));
  };
  fill(t.parameters, t.count, 1, -0.05, 0.05);
  fill(t.first, t.count, 2, -0.01, 0.01);
  fill(t.second, t.count, 3, 0, 0.01);
  fill(t.running, t.running_count, 4, 0.5, 1.5);
  run_round_weights(HostRunner{}, t);
  t.step.present().input.lr = 0.01;
  t.state->steps = 3;
  return Bytes(begin, begin + counting.size());
}

/// `type` names the model and the type of its stored numbers.
template <class T>
void check_model(const std::string& type, const auto& lay_out, const auto& forward, const auto& backward,
                 int batch, int border, CheckLog& log) {
  std::vector<ArenaPart> parts;
  const Bytes begin = beginning<T>(lay_out, parts, batch, border);
  const std::string place = type + " batch " + std::to_string(batch);
  const auto report = [&](const Result<>& done) {
    if (!done) log.failed(done.error());
  };
  for (const bool adamw : {false, true}) {
    const UpdateSettings settings{
        {adamw ? OptimizerKind::kAdamw : OptimizerKind::kSgd, 0.9, 0.9, 0.999, 1e-8, 0.01}, 0.05, 0.5};
    const auto step = [&](const auto& runner, const auto& memory) {
      forward(runner, memory, batch, true);
      backward(runner, memory, batch);
      run_update(runner, memory.training, settings, T(0.5));
    };
    report(check_program<T>(place + (adamw ? " adamw" : " sgd"), lay_out, step, begin, parts, log));
  }
  const auto evaluation = [&](const auto& runner, const auto& memory) {
    run_round_weights(runner, memory.training);
    forward(runner, memory, batch, false);
  };
  report(check_program<T>(place + " evaluation", lay_out, evaluation, begin, parts, log));
}

template <class S>
std::string type_name() {
  if constexpr (std::is_same_v<S, Bf16>) {
    return "bfloat16";
  } else {
    return sizeof(S) == sizeof(float) ? "float32" : "float64";
  }
}

template <class T, class S = T>
void check_conv_net(int batch, CheckLog& log, bool tall = false) {
  check_model<T>(
      std::string(tall ? "convnet, tall bands, " : "convnet ") + type_name<S>(),
      [batch, tall](Arena& arena) {
        ConvNetMemory<T, S> memory(arena, batch);
        memory.has_tall_bands = tall;
        return memory;
      },
      [](const auto& runner, const auto& m, int n, bool training) {
        run_conv_net_forward(runner, m, n, training);
      },
      [](const auto& runner, const auto& m, int n) {
        run_conv_net_backward(runner, m, n, [](std::size_t) {});
      },
      batch, kImageBorder, log);
}

/// `like_library(runner)`: the runner of the products.
template <class T, class S>
void check_mlp(const std::string& name, const auto& like_library, int batch, CheckLog& log) {
  constexpr int kWidth = 70, kDepth = 2;
  constexpr int kCount =
      kImagePixels * kWidth + kWidth + kWidth * kWidth + kWidth + kWidth * kClasses + kClasses;
  check_model<T>(
      name + " " + type_name<S>(),
      [batch](Arena& arena) { return MlpMemory<T, S>(arena, kWidth, kDepth, kCount, batch); },
      [&](const auto& runner, const auto& m, int n, bool training) {
        run_mlp_forward(like_library(runner), m, n, training);
      },
      [&](const auto& runner, const auto& m, int n) {
        run_mlp_backward(like_library(runner), m, n, [](std::size_t) {});
      },
      batch, 0, log);
}

template <class T, class S = T>
void check_models(int batch, CheckLog& log) {
  check_conv_net<T, S>(batch, log);
  check_conv_net<T, S>(batch, log, true);
  check_mlp<T, S>(
      "mlp", [](const auto& runner) -> const auto& { return runner; }, batch, log);
  if constexpr (std::is_same_v<T, float>)
    check_mlp<T, S>(
        "mlp-library", []<class R>(const R& runner) { return LikeLibrary<R>{runner}; }, batch, log);
}

void check_parity(CheckLog& log) {
  for (const int batch : {1, 5}) {
    check_models<float>(batch, log);
    check_models<double>(batch, log);
    check_models<float, Bf16>(batch, log);
  }
  if (std::getenv("DDP_SHORT_TESTS") != nullptr) return;  // these take minutes on an emulated GPU
  check_conv_net<float>(70, log);
  check_conv_net<float>(150, log);  // the second convolution's channels are not split; above, the first's
}

}  // namespace

std::span<const GpuCheck> all_checks() {
  static constexpr GpuCheck kChecks[] = {{"parity", check_parity}};
  return kChecks;
}

}  // namespace ddp::train::gpu
