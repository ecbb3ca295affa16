// Whole steps of the GPU's programs, run by the host driver, against the models of the CPU.

#include <array>
#include <vector>

#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/model/model.h"
#include "tests/unit/apps/train/gpu/device_models.h"
#include "tests/unit/apps/train/gpu/device_test_support.h"

using namespace ddp::train;
using namespace ddp::train::kernels::device;

namespace {

ThreadPool one_thread(1);

/// The CPU's update of a model's parameters.
template <class T>
struct CpuUpdate {
  UpdateSettings settings;
  AlignedBuffer<T> first, second;
  int steps = 0;

  CpuUpdate(bool adamw, std::size_t size)
      : settings{{adamw ? OptimizerKind::kAdamw : OptimizerKind::kSgd, 0.9, 0.9, 0.999, 1e-8, 0.01}},
        first(size),
        second(size) {}
  void step(Model<T>& model) {
    ++steps;
    if (settings.kind == OptimizerKind::kAdamw) {
      kernels::adamw_step<T>(model.parameters(), first.span(), second.span(), model.gradients(), settings,
                             0.01, steps);
    } else {
      kernels::sgd_step<T>(model.parameters(), first.span(), model.gradients(), T(0.01),
                           static_cast<T>(settings.momentum), static_cast<T>(settings.weight_decay));
    }
  }
};

/// Checks, per tensor, the largest difference relative to the tensor's largest number. `floor` is the least
/// bound for biases before a normalization, whose gradients are 0 except for rounding.
void check_tensors(const auto& tensors, const auto& got, const auto& expected, double tolerance,
                   double floor) {
  for (const TensorInfo& tensor : tensors) {
    double largest = 1e-30, worst = 0;
    for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
      const double right = static_cast<double>(expected[i]);
      largest = std::max(largest, std::abs(right));
      const double error = std::abs(static_cast<double>(got[i]) - right);
      worst = error <= worst ? worst : error;
    }
    INFO(tensor.name << " differs by " << worst << " of " << largest);
    CHECK(worst <= std::max(tolerance * largest, tensor.name.ends_with(".0.bias") ? floor : 0.0));
  }
}

/// Runs some training steps on both sides, from the same weights.
template <class T>
void check_training(Model<T>& model, auto& device, const AlignedBuffer<T>& images, int batch, bool adamw) {
  const double tolerance = kDeviceTolerance<T>;
  CpuUpdate<T> update(adamw, model.parameter_count());
  auto& t = device.training;
  model.initialise(7);
  std::ranges::copy(model.parameters(), t.parameters);
  std::ranges::copy(model.running_statistics(), t.running);
  std::copy_n(images.data(), images.size(), t.images);
  for (int step = 0; step < 2; ++step) {
    INFO("step " << step);
    const auto labels = labels_of(batch, step);
    std::ranges::copy(labels, t.labels);
    const auto score = model.forward_backward(images.data(), labels);
    device.forward_backward(batch, {step == 1, static_cast<unsigned>(step)});
    CHECK(std::abs(t.score->loss_sum - score.loss_sum) <= tolerance * score.loss_sum);
    CHECK(t.score->correct == score.correct);
    // The second step begins with weights that already differ.
    const double grown = step == 0 ? 1 : 20;
    const std::span gradients(t.gradients, model.parameter_count());
    check_tensors(model.parameter_tensors(), gradients, model.gradients(), grown * tolerance, 10 * tolerance);
    CHECK(difference(std::span(t.next_running, model.running_statistics().size()),
                     model.running_statistics()) <= grown * tolerance);
    update.step(model);
    t.step.present().input.lr = 0.01;
    run_update(HostRunner{}, t, update.settings, T(1));
    // AdamW's first step is the sign of the gradient, which is noise where the gradient is noise.
    if (adamw) std::ranges::copy(model.parameters(), t.parameters);
    const std::span parameters(t.parameters, model.parameter_count());
    check_tensors(model.parameter_tensors(), parameters, model.parameters(), grown * tolerance,
                  10 * tolerance);
    CHECK(same_bits(std::span(t.running, model.running_statistics().size()),
                    std::span(t.next_running, model.running_statistics().size())));
  }
}

}  // namespace

TEST_CASE("the device's ConvNet has the layout of the CPU's") {
  ConvNet<float> net(1, one_thread);
  DeviceConvNetOnHost<float> device(1);
  const auto offset = [&](std::string_view name) {
    for (const auto* tensors : {&net.parameter_tensors(), &net.running_tensors()}) {
      for (const TensorInfo& tensor : *tensors)
        if (tensor.name == name) return static_cast<int>(tensor.offset);
    }
    return -1;
  };
  CHECK(device.memory.block1.weight == offset("layer1.0.weight"));
  CHECK(device.memory.block1.weight + 400 == offset("layer1.0.bias"));
  CHECK(device.memory.block1.gamma == offset("layer1.1.weight"));
  CHECK(device.memory.block1.beta == offset("layer1.1.bias"));
  CHECK(device.memory.block1.running == offset("layer1.1.running_mean"));
  CHECK(device.memory.block2.weight == offset("layer2.0.weight"));
  CHECK(device.memory.block2.weight + 12'800 == offset("layer2.0.bias"));
  CHECK(device.memory.block2.gamma == offset("layer2.1.weight"));
  CHECK(device.memory.block2.beta == offset("layer2.1.bias"));
  CHECK(device.memory.block2.running == offset("layer2.1.running_mean"));
  CHECK(kConvNetFcWeight == offset("fc.weight"));
  CHECK(kConvNetFcBias == offset("fc.bias"));
  CHECK(kConvNetParameters == ConvNet<float>::kParameters);
  CHECK(kConvNetRunning == ConvNet<float>::kRunning);
}

TEMPLATE_TEST_CASE("steps of the device's ConvNet equal the CPU's", "", float, double) {
  for (const int batch : {1, 6, 100}) {
    for (const bool adamw : {false, true}) {
      if (batch == 100 && adamw) continue;  // an update is the same for any batch
      INFO("batch " << batch << (adamw ? ", AdamW" : ", SGD"));
      ConvNet<TestType> net(batch, one_thread);
      DeviceConvNetOnHost<TestType> device(batch);
      check_training<TestType>(net, device, padded_noise<TestType>(batch, kImageSide, 1, 9), batch, adamw);
    }
  }
}

TEMPLATE_TEST_CASE("the device's evaluation equals the CPU's", "", float, double) {
  using T = TestType;
  ConvNet<T> net(9, one_thread);
  DeviceConvNetOnHost<T> device(9);
  net.initialise(3);
  const auto images = padded_noise<T>(9, kImageSide, 1, 9);
  const auto labels = labels_of(9, 0);
  net.forward(images.data(), labels);  // moves the running statistics
  std::ranges::copy(net.parameters(), device.training.parameters);
  std::ranges::copy(net.running_statistics(), device.training.running);
  std::copy_n(images.data(), images.size(), device.training.images);
  std::ranges::copy(labels, device.training.labels);
  const auto expected = net.evaluate(images.data(), labels);
  run_conv_net_forward(HostRunner{}, device.memory, 9, false);
  CHECK(std::abs(device.training.score->loss_sum - expected.loss_sum) <=
        kDeviceTolerance<T> * expected.loss_sum);
  CHECK(device.training.score->correct == expected.correct);
}

TEMPLATE_TEST_CASE(
    "a step of the device's ConvNet has the same bits in every order and with other memory contents", "",
    float, double) {
  using T = TestType;
  constexpr int kBatch = 5;
  const auto images = padded_noise<T>(kBatch, kImageSide, 1, 9);
  const auto labels = labels_of(kBatch, 0);
  ConvNet<T> net(kBatch, one_thread);
  net.initialise(3);
  const auto run = [&](const HostOrder& order, int room) {
    DeviceConvNetOnHost<T> device(room);
    std::ranges::copy(net.parameters(), device.training.parameters);
    std::copy_n(images.data(), images.size(), device.training.images);
    std::ranges::copy(labels, device.training.labels);
    device.forward_backward(kBatch, order);
    return std::vector<T>(device.training.gradients, device.training.gradients + kConvNetParameters + 1);
  };
  const auto gradients = in_every_order([&](const HostOrder& order) { return run(order, kBatch); });
  CHECK(same_bits(run({}, 64), gradients));
}

TEMPLATE_TEST_CASE("steps of the device's MLP equal the CPU's", "", float, double) {
  using T = TestType;
  for (const auto& [width, depth, batch] : {std::array{7, 1, 3}, {70, 3, 10}}) {
    INFO(width << " wide, " << depth << " deep");
    Mlp<T> mlp(width, depth, batch, one_thread);
    DeviceMlpOnHost<T> device(width, depth, static_cast<int>(mlp.parameter_count()), batch);
    AlignedBuffer<T> images = noise<T>(static_cast<std::size_t>(batch) * kImagePixels, 4);
    check_training<T>(mlp, device, images, batch, false);
    const auto labels = labels_of(batch, 1);
    const auto expected = mlp.evaluate(images.data(), labels);
    run_mlp_forward(HostRunner{}, device.memory, batch, false);
    CHECK(std::abs(device.training.score->loss_sum - expected.loss_sum) <=
          20 * kDeviceTolerance<T> * expected.loss_sum);
  }
}
