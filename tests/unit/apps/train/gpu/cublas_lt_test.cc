// The products over a fake cuBLASLt, compared with the GPU's own kernel on the host.

#include <cublasLt.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/kernels/gpu/body.h"
#include "tests/support/catch.h"
#include "tests/support/fake_cublas_lt.h"
#include "tests/support/skip.h"
#include "tests/unit/apps/train/gpu/device_models.h"
#include "tests/unit/apps/train/gpu/device_test_support.h"

/// Where no GPU is, cublasLtCreate of NVIDIA's library fails and keeps its memory.
extern "C" const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libcublasLt.so";
}

using namespace ddp;
using namespace ddp::train;
using namespace ddp::train::kernels;
using namespace ddp::train::kernels::device;

namespace {

FakeCublasLt& fake() {
  return fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
}

std::unique_ptr<MatrixProducts> products() {
  auto made = open_matrix_products(DDP_FAKE_CUBLAS_LT);
  REQUIRE(made.has_value());
  return std::move(*made);
}

constexpr int kBatch = 5, kInputs = 7, kOutputs = 3;
constexpr ProductShape kForward{kBatch, kOutputs, kInputs, kInputs, 1, 1, kInputs, kOutputs};
constexpr ProductShape kDataGradient{kBatch, kInputs, kOutputs, kOutputs, 1, kInputs, 1, kInputs};
constexpr ProductShape kWeightGradient{kOutputs, kInputs, kBatch, 1, kOutputs, kInputs, 1, kInputs};

std::size_t size_of(const ProductShape& shape) {
  return static_cast<std::size_t>(shape.rows * shape.columns);
}

template <class S>
std::vector<float> own_product(const ProductShape& s, const S* a, const S* b) {
  std::vector<float> c(size_of(s));
  run_on_host<Gemm<float, S, S>>({s.rows, s.columns, s.depth, a, s.a_row, s.a_depth, b, s.b_depth, s.b_column,
                                  c.data(), s.c_row, GemmEnd::kPlain, nullptr, nullptr},
                                 HostOrder{});
  return c;
}

}  // namespace

TEST_CASE("cuBLASLt multiplies as the own kernel does: forward, data gradient, weight gradient") {
  FakeCublasLt& lt = fake();
  const auto all = products();
  const auto a = noise<float>(64, 1), b = noise<float>(64, 2);
  for (const ProductShape& shape : {kForward, kDataGradient, kWeightGradient}) {
    std::vector<float> c(size_of(shape), -1);
    REQUIRE(all->enqueue(shape, a.data(), b.data(), c.data(), nullptr).has_value());
    CHECK(difference(c, own_product(shape, a.data(), b.data())) < 1e-6);
  }
  CHECK(lt.compute == CUBLAS_COMPUTE_32F);
  CHECK(lt.workspace == std::size_t{32} << 20);
}

TEST_CASE("each shape's algorithm is chosen once for an alignment, which the addresses give") {
  FakeCublasLt& lt = fake();
  const auto all = products();
  const auto a = noise<float>(256, 1);
  AlignedBuffer<float> c(64);
  const auto at = [&](std::size_t begin) {  // the buffers are aligned to a cache line
    REQUIRE(all->enqueue(kForward, a.data() + begin, a.data(), c.data(), nullptr).has_value());
    return lt.alignment;
  };
  CHECK(at(1) == 4);
  CHECK(at(3) == 4);
  CHECK(lt.choices == 1);
  CHECK(at(4) == 16);
  CHECK(at(0) >= 64);
  CHECK(lt.choices == 3);
  REQUIRE(all->enqueue(kDataGradient, a.data(), a.data(), c.data(), nullptr).has_value());
  CHECK(lt.choices == 4);
}

TEST_CASE("a matrix of one column or one row is a factor like any other") {
  fake();
  const auto all = products();
  const auto a = noise<float>(64, 1), b = noise<float>(64, 2);
  for (const ProductShape& shape :
       {ProductShape{5, 3, 1, 1, 1, 1, 1, 3}, ProductShape{5, 1, 4, 4, 1, 1, 4, 1},
        ProductShape{1, 4, 5, 1, 1, 4, 1, 4}, ProductShape{5, 4, 1, 1, 1, 4, 1, 4}}) {
    std::vector<float> c(size_of(shape), -1);
    REQUIRE(all->enqueue(shape, a.data(), b.data(), c.data(), nullptr).has_value());
    CHECK(difference(c, own_product(shape, a.data(), b.data())) < 1e-6);
  }
}

TEST_CASE("bf16 factors and TF32 reach cuBLASLt as such") {
  FakeCublasLt& lt = fake();
  const auto all = products();
  const auto wide = noise<float>(64, 1);
  ProductShape shape = kWeightGradient;
  std::vector<float> c(size_of(shape));
  shape.tf32 = true;
  REQUIRE(all->enqueue(shape, wide.data(), wide.data(), c.data(), nullptr).has_value());
  CHECK(lt.compute == CUBLAS_COMPUTE_32F_FAST_TF32);
  CHECK(lt.first == CUDA_R_32F);

  shape.tf32 = false;
  shape.factors = StoredNumber::kBf16;
  const std::vector<Bf16> factors(wide.data(), wide.data() + 64);
  REQUIRE(all->enqueue(shape, factors.data(), factors.data(), c.data(), nullptr).has_value());
  CHECK(lt.compute == CUBLAS_COMPUTE_32F);
  CHECK(lt.first == CUDA_R_16BF);
  CHECK(lt.second == CUDA_R_16BF);
  CHECK(lt.result == CUDA_R_32F);
  CHECK(difference(c, own_product(shape, factors.data(), factors.data())) < 1e-6);
}

TEST_CASE("a failed product and a shape without an algorithm are errors") {
  FakeCublasLt& lt = fake();
  const auto all = products();
  float number = 0;
  lt.product_status = CUBLAS_STATUS_EXECUTION_FAILED;
  const auto failed = all->enqueue({1, 1, 1, 1, 1, 1, 1, 1}, &number, &number, &number, nullptr);
  REQUIRE_FALSE(failed.has_value());
  CHECK(failed.error().text == "cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED");
  lt.knows_shapes = false;
  const auto unknown = all->enqueue(kForward, &number, &number, &number, nullptr);
  REQUIRE_FALSE(unknown.has_value());
  CHECK(unknown.error().text == "cublasLtMatmulAlgoGetHeuristic: no algorithm for this shape");
}

TEST_CASE("a cuBLASLt that is missing, too old, or incomplete is refused in one line") {
  const auto error = [](const char* file) {
    const auto opened = open_matrix_products(file);
    REQUIRE_FALSE(opened.has_value());
    CHECK(opened.error().code == ErrorCode::kUsage);
    CHECK(opened.error().text.find('\n') == std::string::npos);
    return opened.error().text;
  };
  CHECK(error("/nowhere/libcublasLt.so").starts_with("cuBLASLt cannot be loaded: /nowhere/libcublasLt.so"));
  CHECK(error(DDP_PARTIAL_CUBLAS_LT).ends_with(" lacks cublasLtMatmul; check that the file is complete"));
  CHECK(error("libc.so.6").ends_with("is not cuBLASLt: cublasLtGetVersion is missing"));
  fake().version = 11'11'03;
  CHECK(
      error(DDP_FAKE_CUBLAS_LT)
          .starts_with("cuBLASLt cannot be loaded: cuBLASLt 11.11.3 (" DDP_FAKE_CUBLAS_LT ") is too old; "));
  fake();
}

TEST_CASE("a cuBLASLt of this machine is complete", "[cublas_lt]") {
  ::unsetenv("DDPLAUNCH_CUBLASLT_LIBRARY");  // fake_cuda.cc hides a real library
  const auto library = open_matrix_products();
  if (!library) SKIP_TEST(library.error().text);
  CHECK(library.value()->name().find("libcublasLt.so") != std::string::npos);
  CHECK(library.value()->name().starts_with("cuBLASLt " + std::to_string(CUBLAS_VER_MAJOR) + "."));
}
