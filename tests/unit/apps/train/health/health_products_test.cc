// The products of `train health` on an emulated GPU, by a fake cuBLASLt and by the own kernel.

#include "apps/train/health/health_products.h"

#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/fake_cublas_lt.h"
#include "tests/support/fake_cuda.h"

namespace ddp::train {
namespace {

std::unique_ptr<MatrixProducts> library_in(const char* file) {
  ::setenv("DDPLAUNCH_CUBLASLT_LIBRARY", file, 1);
  auto library = open_matrix_products();
  REQUIRE(library.has_value());
  return std::move(*library);
}

constexpr int kCopies = 3;

struct Burn {
  std::unique_ptr<MatrixProducts> library;
  CudaStream stream = std::move(*make_cuda_stream());
  HealthGemm gemm{48};
  GpuProducts products;

  explicit Burn(std::unique_ptr<MatrixProducts> by,
                std::chrono::milliseconds limit = GpuProducts::kBatchLimit)
      : library(std::move(by)), products(gemm, kCopies, stream.get(), library.get(), limit) {}

  HealthFigures figures() const {
    HealthFigures figures;
    products.report(figures);
    return figures;
  }
};

void nothing() {}

}  // namespace

TEST_CASE("cuBLASLt makes the products where it is loaded, else the own kernel does") {
  const FakeCublasLt& fake = fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
  for (const bool loaded : {false, true}) {
    Burn burn(loaded ? library_in(DDP_FAKE_CUBLAS_LT) : nullptr);
    REQUIRE(burn.products.begin().has_value());
    for (int batch = 0; batch < 2; ++batch)
      REQUIRE(burn.products.run_batch(5, false, nothing).has_value());
    CHECK(burn.figures().products == 11);
    CHECK(burn.figures().wrong_products == 0);
    CHECK(burn.figures().other_products == 0);
    CHECK(burn.figures().gflops > 0);
    CHECK(fake.made == (loaded ? 11 : 0));
    CHECK(fake.choices == (loaded ? 1 : 0));
  }
}

TEST_CASE("Tensor cores multiply bf16 and fp8, and a wrong element is found in any copy") {
  for (const StoredNumber number : {StoredNumber::kBf16, StoredNumber::kFp8}) {
    FakeCublasLt& fake = fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
    const auto library = library_in(DDP_FAKE_CUBLAS_LT);
    const CudaStream stream = std::move(*make_cuda_stream());
    const HealthGemm gemm(number, 64, 16);
    GpuProducts products(gemm, 4, stream.get(), library.get());
    REQUIRE(products.begin().has_value());
    CHECK(fake.first == (number == StoredNumber::kFp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF));
    CHECK((fake.result == CUDA_R_32F && fake.compute == CUBLAS_COMPUTE_32F));
    fake.spoil = 3;
    fake.spoiled_by = 4;
    REQUIRE(products.run_batch(5, false, nothing).has_value());
    HealthFigures figures;
    products.report(figures);
    CHECK((figures.products == 6 && figures.wrong_products == 1 && figures.other_products == 1));
    CHECK((figures.bf16_gflops > 0) == (number == StoredNumber::kBf16));
    CHECK((figures.fp8_gflops > 0) == (number == StoredNumber::kFp8));
    CHECK(figures.gflops == 0);
  }
}

TEST_CASE("A product has about two blocks of results for each processor") {
  CHECK(GpuProducts::copies_for(132, 1024) == 4);
  CHECK(GpuProducts::copies_for(16, 1024) == 1);
  CHECK(GpuProducts::copies_for(0, 48) == 1);
}

TEST_CASE("The host waits once for a batch: NVML is sampled when all of its products are in the stream") {
  const FakeCublasLt& fake = fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
  Burn burn(library_in(DDP_FAKE_CUBLAS_LT));
  REQUIRE(burn.products.begin().has_value());
  CHECK(burn.products.next_batch() == 2);  // the time of a product is unknown
  int samples = 0, requested = 0, made = 0;
  REQUIRE(burn.products
              .run_batch(GpuProducts::kMostProducts, false,
                         [&] {
                           ++samples;
                           requested = fake.requested;
                           made = fake.made;
                         })
              .has_value());
  CHECK(samples == 1);
  CHECK(requested == 1 + static_cast<int>(GpuProducts::kMostProducts));
  CHECK(made == 1);
  CHECK(fake.made == requested);
  CHECK(burn.products.next_batch() <= GpuProducts::kMostProducts);
}

TEST_CASE("A wrong product is counted wherever it is in its batch") {
  for (const float by : {0.25f, std::numeric_limits<float>::quiet_NaN()}) {
    for (const int at : {2, 4, 6}) {
      FakeCublasLt& fake = fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
      fake.spoil = at;
      fake.spoiled_by = by;
      Burn burn(library_in(DDP_FAKE_CUBLAS_LT));
      REQUIRE(burn.products.begin().has_value());
      REQUIRE(burn.products.run_batch(5, false, nothing).has_value());
      CHECK(burn.figures().wrong_products == 1);
      CHECK(burn.figures().other_products == 1);
    }
  }
}

TEST_CASE("Other bits within the bounds are other, and not wrong") {
  FakeCublasLt& fake = fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
  fake.spoil = 3;
  fake.spoiled_by = 1e-6f;
  Burn burn(library_in(DDP_FAKE_CUBLAS_LT));
  REQUIRE(burn.products.begin().has_value());
  REQUIRE(burn.products.run_batch(5, false, nothing).has_value());
  CHECK(burn.figures().wrong_products == 0);
  CHECK(burn.figures().other_products == 1);
}

TEST_CASE("A product that fails is an error, and a library that lacks a function is none") {
  FakeCublasLt& fake = fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
  Burn burn(library_in(DDP_FAKE_CUBLAS_LT));
  REQUIRE(burn.products.begin().has_value());
  fake.product_status = CUBLAS_STATUS_EXECUTION_FAILED;
  const auto failed = burn.products.run_batch(5, false, nothing);
  REQUIRE_FALSE(failed.has_value());
  CHECK(failed.error().text == "cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED");

  ::setenv("DDPLAUNCH_CUBLASLT_LIBRARY", DDP_PARTIAL_CUBLAS_LT, 1);
  const auto partial = open_matrix_products();
  REQUIRE_FALSE(partial.has_value());
  CHECK(partial.error().text.ends_with(" lacks cublasLtMatmul; check that the file is complete"));
}

// The last case, since it gives up the GPU. A given-up GPU keeps its memory, and static pointers reach it.
TEST_CASE("A GPU that hangs is reported in time, and given up") {
  using namespace std::chrono_literals;
  fresh_fake_cublas_lt(DDP_FAKE_CUBLAS_LT);
  static Burn& burn = *new Burn(library_in(DDP_FAKE_CUBLAS_LT), 1ms);
  REQUIRE(burn.products.begin().has_value());
  REQUIRE(burn.products.run_batch(5, false, nothing).has_value());
  fake_cuda_enqueue(
      burn.stream.get(), [] { return false; }, nullptr);
  const auto hung = burn.products.run_batch(5, false, nothing);
  REQUIRE_FALSE(hung.has_value());
  CHECK(hung.error().code == ErrorCode::kTimeout);
  CHECK(hung.error().text == "the GPU did not finish its matrix products within 1 ms");
  CHECK(gpus_are_given_up());
  CHECK(burn.figures().products == 6);
}

}  // namespace ddp::train
