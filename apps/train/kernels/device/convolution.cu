#include "apps/train/kernels/device/convolution_body.h"
#include "apps/train/kernels/device/launch.cuh"

namespace ddp::train::kernels::device {

DDP_LAUNCH(Convolution<float, 28, 1, 16>);
DDP_LAUNCH(Convolution<float, 14, 16, 32>);
DDP_LAUNCH(Convolution<float, 14, 32, 16, true>);
DDP_LAUNCH(Convolution<double, 28, 1, 16>);
DDP_LAUNCH(Convolution<double, 14, 16, 32>);
DDP_LAUNCH(Convolution<double, 14, 32, 16, true>);

}  // namespace ddp::train::kernels::device
