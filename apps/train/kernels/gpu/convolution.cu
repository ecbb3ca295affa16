#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/convolution_body.h"
#include "apps/train/kernels/gpu/device_launch.h"
#include "apps/train/kernels/gpu/norm_pool_body.h"

namespace ddp::train::kernels::device {

// The forward passes of DeviceConvBlock, and the gradient toward its input (net_programs.h).
#define DDP_LAUNCH_FORWARD(T, S, Side, In, Out, From)                                           \
  DDP_LAUNCH(WithLast<Convolution<T, Side, In, Out, false, From, S, S>, Norm<T, Out, 112>>);    \
  DDP_LAUNCH(WithLast<Convolution<T, Side, In, Out, false, From, S, S, 2>, Norm<T, Out, 112>>); \
  DDP_LAUNCH(WithLast<Convolution<T, Side, In, Out, false, From, S, S, 1, 14>, Norm<T, Out, 224>>)
#define DDP_LAUNCH_CONVOLUTIONS(T, S)                 \
  DDP_LAUNCH_FORWARD(T, S, 28, 1, 16, T);             \
  DDP_LAUNCH_FORWARD(T, S, 14, 16, 32, S);            \
  DDP_LAUNCH(Convolution<T, 14, 32, 16, true, T, S>); \
  DDP_LAUNCH(Convolution<T, 14, 32, 16, true, T, S, T, 1, 14>)

DDP_LAUNCH_CONVOLUTIONS(float, float);
DDP_LAUNCH_CONVOLUTIONS(double, double);
DDP_LAUNCH_CONVOLUTIONS(float, Bf16);

}  // namespace ddp::train::kernels::device
