#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/device_launch.h"
#include "apps/train/kernels/gpu/head_body.h"
#include "apps/train/kernels/gpu/norm_pool_body.h"
#include "apps/train/kernels/gpu/update_body.h"

namespace ddp::train::kernels::device {

DDP_LAUNCH(Gather<float>);
DDP_LAUNCH(Gather<double>);
DDP_LAUNCH(
    WithLast<Head<float, 14, 32>, BodyPair<NormGradientSums<float, 32, 256>, ScoreTotals<float, 256>>>);
DDP_LAUNCH(
    WithLast<Head<double, 14, 32>, BodyPair<NormGradientSums<double, 32, 256>, ScoreTotals<double, 256>>>);
DDP_LAUNCH(
    WithLast<Head<float, 14, 32, Bf16>, BodyPair<NormGradientSums<float, 32, 256>, ScoreTotals<float, 256>>>);
DDP_LAUNCH(HeadGradient<float>);
DDP_LAUNCH(HeadGradient<double>);
DDP_LAUNCH(HeadGradient<float, Bf16>);
DDP_LAUNCH(WithLast<SoftmaxLoss<float>, ScoreTotals<float, 64>>);
DDP_LAUNCH(WithLast<SoftmaxLoss<double>, ScoreTotals<double, 64>>);
DDP_LAUNCH(WithLast<GradientCheck<float>, StepDecision<float>>);
DDP_LAUNCH(WithLast<GradientCheck<double>, StepDecision<double>>);

}  // namespace ddp::train::kernels::device
