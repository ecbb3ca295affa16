#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/device_launch.h"
#include "apps/train/kernels/gpu/norm_pool_body.h"

namespace ddp::train::kernels::device {

DDP_LAUNCH(Pool<float, 28, 16>);
DDP_LAUNCH(Pool<double, 28, 16>);
DDP_LAUNCH(Pool<float, 28, 16, Bf16>);
DDP_LAUNCH(WithLast<PoolSums<float, 28, 16>, NormGradientSums<float, 16, 256>>);
DDP_LAUNCH(WithLast<PoolSums<double, 28, 16>, NormGradientSums<double, 16, 256>>);
DDP_LAUNCH(WithLast<PoolSums<float, 28, 16, Bf16>, NormGradientSums<float, 16, 256>>);
DDP_LAUNCH(PoolGradient<float, 14, 32>);
DDP_LAUNCH(PoolGradient<double, 14, 32>);
DDP_LAUNCH(PoolGradient<float, 14, 32, Bf16>);

}  // namespace ddp::train::kernels::device
