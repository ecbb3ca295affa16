#pragma once

#include <type_traits>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/gpu/matrix_products.h"
#include "apps/train/kernels/gpu/bf16.h"
#include "apps/train/kernels/gpu/gemm_body.h"

namespace ddp::train {

/// The storage of a product's numbers of type S.
template <class S>
inline constexpr auto kNumberOf =
    std::is_same_v<S, float> ? ProductShape::Number::kFloat : ProductShape::Number::kBf16;

/// Runs a program with a library's matrix products (null: with the own kernel) and own kernels for all else.
/// The last operation on a product is a kernel of its own, since a library's ReLU may turn a nan into zero.
class ProductRunner {
 public:
  ProductRunner(const DeviceRunner& own, MatrixProducts* products, bool tf32)
      : own_(own), products_(products), tf32_(tf32) {}

  template <class Body>
  void run(const typename Body::Args& args) const {
    if constexpr (Delegated<Body>::value) {
      if (products_ != nullptr) return multiply(args, Delegated<Body>{});
    }
    own_.run<Body>(args);
  }

 private:
  template <class Body>
  struct Delegated : std::false_type {};
  template <class S, class C>
  struct Delegated<kernels::device::Gemm<float, S, S, C>> : std::true_type {
    using Finish = kernels::device::FinishProduct<float, S, C>;
    static constexpr auto kFactors = kNumberOf<S>, kResult = kNumberOf<C>;
  };
  template <class Args, class Product>
  void multiply(const Args& args, Product) const {
    const ProductShape shape{args.rows,         args.columns,     args.depth,    args.a_row,
                             args.a_depth,      args.b_depth,     args.b_column, args.c_row,
                             Product::kFactors, Product::kResult, tf32_};
    own_.call([&](cudaStream_t stream) { return products_->enqueue(shape, args.a, args.b, args.c, stream); });
    if (args.end == kernels::device::GemmEnd::kPlain) return;
    own_.run<typename Product::Finish>({args.rows, args.columns, args.c, args.end, args.bias, args.mask});
  }

  const DeviceRunner& own_;
  MatrixProducts* products_;
  bool tf32_;
};

}  // namespace ddp::train
