#include "apps/train/model/model.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "apps/train/data/hash.h"
#include "tests/unit/apps/train/model/approx.h"

using namespace ddp::train;

namespace {

template <class T>
std::vector<T> images(int count, int size) {
  std::vector<T> values(static_cast<std::size_t>(count) * size);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<T>(random_unit(4, 4, i));
  return values;
}

std::vector<std::uint8_t> labels(int count) {
  std::vector<std::uint8_t> values(count);
  for (int i = 0; i < count; ++i)
    values[i] = static_cast<std::uint8_t>(mix_bits(i) % 10);
  return values;
}

}  // namespace

TEST_CASE("the MLP's tensors fill the flat vector without gaps") {
  ThreadPool threads(1);
  const Mlp<float> model(33, 3, 1, threads);
  std::size_t at = 0;
  for (const TensorInfo& tensor : model.parameter_tensors()) {
    CHECK(tensor.offset == at);
    at += tensor.size;
  }
  CHECK(at == model.parameter_count());
  CHECK(model.parameter_tensors()[2].name == "2.weight");
  CHECK(size_of(mlp_layout(2048, 7).parameters) * 4 > 100'000'000);
}

TEST_CASE("the MLP's gradients equal finite differences of the loss, and the last layer's come first") {
  ThreadPool threads(1);
  const auto input = images<double>(5, kImagePixels);
  const auto answers = labels(5);
  for (const auto* table : kernels::all_kernels<double>()) {
    Mlp<double> model(37, 2, 5, threads, *table);
    model.initialise(3);
    model.forward(input.data(), answers);
    std::vector<std::size_t> order;
    model.backward(input.data(), 5, [&](std::size_t begin) { order.push_back(begin); });
    CHECK(order == std::vector<std::size_t>{model.parameter_tensors()[4].offset,
                                            model.parameter_tensors()[2].offset, 0});
    const std::vector<double> gradient(model.gradients().begin(), model.gradients().end());
    for (const TensorInfo& tensor : model.parameter_tensors()) {
      for (int k = 0; k < 5; ++k) {
        const std::size_t index = tensor.offset + random_bits(5, tensor.offset, k) % tensor.size;
        double& weight = model.parameters()[index];
        const double kept = weight;
        weight = kept + 1e-6;
        const double above = model.forward(input.data(), answers).loss_sum / 5;
        weight = kept - 1e-6;
        const double below = model.forward(input.data(), answers).loss_sum / 5;
        weight = kept;
        INFO(table->name << " " << tensor.name);
        CHECK(gradient[index] == Approx((above - below) / 2e-6).epsilon(1e-5).margin(1e-8));
      }
    }
  }
}

TEMPLATE_TEST_CASE("the number of threads changes no bit of any model", "", float, double) {
  using T = TestType;
  // Chunks of 10, 10, 10 and 1 images.
  constexpr int kBatch = 31;
  const auto answers = labels(kBatch);
  const auto pictures = images<T>(kBatch, kPaddedPixels);
  for (const auto* table : kernels::all_kernels<T>()) {
    std::vector<T> of_conv, of_mlp;
    const bool best = table->name == kernels::best_kernels<T>().name;
#ifdef __SANITIZE_THREAD__
    if (!best) continue;  // all kernels divide the work alike
#endif
    for (const int count : best ? std::vector{1, 2, 3, 7} : std::vector{1, 3}) {
      ThreadPool threads(count);
      ConvNet<T> conv(kBatch, threads, *table);
      conv.initialise(1);
      conv.forward_backward(pictures.data(), answers);
      Mlp<T> mlp(300, 2, kBatch, threads, *table);
      mlp.initialise(1);
      mlp.forward_backward(pictures.data(), answers);
      if (count == 1) {
        of_conv.assign(conv.gradients_and_loss().begin(), conv.gradients_and_loss().end());
        of_mlp.assign(mlp.gradients_and_loss().begin(), mlp.gradients_and_loss().end());
      }
      INFO(table->name << " " << count << " threads");
      CHECK(std::ranges::equal(of_conv, conv.gradients_and_loss()));
      CHECK(std::ranges::equal(of_mlp, mlp.gradients_and_loss()));
    }
  }
}
