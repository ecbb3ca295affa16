// Compares the bodies of the GPU's kernels, run by the host driver, with the kernels of the CPU. Each runs in
// several orders of threads and blocks, which must not change a bit.

#include <limits>
#include <numeric>
#include <vector>

#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/gpu/convolution_body.h"
#include "apps/train/kernels/gpu/gemm_body.h"
#include "apps/train/kernels/gpu/norm_pool_body.h"
#include "tests/unit/apps/train/gpu/device_test_support.h"

using namespace ddp::train;
using namespace ddp::train::kernels;
using namespace ddp::train::kernels::device;

namespace {

/// A faulty body: a thread reads a value that its neighbor writes in the same phase.
struct RacyBody {
  struct Args {
    int* to;
  };
  struct Shared {
    int values[8];
  };
  using Local = NoMemory;
  static constexpr int kThreads = 8;
  static int blocks(const Args&) { return 1; }
  static int phases(const Args&) { return 2; }
  static void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    if (phase == 0) {
      shared.values[at.thread] = at.thread;
    } else {
      shared.values[at.thread] = shared.values[(at.thread + 1) % kThreads];
      args.to[at.thread] = shared.values[at.thread];
    }
  }
};

/// A faulty body: its blocks depend on one another.
struct ChainedBody {
  struct Args {
    int* to;
  };
  using Shared = NoMemory;
  using Local = NoMemory;
  static constexpr int kThreads = 1;
  static int blocks(const Args&) { return 8; }
  static int phases(const Args&) { return 1; }
  static void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    args.to[at.block] = at.block + (at.block == 0 ? 0 : args.to[at.block - 1]);
  }
};

/// Every thread of every block writes a number.
struct ManyBlocks {
  struct Args {
    int blocks;
    int* to;
  };
  struct Shared {
    int left_behind[2];
  };
  using Local = NoMemory;
  static constexpr int kThreads = 2;
  static int blocks(const Args& args) { return args.blocks; }
  static int phases(const Args&) { return 1; }
  static void phase(int, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    shared.left_behind[at.thread] = 77;
    args.to[at.block * kThreads + at.thread] = at.block + 1;
  }
};

/// Sums the numbers of ManyBlocks, and counts its own runs.
struct SumOfAll {
  struct Args {
    int count;
    const int* from;
    int* sum;
    int* runs;
    int* found;  ///< content of the block's memory at the beginning
  };
  struct Shared {
    int sums[2];
  };
  using Local = NoMemory;
  static constexpr int kThreads = 2;
  static int blocks(const Args&) { return 1; }
  static int phases(const Args&) { return 2; }
  static void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    if (phase == 0) {
      args.found[at.thread] = shared.sums[at.thread];
      shared.sums[at.thread] = at.block;
      for (int i = at.thread; i < args.count; i += kThreads)
        shared.sums[at.thread] += args.from[i];
    } else if (at.thread == 0) {
      *args.sum = shared.sums[0] + shared.sums[1];
      ++*args.runs;
    }
  }
};

/// One launch of both bodies; `numbers` holds their numbers.
struct LastPart {
  static constexpr int kBlocks = 9;
  int numbers[2 * kBlocks] = {}, sum = -1, runs = 0, found[2] = {};
  unsigned ticket = 0;

  void launch(int blocks, const HostOrder& order, bool with_last = true) {
    run_on_host<WithLast<ManyBlocks, SumOfAll>>(
        {{blocks, numbers}, {2 * blocks, numbers, &sum, &runs, found}, with_last ? &ticket : nullptr}, order);
  }
};

template <class Body>
std::vector<int> numbers_of(const HostOrder& order) {
  std::vector<int> numbers(8);
  run_on_host<Body>({numbers.data()}, order);
  return numbers;
}

/// Returns the output of a convolution and, behind it, the moments of its bands. They are checked against the
/// CPU's.
template <class T, int Side, int In, int Out, int Split, int Rows>
std::vector<T> checked_convolution() {
  using Body = Convolution<T, Side, In, Out, false, T, T, T, Split, Rows>;
  INFO("side " << Side << ", channels in " << Split << " parts, bands of " << Rows << " rows");
  constexpr int kBatch = 3;
  const ConvShape shape{Side, Side, In, Out, 5};
  const auto padded = padded_noise<T>(kBatch, Side, In, 1);
  const auto weight = noise<T>(shape.weight_size(), 2), bias = noise<T>(Out, 3);
  const std::size_t outputs = static_cast<std::size_t>(kBatch) * shape.output_size();
  const std::size_t moments = static_cast<std::size_t>(kBatch) * Body::kBands * Out;
  const auto got = in_every_order([&](const HostOrder& order) {
    auto all = unwritten<T>(outputs + 2 * moments);
    AlignedBuffer<T> output(outputs);
    run_on_host<Body>({kBatch, padded.data(), weight.data(), bias.data(), output.data(), all.data() + outputs,
                       all.data() + outputs + moments},
                      order);
    std::copy_n(output.data(), outputs, all.data());
    return all;
  });
  const auto& cpu = best_kernels<T>();
  std::vector<T> expected(outputs), mean(moments), squares(moments);
  for (int n = 0; n < kBatch; ++n) {
    cpu.convolve(shape, padded.data() + n * shape.padded_size(), weight.data(), bias.data(),
                 expected.data() + n * shape.output_size());
  }
  for (int band = 0; band < kBatch * Body::kBands; ++band) {
    cpu.channel_moments(Body::kPixels, Out,
                        expected.data() + static_cast<std::ptrdiff_t>(band) * Body::kPixels * Out,
                        mean.data() + band * Out, squares.data() + band * Out);
  }
  const std::span all(got);
  CHECK(difference(all.first(outputs), expected) < kDeviceTolerance<T>);
  CHECK(difference(all.subspan(outputs, moments), mean) < kDeviceTolerance<T>);
  CHECK(difference(all.subspan(outputs + moments), squares) < kDeviceTolerance<T>);
  return {got.begin(), got.begin() + static_cast<std::ptrdiff_t>(outputs)};
}

template <class T, int Side, int In, int Out>
void check_convolution() {
  const auto output = checked_convolution<T, Side, In, Out, 1, 7>();
  CHECK(same_bits(checked_convolution<T, Side, In, Out, 2, 7>(), output));
  CHECK(difference(checked_convolution<T, Side, In, Out, 1, 14>(), output) < kDeviceTolerance<T>);
}

template <class T, int Side, int In, int Out, int WindowRows, int Teams>
void check_weight_gradient(int batch) {
  INFO("batch " << batch << ", side " << Side);
  using Body = WeightGradient<T, Side, In, Out, WindowRows, Teams>;
  const ConvShape shape{Side, Side, In, Out, 5};
  const auto padded = padded_noise<T>(batch, Side, In, 4);
  const auto gradient = padded_noise<T>(batch, Side, Out, 5);  // rows are padded
  const int row = (Side + 4) * Out, image = row * (Side + 4);
  const T* inner = gradient.data() + 2 * row + 2 * Out;
  const auto got = in_every_order([&](const HostOrder& order) {
    auto parts = unwritten<T>(static_cast<std::size_t>(Body::groups(batch)) * Body::kSize);
    run_on_host<Body>({batch, padded.data(), {inner, image, row}, parts.data()}, order);
    auto sum = unwritten<T>(Body::kSize);
    run_on_host<ColumnSums<T>>({Body::groups(batch), Body::kSize, parts.data(), sum.data()}, order);
    return sum;
  });
  const auto& cpu = best_kernels<T>();
  std::vector<T> expected(Body::kSize);
  for (int n = 0; n < batch; ++n) {
    const T* from = inner + static_cast<std::ptrdiff_t>(n) * image;
    cpu.convolve_weight_gradient(shape, padded.data() + static_cast<std::ptrdiff_t>(n) * shape.padded_size(),
                                 from, row, expected.data());
    cpu.channel_sum(Side, Side, Out, from, row, expected.data() + Body::kWeights);
  }
  CHECK(difference(got, expected) < kDeviceTolerance<T>);
}

template <class T, int Side, int Channels>
void check_pools() {
  constexpr int kBatch = 3, kHalf = Side / 2, kPooled = kHalf * kHalf * Channels, kImage = 4 * kPooled;
  const auto images = noise<T>(kBatch * kImage, 1);
  const auto scale = noise<T>(Channels, 2), shift = noise<T>(Channels, 3),
             gradient = noise<T>(kBatch * kPooled, 4);
  const auto gain = noise<T>(Channels, 5), offset = noise<T>(Channels, 6), slope = noise<T>(Channels, 7);
  const auto& cpu = best_kernels<T>();
  const NormScale<T> norm{scale.data(), shift.data()};
  std::vector<T> pooled(kBatch * kPooled), sums(kBatch * Channels), products(kBatch * Channels);
  std::vector<T> image_gradient(kBatch * kImage);
  for (int n = 0; n < kBatch; ++n) {
    cpu.norm_relu_pool(Side, Side, Channels, images.data() + n * kImage, norm, pooled.data() + n * kPooled,
                       kHalf * Channels);
    cpu.pool_gradient_sums(Side, Side, Channels, images.data() + n * kImage, norm,
                           gradient.data() + n * kPooled, sums.data() + n * Channels,
                           products.data() + n * Channels);
    cpu.norm_relu_pool_gradient(Side, Side, Channels, images.data() + n * kImage, norm,
                                {gain.data(), offset.data(), slope.data()}, gradient.data() + n * kPooled,
                                image_gradient.data() + n * kImage, Side * Channels);
  }
  const auto got = in_every_order([&](const HostOrder& order) {
    auto all = unwritten<T>(pooled.size());
    run_on_host<Pool<T, Side, Channels>>(
        {kBatch, images.data(), scale.data(), shift.data(), all.data(), kPooled, kHalf * Channels}, order);
    return all;
  });
  CHECK(difference(got, pooled) < kDeviceTolerance<T>);
  const auto got_sums = in_every_order([&](const HostOrder& order) {
    auto all = unwritten<T>(2 * sums.size());
    run_on_host<PoolSums<T, Side, Channels>>({kBatch, images.data(), scale.data(), shift.data(),
                                              gradient.data(), all.data(), all.data() + sums.size()},
                                             order);
    return all;
  });
  CHECK(difference(std::span(got_sums).first(sums.size()), sums) < kDeviceTolerance<T>);
  CHECK(difference(std::span(got_sums).subspan(sums.size()), products) < kDeviceTolerance<T>);
  const typename PooledGradient<T, Side, Channels>::Args from{
      images.data(), scale.data(), shift.data(), gain.data(), offset.data(), slope.data(), gradient.data()};
  const auto got_gradient = in_every_order([&](const HostOrder& order) {
    auto all = unwritten<T>(image_gradient.size());
    run_on_host<PoolGradient<T, Side, Channels>>({kBatch, from, all.data(), kImage, Side * Channels}, order);
    return all;
  });
  CHECK(difference(got_gradient, image_gradient) < kDeviceTolerance<T>);
  // Bands of seven rows cut windows in two.
  for (int y = 0; y < Side; y += 7) {
    auto band = unwritten<T>(7 * Side * Channels);
    for (int thread = 0; thread < 50; ++thread)
      PooledGradient<T, Side, Channels>::template load<7, 50>(kBatch - 1, y, thread, band.data(), from);
    CHECK(same_bits(
        band,
        std::span(got_gradient).subspan((kBatch - 1) * kImage + y * Side * Channels, 7 * Side * Channels)));
  }
}

}  // namespace

TEST_CASE("a kernel with a race, or with blocks that depend on each other, is found by other orders") {
  CHECK(numbers_of<RacyBody>({false, 0}) != numbers_of<RacyBody>({true, 0}));
  CHECK(numbers_of<ChainedBody>({false, 0}) != numbers_of<ChainedBody>({false, 1}));
}

TEST_CASE("the last part runs once per launch, after all blocks, and sees what they wrote") {
  for (const HostOrder& order : kHostOrders) {
    LastPart part;
    part.launch(LastPart::kBlocks, order);
    CHECK(part.runs == 1);
    CHECK(part.sum == 90);
    CHECK(part.ticket == 0);
    // It sees nothing of the blocks' own memory.
    CHECK(part.found[0] == -1);
    CHECK(part.found[1] == -1);
    // Launch again like a replayed graph; then with another number of blocks, like another batch.
    part.launch(LastPart::kBlocks, order);
    CHECK(part.runs == 2);
    part.launch(1, order);
    CHECK(part.runs == 3);
    CHECK(part.sum == 2);
    CHECK(part.ticket == 0);
    part.launch(LastPart::kBlocks, order, false);
    CHECK(part.runs == 3);
  }
}

TEST_CASE("a ticket that does not start at zero is detected: the last part runs before the last block") {
  LastPart part;
  part.ticket = 1;
  part.launch(LastPart::kBlocks, {});
  CHECK(part.runs == 1);
  CHECK(part.sum == 72);
  CHECK(part.ticket == 1);
}

TEMPLATE_TEST_CASE("weight gradients from pooled gradients equal those from memory bit for bit", "", float,
                   double) {
  using T = TestType;
  using Dense = WeightGradient<T, 28, 1, 16, 5, 7>;
  using Pooled = WeightGradient<T, 28, 1, 16, 5, 7, PooledGradient<T, 28, 16>>;
  constexpr int kBatch = 3, kImage = 28 * 28 * 16;
  const auto padded = padded_noise<T>(kBatch, 28, 1, 1);
  const auto images = noise<T>(kBatch * kImage, 2), pooled = noise<T>(kBatch * kImage / 4, 3);
  const auto scale = noise<T>(16, 4), shift = noise<T>(16, 5), gain = noise<T>(16, 6),
             offset = noise<T>(16, 7), slope = noise<T>(16, 8);
  const typename PooledGradient<T, 28, 16>::Args from{images.data(), scale.data(), shift.data(), gain.data(),
                                                      offset.data(), slope.data(), pooled.data()};
  auto gradient = unwritten<T>(kBatch * kImage);
  run_on_host<PoolGradient<T, 28, 16>>({kBatch, from, gradient.data(), kImage, 28 * 16});
  const std::size_t parts = static_cast<std::size_t>(Dense::groups(kBatch)) * Dense::kSize;
  auto expected = unwritten<T>(parts);
  run_on_host<Dense>({kBatch, padded.data(), {gradient.data(), kImage, 28 * 16}, expected.data()});
  const auto got = in_every_order([&](const HostOrder& order) {
    auto all = unwritten<T>(parts);
    run_on_host<Pooled>({kBatch, padded.data(), from, all.data()}, order);
    return all;
  });
  CHECK(same_bits(got, expected));
}

TEMPLATE_TEST_CASE("device convolution and its moments equal the CPU's", "", float, double) {
  check_convolution<TestType, 28, 1, 16>();
  check_convolution<TestType, 14, 16, 32>();
}

TEMPLATE_TEST_CASE("device convolution with rotated weights gives the gradient of the input", "", float,
                   double) {
  using T = TestType;
  constexpr int kBatch = 3;
  const ConvShape shape{14, 14, 16, 32, 5}, turned_shape{14, 14, 32, 16, 5};
  const auto gradient = padded_noise<T>(kBatch, 14, 32, 1);
  const auto weight = noise<T>(shape.weight_size(), 2);
  AlignedBuffer<T> turned(weight.size());
  const auto& cpu = best_kernels<T>();
  cpu.turn_weights(shape, weight.data(), turned.data());
  std::vector<T> expected(static_cast<std::size_t>(kBatch) * turned_shape.output_size());
  for (int n = 0; n < kBatch; ++n) {
    cpu.convolve(turned_shape, gradient.data() + n * turned_shape.padded_size(), turned.data(), nullptr,
                 expected.data() + n * turned_shape.output_size());
  }
  const auto check = [&]<int Rows>(std::integral_constant<int, Rows>) {
    const auto got = in_every_order([&](const HostOrder& order) {
      AlignedBuffer<T> output(expected.size());
      run_on_host<Convolution<T, 14, 32, 16, true, T, T, T, 1, Rows>>(
          {kBatch, gradient.data(), weight.data(), nullptr, output.data(), nullptr, nullptr}, order);
      return std::vector<T>(output.data(), output.data() + output.size());
    });
    CHECK(difference(got, expected) < kDeviceTolerance<T>);
  };
  check(std::integral_constant<int, 7>{});
  check(std::integral_constant<int, 14>{});  // two images in a block; the last block has one
}

TEMPLATE_TEST_CASE("device weight gradients equal the CPU's for any grouping", "", float, double) {
  for (const int batch : {1, 5}) {
    check_weight_gradient<TestType, 28, 1, 16, 5, 7>(batch);
    check_weight_gradient<TestType, 14, 16, 32, 1, 1>(batch);
  }
  // Three bands in a group, and fewer in the last one.
  check_weight_gradient<TestType, 28, 1, 16, 5, 7>(265);
  check_weight_gradient<TestType, 14, 16, 32, 1, 1>(212);
}

TEMPLATE_TEST_CASE("device pooling and its gradients equal the CPU's", "", float, double) {
  check_pools<TestType, 28, 16>();
  check_pools<TestType, 14, 32>();
}

TEMPLATE_TEST_CASE("device normalisation merges moments as a plain loop does", "", float, double) {
  using T = TestType;
  for (const int parts : {1, 3, 28, 128, 301, 1000}) {
    INFO(parts << " parts");
    constexpr int kChannels = 16, kPixels = 7;
    using Body = Norm<T, kChannels, 112>;
    const auto pixels = noise<T>(static_cast<std::size_t>(parts) * kPixels * kChannels, 1);
    const auto gamma = noise<T>(kChannels, 2), beta = noise<T>(kChannels, 3),
               running = noise<T>(2 * kChannels, 4);
    std::vector<T> mean(parts * kChannels), squares(parts * kChannels);
    for (int part = 0; part < parts; ++part) {
      best_kernels<T>().channel_moments(kPixels, kChannels, pixels.data() + part * kPixels * kChannels,
                                        mean.data() + part * kChannels, squares.data() + part * kChannels);
    }
    std::vector<double> expected(4 * kChannels), expected_means(2 * kChannels);
    for (int c = 0; c < kChannels; ++c) {
      double sum = 0, apart = 0;
      const int count = parts * kPixels;
      for (int i = 0; i < count; ++i)
        sum += static_cast<double>(pixels.data()[i * kChannels + c]);
      for (int i = 0; i < count; ++i)
        apart += std::pow(static_cast<double>(pixels.data()[i * kChannels + c]) - sum / count, 2);
      const double inverse = 1 / std::sqrt(apart / count + 1e-5);
      const double gain = static_cast<double>(gamma.data()[c]) * inverse;
      expected[c] = gain;
      expected[kChannels + c] = static_cast<double>(beta.data()[c]) - sum / count * gain;
      expected[2 * kChannels + c] = 0.9 * static_cast<double>(running.data()[c]) + 0.1 * sum / count;
      expected[3 * kChannels + c] =
          0.9 * static_cast<double>(running.data()[kChannels + c]) + 0.1 * apart / (count - 1);
      expected_means[c] = sum / count;
      expected_means[kChannels + c] = inverse;
    }
    auto means = unwritten<double>(2 * kChannels);
    const auto got = in_every_order([&](const HostOrder& order) {
      auto all = unwritten<T>(4 * kChannels);
      T* at = all.data();
      run_on_host<Body>({parts,
                         kPixels,
                         mean.data(),
                         squares.data(),
                         gamma.data(),
                         beta.data(),
                         running.data(),
                         running.data() + kChannels,
                         at + 2 * kChannels,
                         at + 3 * kChannels,
                         {at, at + kChannels, means.data(), means.data() + kChannels}},
                        order);
      return all;
    });
    CHECK(difference(got, expected) < kDeviceTolerance<T>);
    CHECK(difference(means, expected_means) < kDeviceTolerance<T>);
  }
}

TEMPLATE_TEST_CASE("device normalisation uses the running statistics in evaluation", "", float, double) {
  using T = TestType;
  constexpr int kChannels = 16;
  const auto gamma = noise<T>(kChannels, 2), beta = noise<T>(kChannels, 3), running = noise<T>(kChannels, 4);
  const std::vector<T> variance(kChannels, T(0.25));
  auto scales = unwritten<T>(2 * kChannels);
  auto means = unwritten<double>(2 * kChannels);
  run_on_host<Norm<T, kChannels, 112>>(
      {0,
       7,
       nullptr,
       nullptr,
       gamma.data(),
       beta.data(),
       running.data(),
       variance.data(),
       nullptr,
       nullptr,
       {scales.data(), scales.data() + kChannels, means.data(), means.data() + kChannels}});
  const double inverse = 1 / std::sqrt(0.25 + 1e-5);
  for (int c = 0; c < kChannels; ++c) {
    CHECK(scales[c] == static_cast<T>(static_cast<double>(gamma.data()[c]) * inverse));
    CHECK(means[c] == static_cast<double>(running.data()[c]));
    CHECK(means[kChannels + c] == inverse);
  }
}

TEMPLATE_TEST_CASE("device normalisation gradients equal a plain loop", "", float, double) {
  using T = TestType;
  constexpr int kChannels = 32, kBatch = 130;
  const auto gradients = noise<T>(kBatch * kChannels, 1), products = noise<T>(kBatch * kChannels, 2);
  const auto mean = noise<double>(kChannels, 3), inverse = noise<double>(kChannels, 4);
  const auto gamma = noise<T>(kChannels, 5);
  const double count = kBatch * 196.0;
  std::vector<double> expected(5 * kChannels);
  for (int c = 0; c < kChannels; ++c) {
    double g = 0, x = 0;
    for (int n = 0; n < kBatch; ++n) {
      g += static_cast<double>(gradients.data()[n * kChannels + c]);
      x += static_cast<double>(products.data()[n * kChannels + c]);
    }
    const double gain = static_cast<double>(gamma.data()[c]) * inverse.data()[c];
    const double own = (x - mean.data()[c] * g) * inverse.data()[c];
    const double slope = -gain * inverse.data()[c] * own / count;
    const double row[] = {own, g, gain, -gain * g / count - slope * mean.data()[c], slope};
    for (int k = 0; k < 5; ++k)
      expected[k * kChannels + c] = row[k];
  }
  const auto got = in_every_order([&](const HostOrder& order) {
    auto all = unwritten<T>(5 * kChannels);
    T* at = all.data();
    run_on_host<NormGradientSums<T, kChannels, 256>>(
        {kBatch, count, gradients.data(), products.data(), mean.data(), inverse.data(), gamma.data(), at,
         at + kChannels, at + 2 * kChannels, at + 3 * kChannels, at + 4 * kChannels},
        order);
    return all;
  });
  for (int k = 0; k < 5; ++k) {
    CHECK(difference(std::span(got).subspan(k * kChannels, kChannels),
                     std::span(expected).subspan(k * kChannels, kChannels)) < kDeviceTolerance<T>);
  }
}
