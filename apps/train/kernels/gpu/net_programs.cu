#include "apps/train/kernels/gpu/device_launch.h"
#include "apps/train/kernels/gpu/net_programs.h"

namespace ddp::train::kernels::device {

// The forward passes of DeviceConvBlock, and the gradient toward its input.
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

// The launches of both models besides the convolutions, for activations that are stored as S.
#define DDP_LAUNCH_STORED_AS(T, S)                                                                       \
  DDP_LAUNCH(Pool<T, 28, 16, S>);                                                                        \
  DDP_LAUNCH(WithLast<PoolSums<T, 28, 16, S>, NormGradientSums<T, 16, 256>>);                            \
  DDP_LAUNCH(PoolGradient<T, 14, 32, S>);                                                                \
  DDP_LAUNCH(WithLast<Head<T, 14, 32, S>, BodyPair<NormGradientSums<T, 32, 256>, ScoreTotals<T, 256>>>); \
  DDP_LAUNCH(HeadGradient<T, S>);                                                                        \
  DDP_LAUNCH(WeightGradient<T, 28, 1, 16, 5, 7, PooledGradient<T, 28, 16, S>>);                          \
  DDP_LAUNCH(WeightGradient<T, 14, 16, 32, 1, 1, DenseGradient<T, 14, 32>, S>);                          \
  DDP_LAUNCH(Gemm<T, S, S>);                                                                             \
  DDP_LAUNCH(ColumnSums<T, S>)
DDP_LAUNCH_STORED_AS(float, float);
DDP_LAUNCH_STORED_AS(double, double);
DDP_LAUNCH_STORED_AS(float, Bf16);
DDP_LAUNCH(Gemm<float, Bf16, Bf16, Bf16>);
DDP_LAUNCH(FinishProduct<float>);
DDP_LAUNCH(FinishProduct<float, Bf16>);
DDP_LAUNCH(FinishProduct<float, Bf16, Bf16>);

#define DDP_LAUNCH_COMPUTED_IN(T)                           \
  DDP_LAUNCH(Gather<T>);                                    \
  DDP_LAUNCH(AddVector<T>);                                 \
  DDP_LAUNCH(WithLast<SoftmaxLoss<T>, ScoreTotals<T, 64>>); \
  DDP_LAUNCH(WithLast<GradientCheck<T>, StepDecision<T>>)
DDP_LAUNCH_COMPUTED_IN(float);
DDP_LAUNCH_COMPUTED_IN(double);

}  // namespace ddp::train::kernels::device
