// This file is compiled without fused multiply-add in every build (Update in update_body.h).

#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/device_launch.h"
#include "apps/train/kernels/gpu/update_body.h"

namespace ddp::train::kernels::device {

DDP_LAUNCH(Update<float>);
DDP_LAUNCH(Update<double>);
DDP_LAUNCH(Update<float, Bf16>);
DDP_LAUNCH(RoundNumbers<float, Bf16>);

}  // namespace ddp::train::kernels::device
