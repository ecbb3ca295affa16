#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/convolution_body.h"
#include "apps/train/kernels/gpu/device_launch.h"
#include "apps/train/kernels/gpu/norm_pool_body.h"

namespace ddp::train::kernels::device {

DDP_LAUNCH(WithLast<Convolution<float, 28, 1, 16>, Norm<float, 16, 112>>);
DDP_LAUNCH(WithLast<Convolution<float, 14, 16, 32>, Norm<float, 32, 112>>);
DDP_LAUNCH(WithLast<Convolution<float, 28, 1, 16, false, float, float, float, 1, 14>, Norm<float, 16, 224>>);
DDP_LAUNCH(WithLast<Convolution<float, 28, 1, 16, false, float, float, float, 2>, Norm<float, 16, 112>>);
DDP_LAUNCH(WithLast<Convolution<float, 14, 16, 32, false, float, float, float, 2>, Norm<float, 32, 112>>);
DDP_LAUNCH(WithLast<Convolution<float, 14, 16, 32, false, float, float, float, 1, 14>, Norm<float, 32, 224>>);
DDP_LAUNCH(Convolution<float, 14, 32, 16, true>);
DDP_LAUNCH(Convolution<float, 14, 32, 16, true, float, float, float, 1, 14>);
DDP_LAUNCH(WithLast<Convolution<double, 28, 1, 16>, Norm<double, 16, 112>>);
DDP_LAUNCH(WithLast<Convolution<double, 14, 16, 32>, Norm<double, 32, 112>>);
DDP_LAUNCH(
    WithLast<Convolution<double, 28, 1, 16, false, double, double, double, 1, 14>, Norm<double, 16, 224>>);
DDP_LAUNCH(WithLast<Convolution<double, 28, 1, 16, false, double, double, double, 2>, Norm<double, 16, 112>>);
DDP_LAUNCH(
    WithLast<Convolution<double, 14, 16, 32, false, double, double, double, 2>, Norm<double, 32, 112>>);
DDP_LAUNCH(
    WithLast<Convolution<double, 14, 16, 32, false, double, double, double, 1, 14>, Norm<double, 32, 224>>);
DDP_LAUNCH(Convolution<double, 14, 32, 16, true>);
DDP_LAUNCH(Convolution<double, 14, 32, 16, true, double, double, double, 1, 14>);
DDP_LAUNCH(WithLast<Convolution<float, 28, 1, 16, false, float, Bf16, Bf16>, Norm<float, 16, 112>>);
DDP_LAUNCH(WithLast<Convolution<float, 14, 16, 32, false, Bf16, Bf16, Bf16>, Norm<float, 32, 112>>);
DDP_LAUNCH(WithLast<Convolution<float, 28, 1, 16, false, float, Bf16, Bf16, 1, 14>, Norm<float, 16, 224>>);
DDP_LAUNCH(WithLast<Convolution<float, 28, 1, 16, false, float, Bf16, Bf16, 2>, Norm<float, 16, 112>>);
DDP_LAUNCH(WithLast<Convolution<float, 14, 16, 32, false, Bf16, Bf16, Bf16, 2>, Norm<float, 32, 112>>);
DDP_LAUNCH(WithLast<Convolution<float, 14, 16, 32, false, Bf16, Bf16, Bf16, 1, 14>, Norm<float, 32, 224>>);
DDP_LAUNCH(Convolution<float, 14, 32, 16, true, float, Bf16>);
DDP_LAUNCH(Convolution<float, 14, 32, 16, true, float, Bf16, float, 1, 14>);

}  // namespace ddp::train::kernels::device
