#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/convolution_body.h"
#include "apps/train/kernels/gpu/device_launch.h"
#include "apps/train/kernels/gpu/gemm_body.h"
#include "apps/train/kernels/gpu/norm_pool_body.h"

namespace ddp::train::kernels::device {

DDP_LAUNCH(WeightGradient<float, 28, 1, 16, 5, 7, PooledGradient<float, 28, 16>>);
DDP_LAUNCH(WeightGradient<float, 14, 16, 32, 1, 1>);
DDP_LAUNCH(WeightGradient<double, 28, 1, 16, 5, 7, PooledGradient<double, 28, 16>>);
DDP_LAUNCH(WeightGradient<double, 14, 16, 32, 1, 1>);
DDP_LAUNCH(WeightGradient<float, 28, 1, 16, 5, 7, PooledGradient<float, 28, 16, Bf16>>);
DDP_LAUNCH(WeightGradient<float, 14, 16, 32, 1, 1, DenseGradient<float, 14, 32>, Bf16>);
DDP_LAUNCH(Gemm<float>);
DDP_LAUNCH(Gemm<double>);
DDP_LAUNCH(Gemm<float, Bf16, Bf16>);
DDP_LAUNCH(Gemm<float, Bf16, Bf16, Bf16>);
DDP_LAUNCH(FinishProduct<float>);
DDP_LAUNCH(FinishProduct<float, Bf16>);
DDP_LAUNCH(FinishProduct<float, Bf16, Bf16>);
DDP_LAUNCH(ColumnSums<float>);
DDP_LAUNCH(ColumnSums<float, Bf16>);
DDP_LAUNCH(ColumnSums<double>);
DDP_LAUNCH(AddVector<float>);
DDP_LAUNCH(AddVector<double>);

}  // namespace ddp::train::kernels::device
