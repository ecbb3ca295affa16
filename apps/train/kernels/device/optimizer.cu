// Compiled without fused multiply-add in every build (optimizer_body.h).

#include "apps/train/kernels/device/launch.cuh"
#include "apps/train/kernels/device/optimizer_body.h"

namespace ddp::train::kernels::device {

DDP_LAUNCH(Update<float>);
DDP_LAUNCH(Update<double>);

}  // namespace ddp::train::kernels::device
