#include "apps/train/model/model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "apps/train/data/hash.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "tests/unit/apps/train/model/approx.h"

using namespace ddp::train;

namespace {

ThreadPool one_thread(1);

template <class T>
struct TestBatch {
  std::vector<T> padded;
  std::vector<std::uint8_t> labels;
};

/// Returns the images that testdata/make_convnet_reference.py gives to PyTorch.
template <class T>
TestBatch<T> make_batch(std::uint64_t number, int count) {
  TestBatch<T> batch{std::vector<T>(static_cast<std::size_t>(count) * kPaddedPixels),
                     std::vector<std::uint8_t>(count)};
  for (int i = 0; i < count; ++i) {
    batch.labels[i] = static_cast<std::uint8_t>(mix_bits(77 * number + i) % 10);
    for (int p = 0; p < kImagePixels; ++p) {
      const double common = static_cast<double>(mix_bits(1000 * number + i) >> 8 & 255) / 255 * 0.5;
      const double own = static_cast<double>(mix_bits((number * 100 + i) * 784 + p) >> 16 & 255) / 255 * 0.5;
      batch.padded[static_cast<std::size_t>(i) * kPaddedPixels + (p / 28 + 2) * kPaddedSide + p % 28 + 2] =
          static_cast<T>(common + own);
    }
  }
  return batch;
}

double norm(const auto& values) {
  double sum = 0;
  for (const auto value : values)
    sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

/// Returns the numbers by "KIND NAME".
std::map<std::string, std::vector<double>> read_reference() {
  std::ifstream file(DDP_SOURCE_DIR "/tests/unit/apps/train/testdata/convnet_reference.txt");
  REQUIRE(file);
  std::map<std::string, std::vector<double>> reference;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string key, name;
    words >> key;
    if (key != "evaluation") {
      words >> name;
      key += " " + name;
    }
    for (double number = 0; words >> number;)
      reference[key].push_back(number);
  }
  REQUIRE(reference.size() == 5 + 10 + 10 + 4 + 1);
  return reference;
}

/// Checks norm, first, middle and last element of each tensor, within `tolerance` of the norm.
void check_tensors(const std::map<std::string, std::vector<double>>& reference, const std::string& kind,
                   const std::vector<TensorInfo>& layout, std::span<const double> values, double tolerance) {
  for (const TensorInfo& tensor : layout) {
    const auto& expected = reference.at(kind + " " + std::string(tensor.name));
    const auto part = values.subspan(tensor.offset, tensor.size);
    const double scale = std::max(expected[0], 1e-3);  // biases before a normalization have gradient 0
    INFO(kind << " " << tensor.name);
    CHECK(std::abs(norm(part) - expected[0]) < tolerance * scale);
    CHECK(std::abs(part.front() - expected[1]) < tolerance * scale);
    CHECK(std::abs(part[part.size() / 2] - expected[2]) < tolerance * scale);
    CHECK(std::abs(part.back() - expected[3]) < tolerance * scale);
  }
}

}  // namespace

TEST_CASE("the model has 29,034 parameters in one flat vector without gaps") {
  ConvNet<float> net(1, one_thread);
  std::size_t at = 0;
  for (const TensorInfo& tensor : net.parameter_tensors()) {
    CHECK(tensor.offset == at);
    at += tensor.size;
  }
  CHECK(at == 29'034);
  at = 0;
  for (const TensorInfo& tensor : net.running_tensors()) {
    CHECK(tensor.offset == at);
    at += tensor.size;
  }
  CHECK(at == ConvNet<float>::kRunning);
}

TEST_CASE("initial weights fill PyTorch's bounds and depend on the seed alone") {
  ConvNet<float> a(1, one_thread), b(50, one_thread), other(1, one_thread);
  a.initialise(7);
  b.initialise(7);
  other.initialise(8);
  CHECK(std::ranges::equal(a.parameters(), b.parameters()));
  CHECK_FALSE(std::ranges::equal(a.parameters(), other.parameters()));
  for (const TensorInfo& tensor : a.parameter_tensors()) {
    if (tensor.fan_in == 0 || tensor.size < 400) continue;
    const auto part = a.parameters().subspan(tensor.offset, tensor.size);
    const float bound = 1 / std::sqrt(static_cast<float>(tensor.fan_in));
    INFO(tensor.name);
    CHECK(*std::ranges::max_element(part) <= bound);
    CHECK(*std::ranges::max_element(part) > 0.98f * bound);
    CHECK(*std::ranges::min_element(part) >= -bound);
    CHECK(*std::ranges::min_element(part) < -0.98f * bound);
    const double mean = std::accumulate(part.begin(), part.end(), 0.0) / tensor.size;
    CHECK(std::abs(mean) < 4 * bound / std::sqrt(3.0 * tensor.size));
  }
}

TEST_CASE("five steps in float64 equal PyTorch's") {
  const auto reference = read_reference();
  for (const auto* table : kernels::all_kernels<double>()) {
    INFO(table->name);
    ConvNet<double> net(8, one_thread, *table);
    net.initialise(3);
    std::vector<double> velocity(ConvNet<double>::kParameters);
    for (int step = 0; step < 5; ++step) {
      const auto batch = make_batch<double>(step, 6);
      const auto score = net.forward_backward(batch.padded.data(), batch.labels);
      CHECK(score.loss_sum / 6 == Approx(reference.at("step " + std::to_string(step))[0]).epsilon(1e-11));
      CHECK(net.gradients_and_loss().back() == score.loss_sum / 6);
      if (step == 0) check_tensors(reference, "gradient", net.parameter_tensors(), net.gradients(), 1e-11);
      kernels::sgd_step<double>(net.parameters(), velocity, net.gradients(), 0.01, 0.9, 0.0);
    }
    check_tensors(reference, "weight", net.parameter_tensors(), net.parameters(), 1e-10);
    check_tensors(reference, "running", net.running_tensors(), net.running_statistics(), 1e-10);
    const auto batch = make_batch<double>(9, 6);
    const auto score = net.evaluate(batch.padded.data(), batch.labels);
    CHECK(score.loss_sum == Approx(reference.at("evaluation")[0]).epsilon(1e-10));
    CHECK(score.correct == static_cast<int>(reference.at("evaluation")[1]));
  }
}

TEST_CASE("float32 gradients are within 2e-5 of float64, per tensor") {
  const auto exact_batch = make_batch<double>(1, 100);
  const auto batch = make_batch<float>(1, 100);
  ConvNet<double> exact(100, one_thread);
  exact.initialise(3);
  for (const auto* table : kernels::all_kernels<float>()) {
    ConvNet<float> net(100, one_thread, *table);
    net.initialise(3);
    std::ranges::copy(net.parameters(), exact.parameters().begin());  // exactly the same weights
    exact.forward_backward(exact_batch.padded.data(), exact_batch.labels);
    net.forward_backward(batch.padded.data(), batch.labels);
    double weight_norm = 1;
    for (const TensorInfo& tensor : net.parameter_tensors()) {
      const auto right = exact.gradients().subspan(tensor.offset, tensor.size);
      std::vector<double> error(right.begin(), right.end());
      for (std::size_t i = 0; i < tensor.size; ++i)
        error[i] -= static_cast<double>(net.gradients()[tensor.offset + i]);
      INFO(table->name << " " << tensor.name);
      // Biases before a normalization have gradient 0, so their error is compared with their weights' norm.
      if (tensor.name.ends_with(".0.bias")) {
        CHECK(norm(error) < 1e-3 * weight_norm);
      } else {
        CHECK(norm(error) / norm(right) < 2e-5);
      }
      weight_norm = norm(right);
    }
  }
}

TEST_CASE("gradients equal finite differences of the loss") {
  const auto batch = make_batch<double>(2, 4);
  ConvNet<double> net(4, one_thread);
  net.initialise(11);
  net.forward_backward(batch.padded.data(), batch.labels);
  const std::vector<double> gradient(net.gradients().begin(), net.gradients().end());
  const auto loss = [&] {
    const std::vector<double> running(net.running_statistics().begin(), net.running_statistics().end());
    const double value = net.forward_backward(batch.padded.data(), batch.labels).loss_sum / 4;
    std::ranges::copy(running, net.running_statistics().begin());
    return value;
  };
  constexpr double kStep = 1e-6;
  for (const TensorInfo& tensor : net.parameter_tensors()) {
    for (int k = 0; k < 6; ++k) {
      const std::size_t index = tensor.offset + random_bits(5, tensor.offset, k) % tensor.size;
      double& weight = net.parameters()[index];
      const double kept = weight;
      weight = kept + kStep;
      const double above = loss();
      weight = kept - kStep;
      const double below = loss();
      weight = kept;
      INFO(tensor.name << " element " << index - tensor.offset);
      CHECK(gradient[index] == Approx((above - below) / (2 * kStep)).epsilon(2e-6).margin(2e-8));
    }
  }
}

TEST_CASE("equal input gives equal bits, and a sample's position in the batch changes no evaluation") {
  const auto batch = make_batch<float>(4, 10);
  ConvNet<float> a(10, one_thread), b(64, one_thread);
  for (ConvNet<float>* net : {&a, &b}) {
    net->initialise(1);
    net->forward_backward(batch.padded.data(), batch.labels);
  }
  CHECK(std::ranges::equal(a.gradients(), b.gradients()));
  double sum = 0;
  for (int i = 0; i < 10; ++i) {
    sum += a.evaluate(batch.padded.data() + static_cast<std::size_t>(i) * kPaddedPixels,
                      std::span(batch.labels).subspan(i, 1))
               .loss_sum;
  }
  CHECK(sum == b.evaluate(batch.padded.data(), batch.labels).loss_sum);
}
