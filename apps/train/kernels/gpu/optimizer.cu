// This file is compiled without fused multiply-add in every build (optimizer_body.h).

#include "apps/train/kernels/gpu/bf16.h"
#include "apps/train/kernels/gpu/launch.cuh"
#include "apps/train/kernels/gpu/optimizer_body.h"

namespace ddp::train::kernels::device {

DDP_LAUNCH(Update<float>);
DDP_LAUNCH(Update<double>);
DDP_LAUNCH(Update<float, Bf16>);
DDP_LAUNCH(RoundNumbers<float, Bf16>);

}  // namespace ddp::train::kernels::device
