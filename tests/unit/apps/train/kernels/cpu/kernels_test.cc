#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/data/hash.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/schedule/schedule.h"
#include "tests/unit/apps/train/model/approx.h"

// Compares every kernel of every instruction set of this processor with plain loops in double.

using namespace ddp::train;
using namespace ddp::train::kernels;

namespace {

template <class T>
std::vector<T> noise(std::size_t size, std::uint64_t stream) {
  std::vector<T> values(size);
  for (std::size_t i = 0; i < size; ++i)
    values[i] = static_cast<T>(2 * random_unit(1, stream, i) - 1);
  return values;
}

template <class T>
constexpr double kTolerance = sizeof(T) == 4 ? 2e-6 : 1e-14;

/// Returns the largest difference relative to the largest expected value.
template <class T>
double difference(const std::vector<T>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  double largest = 1e-30;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    const double error = std::abs(static_cast<double>(got[i]) - expected[i]);
    worst = error <= worst ? worst : error;  // a nan passes no comparison and stays
    if (std::isnan(error)) return error;
  }
  return worst / largest;
}

// The model's own shapes, widths with every tile remainder, and channels that fill no vector.
const ConvShape kShapes[] = {{28, 28, 1, 16, 5}, {14, 14, 16, 32, 5}, {14, 14, 32, 16, 5}, {6, 13, 3, 5, 3},
                             {4, 1, 2, 1, 1},    {2, 11, 5, 37, 3},   {8, 17, 16, 7, 5}};

double padded_at(const ConvShape& s, const auto& padded, int y, int x, int in) {
  return static_cast<double>(
      padded[(static_cast<std::size_t>(y) * s.padded_width() + x) * s.in_channels + in]);
}

std::size_t weight_at(const ConvShape& s, int ky, int kx, int in, int out) {
  return ((static_cast<std::size_t>(ky) * s.window + kx) * s.in_channels + in) * s.out_channels + out;
}

template <class Body>
void for_products(const ConvShape& s, Body body) {
  for (int y = 0; y < s.height; ++y)
    for (int x = 0; x < s.width; ++x)
      for (int ky = 0; ky < s.window; ++ky)
        for (int kx = 0; kx < s.window; ++kx)
          for (int in = 0; in < s.in_channels; ++in)
            for (int out = 0; out < s.out_channels; ++out)
              body(y, x, ky, kx, in, out);
}

}  // namespace

TEMPLATE_TEST_CASE("convolution equals a plain loop", "", float, double) {
  using T = TestType;
  for (const auto* table : all_kernels<T>()) {
    for (const ConvShape& s : kShapes) {
      const auto padded = noise<T>(s.padded_size(), 1);
      const auto weight = noise<T>(s.weight_size(), 2);
      const auto bias = noise<T>(s.out_channels, 3);
      std::vector<double> expected(s.output_size());
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = bias[i % s.out_channels];
      for_products(s, [&](int y, int x, int ky, int kx, int in, int out) {
        expected[(static_cast<std::size_t>(y) * s.width + x) * s.out_channels + out] +=
            padded_at(s, padded, y + ky, x + kx, in) * weight[weight_at(s, ky, kx, in, out)];
      });
      std::vector<T> got(s.output_size(), T(99));
      table->convolve(s, padded.data(), weight.data(), bias.data(), got.data());
      INFO(table->name << " " << s.height << "x" << s.width << " " << s.in_channels << " to "
                       << s.out_channels);
      CHECK(difference(got, expected) < kTolerance<T>);
    }
  }
}

TEMPLATE_TEST_CASE("the gradient of the weights equals a plain loop and is added", "", float, double) {
  using T = TestType;
  for (const auto* table : all_kernels<T>()) {
    for (const ConvShape& s : kShapes) {
      const int stride = (s.width + 3) * s.out_channels;  // the rows are padded
      const auto padded = noise<T>(s.padded_size(), 1);
      const auto gradient = noise<T>(static_cast<std::size_t>(s.height) * stride, 2);
      std::vector<double> expected(s.weight_size(), 0.5);
      for_products(s, [&](int y, int x, int ky, int kx, int in, int out) {
        expected[weight_at(s, ky, kx, in, out)] +=
            padded_at(s, padded, y + ky, x + kx, in) *
            gradient[static_cast<std::size_t>(y) * stride + x * s.out_channels + out];
      });
      std::vector<T> got(s.weight_size(), T(0.5));
      table->convolve_weight_gradient(s, padded.data(), gradient.data(), stride, got.data());
      INFO(table->name << " " << s.height << "x" << s.width << " " << s.in_channels << " to "
                       << s.out_channels);
      CHECK(difference(got, expected) < 4 * kTolerance<T>);
    }
  }
}

TEMPLATE_TEST_CASE("the convolution with rotated weights gives the gradient of the input", "", float,
                   double) {
  using T = TestType;
  for (const auto* table : all_kernels<T>()) {
    for (const ConvShape& s : kShapes) {
      const ConvShape back{s.height, s.width, s.out_channels, s.in_channels, s.window};
      const auto weight = noise<T>(s.weight_size(), 1);
      std::vector<T> gradient(back.padded_size());
      const auto values = noise<T>(s.output_size(), 2);
      std::vector<double> expected(static_cast<std::size_t>(s.height) * s.width * s.in_channels);
      for (int y = 0; y < s.height; ++y) {
        for (int x = 0; x < s.width; ++x) {
          for (int out = 0; out < s.out_channels; ++out) {
            gradient[((y + s.border()) * back.padded_width() + x + s.border()) * s.out_channels + out] =
                values[(y * s.width + x) * s.out_channels + out];
          }
        }
      }
      for_products(s, [&](int y, int x, int ky, int kx, int in, int out) {
        const int from_y = y + ky - s.border();
        const int from_x = x + kx - s.border();
        if (from_y < 0 || from_y >= s.height || from_x < 0 || from_x >= s.width) return;
        expected[(static_cast<std::size_t>(from_y) * s.width + from_x) * s.in_channels + in] +=
            static_cast<double>(values[(y * s.width + x) * s.out_channels + out]) *
            weight[weight_at(s, ky, kx, in, out)];
      });
      std::vector<T> turned(s.weight_size());
      std::vector<T> got(expected.size());
      table->turn_weights(s, weight.data(), turned.data());
      table->convolve(back, gradient.data(), turned.data(), nullptr, got.data());
      INFO(table->name << " " << s.height << "x" << s.width << " " << s.in_channels << " to "
                       << s.out_channels);
      CHECK(difference(got, expected) < kTolerance<T>);
    }
  }
}

TEMPLATE_TEST_CASE("channel moments and sums equal plain loops", "", float, double) {
  using T = TestType;
  for (const auto* table : all_kernels<T>()) {
    for (const int channels : {1, 5, 16, 32, 37}) {
      for (const int width : {1, 7, 28}) {
        const int height = 3;
        const int pixels = height * width;
        auto image = noise<T>(static_cast<std::size_t>(pixels) * channels, 1);
        for (T& value : image)
          value += T(100);  // far from zero: a sum of squares would lose its digits
        std::vector<double> mean(channels), squares(channels), sum(channels, 0.25);
        for (int c = 0; c < channels; ++c) {
          for (int p = 0; p < pixels; ++p)
            mean[c] += static_cast<double>(image[p * channels + c]) / pixels;
          for (int p = 0; p < pixels; ++p)
            squares[c] += std::pow(image[p * channels + c] - mean[c], 2);
          for (int p = 0; p < pixels; ++p)
            sum[c] += image[p * channels + c];
        }
        std::vector<T> got_mean(channels), got_squares(channels), got_sum(channels, T(0.25));
        table->channel_moments(pixels, channels, image.data(), got_mean.data(), got_squares.data());
        table->channel_sum(height, width, channels, image.data(), width * channels, got_sum.data());
        INFO(table->name << " " << channels << " channels, width " << width);
        CHECK(difference(got_mean, mean) < kTolerance<T>);
        if (pixels > 3) CHECK(difference(got_squares, squares) < (sizeof(T) == 4 ? 1e-4 : 1e-11));
        CHECK(difference(got_sum, sum) < kTolerance<T>);
      }
    }
  }
}

namespace {

/// Returns the first pixel in row order that is the window's maximum, as (y, x), after scale and shift.
template <class T>
std::pair<int, int> winner(const std::vector<T>& image, int width, int channels, int y, int x, int c,
                           double scale, double shift, double& best) {
  std::pair<int, int> at{2 * y, 2 * x};
  best = -1e300;
  for (int dy = 0; dy < 2; ++dy) {
    for (int dx = 0; dx < 2; ++dx) {
      const double z = image[((2 * y + dy) * width + 2 * x + dx) * channels + c] * scale + shift;
      if (z > best) {
        best = z;
        at = {2 * y + dy, 2 * x + dx};
      }
    }
  }
  return at;
}

}  // namespace

TEMPLATE_TEST_CASE(
    "normalise, ReLU and pool, forward and backward, equal plain loops; ties go to the first pixel", "",
    float, double) {
  using T = TestType;
  for (const auto* table : all_kernels<T>()) {
    for (const int channels : {1, 16, 32, 37}) {
      const int height = 6, width = 10;
      auto image = noise<T>(static_cast<std::size_t>(height) * width * channels, 1);
      for (T& value : image)
        value = std::round(value * T(4)) / T(4);  // exact products and many ties
      std::vector<T> scale(channels), shift(channels), gain(channels), offset(channels), slope(channels);
      for (int c = 0; c < channels; ++c) {
        scale[c] = c % 3 == 0 ? T(-0.5) : T(2);  // a negative gamma reverses the order
        shift[c] = T(0.25) * static_cast<T>(c % 4 - 1);
        gain[c] = T(0.5) + static_cast<T>(c);
        offset[c] = T(0.125) * static_cast<T>(c);
        slope[c] = T(-0.25);
      }
      const auto gradient = noise<T>(static_cast<std::size_t>(height / 2) * (width / 2) * channels, 2);
      const int pooled_stride = (width / 2 + 4) * channels, stride = (width + 4) * channels;
      std::vector<double> pooled((height / 2) * static_cast<std::size_t>(pooled_stride), 7.0);
      std::vector<double> back(height * static_cast<std::size_t>(stride), 7.0), sum(channels),
          product(channels);
      for (int c = 0; c < channels; ++c) {
        for (int y = 0; y < height; ++y) {
          for (int x = 0; x < width; ++x) {
            back[y * stride + x * channels + c] =
                image[(y * width + x) * channels + c] * slope[c] + offset[c];
          }
        }
        for (int y = 0; y < height / 2; ++y) {
          for (int x = 0; x < width / 2; ++x) {
            double best = 0;
            const auto [at_y, at_x] = winner(image, width, channels, y, x, c, scale[c], shift[c], best);
            pooled[y * pooled_stride + x * channels + c] = std::max(best, 0.0);
            if (best <= 0) continue;
            const double g = gradient[(y * (width / 2) + x) * channels + c];
            back[at_y * stride + at_x * channels + c] += g * gain[c];
            sum[c] += g;
            product[c] += g * image[(at_y * width + at_x) * channels + c];
          }
        }
      }
      std::vector<T> got_pooled(pooled.size(), T(7)), got_back(back.size(), T(7)), got_sum(channels),
          got_product(channels);
      const NormScale<T> norm{scale.data(), shift.data()};
      table->norm_relu_pool(height, width, channels, image.data(), norm, got_pooled.data(), pooled_stride);
      table->pool_gradient_sums(height, width, channels, image.data(), norm, gradient.data(), got_sum.data(),
                                got_product.data());
      table->norm_relu_pool_gradient(height, width, channels, image.data(), norm,
                                     {gain.data(), offset.data(), slope.data()}, gradient.data(),
                                     got_back.data(), stride);
      INFO(table->name << " " << channels << " channels");
      CHECK(difference(got_pooled, pooled) == 0);
      CHECK(difference(got_sum, sum) < kTolerance<T>);
      CHECK(difference(got_product, product) < kTolerance<T>);
      CHECK(difference(got_back, back) < kTolerance<T>);
    }
  }
}

TEMPLATE_TEST_CASE("the first of equal maxima in row order gets the gradient of a window", "", float,
                   double) {
  using T = TestType;
  constexpr int kWindows = 15, kWidth = 2 * kWindows;  // window w has its maxima at the bits of w + 1
  for (const auto* table : all_kernels<T>()) {
    for (const int channels : {1, 37}) {
      const std::size_t size = std::size_t{2} * kWidth * channels;
      std::vector<T> image(size), expected(size), got(size, T(7)), sum(channels), product(channels);
      const auto place = [&](int window, int pixel, int channel) {
        return (std::size_t(pixel / 2) * kWidth + 2 * window + pixel % 2) * channels + channel;
      };
      for (int window = 0; window < kWindows; ++window) {
        for (int channel = 0; channel < channels; ++channel) {
          const unsigned maxima = static_cast<unsigned>(window + channel) % kWindows + 1;
          for (int pixel = 0; pixel < 4; ++pixel)
            image[place(window, pixel, channel)] = maxima >> pixel & 1 ? T(2) : T(1);
          expected[place(window, std::countr_zero(maxima), channel)] = T(window + 1);
        }
      }
      std::vector<T> gradient(std::size_t{kWindows} * channels);
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = static_cast<T>(i / channels + 1);
      const std::vector<T> one(channels, T(1)), zero(channels, T(0));
      const NormScale<T> norm{one.data(), zero.data()};
      table->norm_relu_pool_gradient(2, kWidth, channels, image.data(), norm,
                                     {one.data(), zero.data(), zero.data()}, gradient.data(), got.data(),
                                     static_cast<std::ptrdiff_t>(kWidth) * channels);
      table->pool_gradient_sums(2, kWidth, channels, image.data(), norm, gradient.data(), sum.data(),
                                product.data());
      INFO(table->name << " " << channels << " channels");
      CHECK(got == expected);
      CHECK(sum == std::vector<T>(channels, T(120)));
      CHECK(product == std::vector<T>(channels, T(240)));
    }
  }
}

TEMPLATE_TEST_CASE("the linear layer and its gradients equal plain loops", "", float, double) {
  using T = TestType;
  for (const auto* table : all_kernels<T>()) {
    for (const LinearShape s : {LinearShape{3, 1568, 10}, LinearShape{1, 5, 16}, LinearShape{7, 131, 1}}) {
      const auto input = noise<T>(static_cast<std::size_t>(s.batch) * s.inputs, 1);
      const auto weight = noise<T>(static_cast<std::size_t>(s.outputs) * s.inputs, 2);
      const auto bias = noise<T>(s.outputs, 3);
      const auto gradient = noise<T>(static_cast<std::size_t>(s.batch) * s.outputs, 4);
      std::vector<double> output(gradient.size()), back(input.size()), of_weight(weight.size()),
          of_bias(s.outputs);
      for (int n = 0; n < s.batch; ++n) {
        for (int o = 0; o < s.outputs; ++o) {
          const double g = gradient[n * s.outputs + o];
          output[n * s.outputs + o] = bias[o];
          of_bias[o] += g;
          for (int i = 0; i < s.inputs; ++i) {
            output[n * s.outputs + o] +=
                static_cast<double>(input[n * s.inputs + i]) * weight[o * s.inputs + i];
            back[n * s.inputs + i] += g * weight[o * s.inputs + i];
            of_weight[o * s.inputs + i] += g * input[n * s.inputs + i];
          }
        }
      }
      std::vector<T> got(output.size()), got_back(back.size()), got_weight(weight.size()),
          got_bias(s.outputs);
      table->linear(s, input.data(), weight.data(), bias.data(), got.data());
      table->linear_gradient(s, input.data(), weight.data(), gradient.data(), got_back.data(),
                             got_weight.data(), got_bias.data());
      INFO(table->name << " " << s.batch << " x " << s.inputs << " to " << s.outputs);
      CHECK(difference(got, output) < kTolerance<T>);
      CHECK(difference(got_back, back) < kTolerance<T>);
      CHECK(difference(got_weight, of_weight) < kTolerance<T>);
      CHECK(difference(got_bias, of_bias) < kTolerance<T>);
    }
  }
}

TEMPLATE_TEST_CASE("softmax cross entropy", "", float, double) {
  using T = TestType;
  const std::vector<T> logits{1, 2, 3, /**/ 1000, 0, 1000, /**/ 0, 0, 0};  // large ones must not overflow
  const std::vector<std::uint8_t> labels{2, 0, 1};
  std::vector<T> gradient(9);
  const auto score = softmax_loss<T>(logits, labels, 3, gradient);
  const double first = std::log(1 + std::exp(-1.0) + std::exp(-2.0));
  CHECK(score.loss_sum == Approx(first + std::log(2.0) + std::log(3.0)).epsilon(1e-6));
  CHECK(score.correct == 2);  // the first of equal logits wins: row 1 is right, row 2 wrong
  CHECK(gradient[2] == Approx((std::exp(-first) - 1) / 3).epsilon(1e-5));
  CHECK(gradient[3] == Approx(-0.5 / 3).epsilon(1e-6));
  CHECK(gradient[8] == Approx(1.0 / 9).epsilon(1e-6));
}

TEMPLATE_TEST_CASE("the matrix product equals a plain loop for any storage order of the factors", "", float,
                   double) {
  using T = TestType;
  struct Size {
    int rows, columns, depth;
  };
  for (const auto* table : all_kernels<T>()) {
    for (const Size s : {Size{1, 1, 1}, Size{6, 16, 8}, Size{14, 32, 3}, Size{7, 33, 13}, Size{85, 17, 257},
                         Size{100, 1025, 5}, Size{13, 9, 600}}) {
      for (int orientation = 0; orientation < 4; ++orientation) {
        const bool a_turned = orientation & 1, b_turned = orientation & 2;
        const auto a = noise<T>(static_cast<std::size_t>(s.rows) * s.depth, 1);
        const auto b = noise<T>(static_cast<std::size_t>(s.columns) * s.depth, 2);
        const int c_row = s.columns + 3;
        GemmShape shape{s.rows, s.columns, s.depth, s.depth, 1, s.columns, 1, c_row};
        if (a_turned) shape.a_row = 1, shape.a_depth = s.rows;
        if (b_turned) shape.b_depth = 1, shape.b_column = s.depth;
        std::vector<double> expected(static_cast<std::size_t>(s.rows) * c_row, 99);
        for (int row = 0; row < s.rows; ++row) {
          for (int column = 0; column < s.columns; ++column) {
            double sum = 0;
            for (int d = 0; d < s.depth; ++d) {
              sum += static_cast<double>(a[row * shape.a_row + d * shape.a_depth]) *
                     static_cast<double>(b[d * shape.b_depth + column * shape.b_column]);
            }
            expected[static_cast<std::size_t>(row) * c_row + column] = sum;
          }
        }
        std::vector<T> got(expected.size(), T(99));  // nothing may be written between the rows
        ddp::train::AlignedBuffer<T> scratch(kGemmScratch);
        table->gemm(shape, a.data(), b.data(), got.data(), scratch.data());
        INFO(table->name << " " << s.rows << " x " << s.columns << " x " << s.depth << " way "
                         << orientation);
        CHECK(difference(got, expected) < 2 * kTolerance<T>);
        // A part alone has the same bits as the whole, so threads may divide the product.
        if (s.columns > 8) {
          std::vector<T> part(expected.size(), T(99));
          GemmShape right = shape;
          right.columns = s.columns - 5;
          table->gemm(right, a.data(), b.data() + 5 * shape.b_column, part.data() + 5, scratch.data());
          bool equal = true;
          for (int row = 0; row < s.rows; ++row)
            for (int column = 5; column < s.columns; ++column)
              equal = equal && part[row * c_row + column] == got[row * c_row + column];
          CHECK(equal);
        }
      }
    }
  }
}

TEST_CASE("instruction sets are found by name") {
  CHECK(find_kernels<float>("")->name == best_kernels<float>().name);
  REQUIRE(find_kernels<float>("generic") != nullptr);
  CHECK(std::string(find_kernels<double>("generic")->name) == "generic");
  CHECK(find_kernels<float>("x86_64_v9") == nullptr);
}

TEST_CASE("SGD with momentum equals torch.optim.SGD") {
  std::vector<double> weight{1, -2}, velocity{0, 0};
  const std::vector<double> gradient{1, 2};
  sgd_step<double>(weight, velocity, gradient, 0.1, 0.9, 0);
  CHECK(velocity == std::vector<double>{1, 2});
  CHECK(weight[0] == Approx(0.9));
  sgd_step<double>(weight, velocity, gradient, 0.1, 0.9, 0.5);
  CHECK(velocity[1] == Approx(0.9 * 2 + 2 - 0.5 * 2.2));
  CHECK(weight[1] == Approx(-2.2 - 0.1 * 2.7));
}

TEST_CASE("AdamW equals torch.optim.AdamW") {
  // Two steps of torch 1.13: parameter 1 and -2, gradients (0.5, -1), then (-0.25, 2), lr 0.1, decay 0.01.
  std::vector<double> weight{1, -2}, mean{0, 0}, square{0, 0};
  const OptimizerSettings settings{.weight_decay = 0.01};
  adamw_step<double>(weight, mean, square, std::vector<double>{0.5, -1}, settings, 0.1, 1);
  CHECK(weight[0] == Approx(0.999 * 1 - 0.1 * 0.5 / (0.5 + 1e-8)).epsilon(1e-12));
  adamw_step<double>(weight, mean, square, std::vector<double>{-0.25, 2}, settings, 0.1, 2);
  const double m = 0.9 * 0.05 - 0.1 * 0.25, v = 0.999 * 0.001 * 0.25 + 0.001 * 0.0625;
  const double before = 0.999 - 0.1 * 0.5 / (0.5 + 1e-8);
  const double hat = m / (1 - 0.81) / (std::sqrt(v / (1 - 0.999 * 0.999)) + 1e-8);
  CHECK(weight[0] == Approx(0.999 * before - 0.1 * hat).epsilon(1e-12));
}

TEST_CASE("AdamW with the cosine schedule equals torch's results") {
  std::ifstream file(std::string(DDP_SOURCE_DIR) + "/tests/unit/apps/train/testdata/optimizer_vectors.txt");
  REQUIRE(file);
  std::string kind;
  std::vector<double> weight{1, -2, 0.125, 0}, mean(4), square(4);
  int steps = 0, rates = 0;
  while (file >> kind) {
    if (kind == "adamw") {  // lr, four gradients, the four weights after the step
      const OptimizerSettings settings{.beta1 = 0.8, .beta2 = 0.99, .weight_decay = 0.05};
      double lr = 0;
      std::vector<double> gradient(4), expected(4);
      file >> lr;
      for (auto* values : {&gradient, &expected}) {
        for (double& value : *values)
          file >> value;
      }
      adamw_step<double>(weight, mean, square, gradient, settings, lr, ++steps);
      for (std::size_t i = 0; i < weight.size(); ++i)
        CHECK(std::abs(weight[i] - expected[i]) <= 1e-14);
    } else {  // cosine: step, steps, the rate of CosineAnnealingLR with a peak of 0.3
      double step = 0, total = 1, expected = 0;
      file >> step >> total >> expected;
      CHECK(std::abs(LrSchedule{LrShape::kCosine, 0.3, 0}.rate(static_cast<int>(step), step / total, 0) -
                     expected) <= 1e-14);
      ++rates;
    }
  }
  CHECK(steps == 12);
  CHECK(rates == 21);
}

TEST_CASE("The kernels of this processor have names of --kernels, in the same order") {
  std::size_t before = 0;
  for (const auto* table : all_kernels<float>()) {
    const auto found = std::find(kKernelNames.begin(), kKernelNames.end(), std::string_view(table->name));
    REQUIRE(found != kKernelNames.end());
    const auto at = static_cast<std::size_t>(found - kKernelNames.begin()) + 1;
    CHECK(at > before);
    before = at;
  }
}

TEMPLATE_TEST_CASE("mean, test for nan, clipping", "", float, double) {
  using T = TestType;
  const T nan = std::numeric_limits<T>::quiet_NaN(), infinity = std::numeric_limits<T>::infinity();
  std::vector<T> values{8, -4, 0.5};
  CHECK(average<T>(values, T(0.25)));
  CHECK(values == std::vector<T>{2, -1, 0.125});
  for (const T bad : {nan, infinity, -infinity}) {
    std::vector<T> spoilt{1, bad, 2};
    CHECK_FALSE(average<T>(spoilt, T(0.5)));
  }
  std::vector<T> clipped{5, -5, nan, 0.25, infinity};
  clip_value<T>(clipped, T(1));
  CHECK(clipped[0] == 1);
  CHECK(clipped[1] == -1);
  CHECK(std::isnan(clipped[2]));
  CHECK(clipped[3] == T(0.25));
  CHECK(clipped[4] == 1);
  CHECK(squared_norm<T>(std::vector<T>{1, 2, 3, 4, 5, 6, 7}) == 140);
  CHECK(squared_norm<T>({}) == 0);
}
