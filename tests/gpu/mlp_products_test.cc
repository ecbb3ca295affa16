// The MLP's products on an emulated GPU by a fake cuBLASLt, inside and outside of captured graphs.

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/gpu/device_net.h"
#include "apps/train/kernels/gpu/body.h"
#include "apps/train/model/model.h"
#include "tests/gpu/check_data.h"
#include "tests/support/catch.h"
#include "tests/support/fake_cublas_lt.h"
#include "tests/support/fake_cuda.h"

namespace ddp::train {
namespace {

constexpr int kWidth = 33, kDepth = 2, kBatch = 6;
constexpr int kForward = kDepth + 1, kBackward = 2 * kDepth + 1;  ///< products

template <class S>
std::unique_ptr<DeviceNet<float>> net_with(bool library, bool tf32 = false) {
  std::shared_ptr<MatrixProducts> products;
  if (library) {
    ::setenv("DDPLAUNCH_CUBLASLT_LIBRARY", DDP_FAKE_CUBLAS_LT, 1);
    auto opened = open_matrix_products();
    REQUIRE(opened.has_value());
    products = std::move(*opened);
  }
  ThreadPool one(1);
  Mlp<float> host(kWidth, kDepth, kBatch, one);
  host.initialise(5);
  const int count = static_cast<int>(host.parameter_count());
  auto net = DeviceNet<float>::make(mlp_on_device<float, S>(kWidth, kDepth, count, kBatch, products, tf32));
  REQUIRE(net.has_value());
  REQUIRE((*net)->put_parameters(host.parameters()).has_value());
  const gpu::CheckBatch<float> batch(kBatch, 0, 1);
  REQUIRE((*net)->put_batch(batch.images.data(), batch.labels).has_value());
  return std::move(*net);
}

std::vector<float> gradients(DeviceNet<float>& net) {
  REQUIRE(net.forward(kBatch).has_value());
  REQUIRE(net.backward(kBatch).has_value());
  std::vector<float> all(static_cast<std::size_t>(net.memory().count) + 1);
  REQUIRE(net.get(std::span<float>(all), net.memory().gradients).has_value());
  return all;
}

double apart(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace

TEMPLATE_TEST_CASE("a library's products give the gradients of the own kernels", "", float,
                   kernels::device::Bf16) {
  FakeCublasLt& lt = fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
  const bool is_float = std::is_same_v<TestType, float>;
  const auto own = gradients(*net_with<TestType>(false));
  CHECK(lt.made == 0);
  const auto net = net_with<TestType>(true);
  const auto direct = gradients(*net);
  const double distance = apart(direct, own);
  INFO("apart by " << distance);
  // The product is rounded to bf16 before the bias is added, and once more behind it.
  CHECK(distance < (is_float ? 1e-6 : 0.01));
  CHECK(apart(direct, gradients(*net_with<float>(false))) < (is_float ? 1e-6 : 0.05));
  CHECK(lt.made == kForward + kBackward);
  CHECK(lt.first == (is_float ? CUDA_R_32F : CUDA_R_16BF));
  CHECK(lt.second == lt.first);
  CHECK(lt.result == CUDA_R_32F);  // of the last one, a weight gradient
  CHECK(lt.compute == CUBLAS_COMPUTE_32F);
  const int choices = lt.choices;
  // The second pass is captured. The graph contains each product, and a kernel behind all but the gradients.
  CHECK(gradients(*net) == direct);
  CHECK(fake_cuda_last_graph().size() == kBackward + kDepth + kDepth + 1 + (is_float ? 0 : 1));
  CHECK(lt.requested == 2 * (kForward + kBackward));
  CHECK(gradients(*net) == direct);
  CHECK(lt.requested == 2 * (kForward + kBackward));  // a replay asks for nothing
  CHECK(lt.made == 3 * (kForward + kBackward));
  CHECK(lt.choices == choices);
}

TEST_CASE("TF32 is asked for on demand, and bf16 factors never use it") {
  FakeCublasLt& lt = fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
  gradients(*net_with<float>(true, true));
  CHECK(lt.compute == CUBLAS_COMPUTE_32F_FAST_TF32);
}

TEMPLATE_TEST_CASE("a nan in a product passes ReLU and mask, and reaches the loss", "", float,
                   kernels::device::Bf16) {
  for (int product = 1; product <= kForward; ++product) {
    FakeCublasLt& lt = fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
    lt.spoil = product;
    lt.spoiled_by = std::numeric_limits<float>::quiet_NaN();
    const auto all = gradients(*net_with<TestType>(true));
    CHECK(std::isnan(all.back()));
  }
}

TEST_CASE("products are prepared once for a batch's size, before they run beside exchanges of ranks") {
  FakeCublasLt& lt = fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
  const auto net = net_with<float>(true);
  REQUIRE(net->load().has_value());
  REQUIRE(net->prepare(kBatch).has_value());
  CHECK(lt.made == kForward + kBackward);
  REQUIRE(net->prepare(kBatch).has_value());
  CHECK(lt.made == kForward + kBackward);
  bool may_end = false;
  fake_cuda_enqueue(
      net->stream(), [&] { return may_end; }, nullptr);
  CHECK(net->forward(kBatch).has_value());
  CHECK_FALSE(net->forward(kBatch - 1).has_value());  // not prepared
  may_end = true;
  CHECK(net->wait().has_value());
}

}  // namespace ddp::train
