#include "apps/train/kernels/device/launch.cuh"
#include "apps/train/kernels/device/norm_body.h"
#include "apps/train/kernels/device/norm_gradient_body.h"
#include "apps/train/kernels/device/pool_gradient_body.h"

namespace ddp::train::kernels::device {

DDP_LAUNCH(Norm<float>);
DDP_LAUNCH(Norm<double>);
DDP_LAUNCH(RunningNorm<float>);
DDP_LAUNCH(RunningNorm<double>);
DDP_LAUNCH(NormGradientSums<float>);
DDP_LAUNCH(NormGradientSums<double>);
DDP_LAUNCH(Pool<float, 28, 16>);
DDP_LAUNCH(Pool<float, 14, 32>);
DDP_LAUNCH(Pool<double, 28, 16>);
DDP_LAUNCH(Pool<double, 14, 32>);
DDP_LAUNCH(PoolSums<float, 28, 16>);
DDP_LAUNCH(PoolSums<float, 14, 32>);
DDP_LAUNCH(PoolSums<double, 28, 16>);
DDP_LAUNCH(PoolSums<double, 14, 32>);
DDP_LAUNCH(PoolGradient<float, 28, 16>);
DDP_LAUNCH(PoolGradient<float, 14, 32>);
DDP_LAUNCH(PoolGradient<double, 28, 16>);
DDP_LAUNCH(PoolGradient<double, 14, 32>);

}  // namespace ddp::train::kernels::device
