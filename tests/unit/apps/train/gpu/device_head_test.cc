// Like device_bodies_test.cc, for the classifier, products of matrices, and the update.

#include <limits>
#include <vector>

#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/gpu/gemm_body.h"
#include "apps/train/kernels/gpu/head_body.h"
#include "apps/train/kernels/gpu/net_programs.h"
#include "apps/train/kernels/gpu/norm_pool_body.h"
#include "tests/unit/apps/train/gpu/device_test_support.h"

using namespace ddp::train;
using namespace ddp::train::kernels;
using namespace ddp::train::kernels::device;

namespace {

std::vector<std::uint8_t> some_labels(int count) {
  std::vector<std::uint8_t> labels(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i)
    labels[i] = static_cast<std::uint8_t>(i * 7 % kClasses);
  return labels;
}

template <class T>
AlignedBuffer<T> copy_of(const AlignedBuffer<T>& from) {
  AlignedBuffer<T> copy(from.size());
  std::copy_n(from.data(), from.size(), copy.data());
  return copy;
}

/// Flat vectors of a model of `count` parameters before an update, once for the CPU and once for the bodies.
template <class T>
struct UpdateCase {
  int count;
  std::vector<std::byte> bytes;
  WeightMemory<T> device;
  AlignedBuffer<T> parameters, gradients, first, second;

  explicit UpdateCase(int size)
      : count(size),
        parameters(noise<T>(size, 1)),
        gradients(noise<T>(static_cast<std::size_t>(size) + 1, 2)),
        first(noise<T>(size, 3)),
        second(noise<T>(size, 4)) {
    for (T& value : second.span())
      value = std::abs(value);
    Arena counting;
    WeightMemory<T>(counting, size, 4, 1, 1);
    bytes.resize(counting.size());
    Arena arena(bytes.data());
    device = WeightMemory<T>(arena, size, 4, 1, 1);
    std::copy_n(parameters.data(), size, device.parameters);
    std::copy_n(gradients.data(), size + 1, device.gradients);
    std::copy_n(first.data(), size, device.first);
    std::copy_n(second.data(), size, device.second);
    std::fill_n(device.next_running, 4, T(5));
  }

  /// Returns the bodies' parameters, first and second vector after one step.
  std::vector<T> step(const UpdateSettings& settings, T share, const HostOrder& order) {
    device.step.present().input.lr = 0.01;
    run_update(HostRunner{order}, device, settings, share);
    std::vector<T> all(device.parameters, device.parameters + count);
    all.insert(all.end(), device.first, device.first + count);
    all.insert(all.end(), device.second, device.second + count);
    return all;
  }

  /// Returns the same values from the CPU's kernels.
  std::vector<T> expected(const UpdateSettings& settings, T share) {
    const auto own = gradients.span().first(static_cast<std::size_t>(count));
    average<T>(gradients.span(), share);
    if (settings.clip_value > 0) clip_value<T>(own, static_cast<T>(settings.clip_value));
    if (settings.clip_norm > 0) {
      const double factor = settings.clip_norm / (std::sqrt(squared_norm<T>(own)) + 1e-6);
      if (factor < 1) average<T>(own, static_cast<T>(factor));
    }
    if (settings.kind == OptimizerKind::kAdamw) {
      adamw_step<T>(parameters.span(), first.span(), second.span(), own, settings, 0.01, 1);
    } else {
      sgd_step<T>(parameters.span(), first.span(), own, T(0.01), static_cast<T>(settings.momentum),
                  static_cast<T>(settings.weight_decay));
    }
    std::vector<T> all(parameters.data(), parameters.data() + count);
    all.insert(all.end(), first.data(), first.data() + count);
    all.insert(all.end(), second.data(), second.data() + count);
    return all;
  }
};

UpdateSettings hyperparameters(bool adamw, double clip_value, double clip_norm) {
  return {{adamw ? OptimizerKind::kAdamw : OptimizerKind::kSgd, 0.9, 0.9, 0.999, 1e-8, 0.01},
          clip_value,
          clip_norm};
}

}  // namespace

TEMPLATE_TEST_CASE("the device classifier equals pooling, linear layer, softmax and their gradients", "",
                   float, double) {
  using T = TestType;
  using Body = Head<T, 14, 32>;
  using Sums = NormGradientSums<T, 32, 256>;
  using Totals = ScoreTotals<T, 256>;
  constexpr int kInputs = Body::kInputs, kImage = 4 * kInputs, kChannels = 32;
  const auto& cpu = best_kernels<T>();
  for (const int batch : {1, 3, 20}) {
    INFO("batch " << batch);
    const auto images = noise<T>(static_cast<std::size_t>(batch) * kImage, 1);
    const auto scale = noise<T>(kChannels, 4), shift = noise<T>(kChannels, 5);
    const auto weight = noise<T>(kClasses * kInputs, 2), bias = noise<T>(kClasses, 3);
    const auto labels = some_labels(batch);
    const LinearShape shape{batch, kInputs, kClasses};
    const NormScale<T> norm{scale.data(), shift.data()};
    const std::size_t outputs = static_cast<std::size_t>(batch) * kClasses;
    const std::size_t channels = static_cast<std::size_t>(batch) * kChannels;
    std::vector<T> features(static_cast<std::size_t>(batch) * kInputs), features_gradient(features.size());
    std::vector<T> logits(outputs), logit_gradient(outputs), sums(channels), products(channels);
    std::vector<T> gradient(kClasses * kInputs + kClasses);
    for (int n = 0; n < batch; ++n) {
      cpu.norm_relu_pool(14, 14, kChannels, images.data() + n * kImage, norm, features.data() + n * kInputs,
                         7 * kChannels);
    }
    cpu.linear(shape, features.data(), weight.data(), bias.data(), logits.data());
    const BatchScore score = softmax_loss<T>(logits, labels, kClasses, logit_gradient);
    cpu.linear_gradient(shape, features.data(), weight.data(), logit_gradient.data(),
                        features_gradient.data(), gradient.data(), gradient.data() + kClasses * kInputs);
    for (int n = 0; n < batch; ++n) {
      cpu.pool_gradient_sums(14, 14, kChannels, images.data() + n * kImage, norm,
                             features_gradient.data() + n * kInputs, sums.data() + n * kChannels,
                             products.data() + n * kChannels);
    }

    auto losses = unwritten<double>(batch);
    std::vector<int> correct(batch, -1);
    BatchScore total{};
    unsigned ticket = 0;
    const typename Sums::Args no_sums{};
    const auto got = in_every_order([&](const HostOrder& order) {
      auto all = unwritten<T>(outputs + 2 * features.size() + 2 * channels + gradient.size() + 1);
      T* const at = all.data();
      T* const to_features = at + outputs;
      T* const to_features_gradient = to_features + features.size();
      T* const to_sums = to_features_gradient + features.size();
      T* const to = to_sums + 2 * channels;
      run_on_host<WithLast<Body, BodyPair<Sums, Totals>>>(
          {{batch,
            images.data(),
            scale.data(),
            shift.data(),
            weight.data(),
            bias.data(),
            labels.data(),
            {losses.data(), correct.data()},
            to_features,
            at,
            to_features_gradient,
            to_sums,
            to_sums + channels},
           {no_sums, {batch, {losses.data(), correct.data()}, to + gradient.size(), &total}},
           &ticket},
          order);
      run_on_host<HeadGradient<T>>({batch, kInputs, to_features, at, to, to + kClasses * kInputs}, order);
      return all;
    });
    std::span<const T> rest(got);
    const auto next = [&rest](std::size_t count) {
      const auto part = rest.first(count);
      rest = rest.subspan(count);
      return part;
    };
    CHECK(difference(next(outputs), logit_gradient) < kDeviceTolerance<T>);
    CHECK(difference(next(features.size()), features) < kDeviceTolerance<T>);
    CHECK(difference(next(features.size()), features_gradient) < kDeviceTolerance<T>);
    CHECK(difference(next(channels), sums) < kDeviceTolerance<T>);
    CHECK(difference(next(channels), products) < kDeviceTolerance<T>);
    CHECK(difference(next(gradient.size()), gradient) < kDeviceTolerance<T>);
    CHECK(std::abs(total.loss_sum - score.loss_sum) < kDeviceTolerance<T> * score.loss_sum);
    CHECK(total.correct == score.correct);
    CHECK(got.back() == static_cast<T>(total.loss_sum / batch));

    // An evaluation only computes the score.
    std::fill(losses.begin(), losses.end(), 0.0);
    BatchScore again{};
    run_on_host<WithLast<Body, BodyPair<Sums, Totals>>>(
        {{batch,
          images.data(),
          scale.data(),
          shift.data(),
          weight.data(),
          bias.data(),
          labels.data(),
          {losses.data(), correct.data()},
          nullptr,
          nullptr,
          nullptr,
          nullptr,
          nullptr},
         {no_sums, {batch, {losses.data(), correct.data()}, nullptr, &again}},
         &ticket});
    CHECK(again.loss_sum == total.loss_sum);
  }
}

TEMPLATE_TEST_CASE("device softmax equals the CPU's bit for bit", "", float, double) {
  using T = TestType;
  constexpr int kBatch = 70;
  const auto logits = noise<T>(kBatch * kClasses, 1);
  const auto labels = some_labels(kBatch);
  std::vector<T> expected(logits.size());
  const BatchScore score = softmax_loss<T>(logits.span(), labels, kClasses, expected);
  std::vector<double> losses(kBatch);
  std::vector<int> correct(kBatch);
  const auto got = in_every_order([&](const HostOrder& order) {
    auto gradient = unwritten<T>(logits.size());
    run_on_host<SoftmaxLoss<T>>(
        {kBatch, logits.data(), labels.data(), gradient.data(), {losses.data(), correct.data()}}, order);
    return gradient;
  });
  CHECK(same_bits(got, expected));
  double sum = 0;
  for (const double loss : losses)
    sum += loss;
  CHECK(sum == score.loss_sum);
}

TEMPLATE_TEST_CASE("device products equal the CPU's for both orders of the factors and any edge", "", float,
                   double) {
  using T = TestType;
  for (const auto& [rows, columns, depth] :
       {std::array{1, 1, 1}, {64, 64, 16}, {65, 3, 33}, {10, 130, 100}}) {
    for (const bool a_turned : {false, true}) {
      for (const bool b_turned : {false, true}) {
        INFO(rows << " x " << columns << " x " << depth << (a_turned ? ", a turned" : "")
                  << (b_turned ? ", b turned" : ""));
        const auto a = noise<T>(rows * depth, 1), b = noise<T>(depth * columns, 2);
        const std::ptrdiff_t a_row = a_turned ? 1 : depth, a_depth = a_turned ? rows : 1;
        const std::ptrdiff_t b_depth = b_turned ? 1 : columns, b_column = b_turned ? depth : 1;
        std::vector<T> expected(rows * columns);
        AlignedBuffer<T> scratch(kGemmScratch);
        best_kernels<T>().gemm({rows, columns, depth, a_row, a_depth, b_depth, b_column, columns}, a.data(),
                               b.data(), expected.data(), scratch.data());
        const auto got = in_every_order([&](const HostOrder& order) {
          auto c = unwritten<T>(expected.size());
          run_on_host<Gemm<T>>({rows, columns, depth, a.data(), a_row, a_depth, b.data(), b_depth, b_column,
                                c.data(), columns, GemmEnd::kPlain, nullptr, nullptr},
                               order);
          return c;
        });
        CHECK(difference(got, expected) < kDeviceTolerance<T>);
      }
    }
  }
}

TEMPLATE_TEST_CASE("the epilogue of a device product: bias, ReLU that keeps a NaN, mask", "", float, double) {
  using T = TestType;
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const T a[] = {T(1), nan}, b[] = {T(2), T(-3)}, bias[] = {T(1), T(1)}, mask[] = {T(1), T(0), nan, T(2)};
  const auto product = [&](GemmEnd end) {
    std::vector<T> c(4);
    run_on_host<Gemm<T>>({2, 2, 1, a, 1, 1, b, 2, 1, c.data(), 2, end, bias, mask});
    return c;
  };
  CHECK(product(GemmEnd::kBias)[1] == T(-2));
  CHECK(product(GemmEnd::kBiasRelu)[0] == T(3));
  CHECK(product(GemmEnd::kBiasRelu)[1] == T(0));
  CHECK(std::isnan(product(GemmEnd::kBiasRelu)[3]));
  CHECK(product(GemmEnd::kMask)[1] == T(0));
  CHECK(product(GemmEnd::kMask)[2] == T(0));
}

TEMPLATE_TEST_CASE("device column sums equal a plain loop", "", float, double) {
  using T = TestType;
  const auto from = noise<T>(37 * 45, 1);
  std::vector<double> expected(45);
  for (int i = 0; i < 37 * 45; ++i)
    expected[i % 45] += static_cast<double>(from.data()[i]);
  const auto got = in_every_order([&](const HostOrder& order) {
    auto to = unwritten<T>(45);
    run_on_host<ColumnSums<T>>({37, 45, from.data(), to.data()}, order);
    return to;
  });
  CHECK(difference(got, expected) < kDeviceTolerance<T>);
}

TEMPLATE_TEST_CASE("the device's update equals averaging, clipping, and SGD or AdamW", "", float, double) {
  using T = TestType;
  for (const bool adamw : {false, true}) {
    for (const auto& settings :
         {hyperparameters(adamw, 0, 0), hyperparameters(adamw, 0.2, 0), hyperparameters(adamw, 0, 0.5),
          hyperparameters(adamw, 0.1, 1e9), hyperparameters(adamw, 0.1, 0.3)}) {
      INFO((adamw ? "AdamW" : "SGD") << ", value " << settings.clip_value << ", norm " << settings.clip_norm);
      const auto got = in_every_order(
          [&](const HostOrder& order) { return UpdateCase<T>(3000).step(settings, T(0.25), order); });
      const auto expected = UpdateCase<T>(3000).expected(settings, T(0.25));
      // Only the norm is summed in another order.
      if (settings.clip_norm == 0) CHECK(same_bits(got, expected));
      CHECK(difference(got, expected) < kDeviceTolerance<T>);
    }
  }
}

TEST_CASE("a gradient that is not finite changes only the count of dropped steps") {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int at : {0, 2999, 3000}) {  // the last one is the loss
      INFO(bad << " at " << at);
      UpdateCase<float> one(3000);
      one.device.gradients[at] = bad;
      const UpdateSettings settings = hyperparameters(true, 0.1, 1);
      const std::vector<float> before(one.device.parameters, one.device.parameters + 3000);
      const auto after = one.step(settings, 1.0f, {});
      CHECK(same_bits(std::span(after).first(3000), before));
      CHECK(one.device.state->skip == 1);
      CHECK(one.device.state->dropped == 1);
      CHECK(one.device.state->steps == 0);
      CHECK(one.device.running[0] == 0);
      std::copy_n(one.gradients.data(), 3001, one.device.gradients);
      one.step(settings, 1.0f, {});
      CHECK(one.device.state->skip == 0);
      CHECK(one.device.state->dropped == 1);
      CHECK(one.device.state->steps == 1);
      CHECK(one.device.running[0] == 5);
    }
  }
}
