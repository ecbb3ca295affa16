#include "apps/train/kernels/device/gather_body.h"
#include "apps/train/kernels/device/head_body.h"
#include "apps/train/kernels/device/launch.cuh"
#include "apps/train/kernels/device/update_body.h"

namespace ddp::train::kernels::device {

DDP_LAUNCH(Gather<float>);
DDP_LAUNCH(Gather<double>);
DDP_LAUNCH(Head<float>);
DDP_LAUNCH(Head<double>);
DDP_LAUNCH(HeadGradient<float>);
DDP_LAUNCH(HeadGradient<double>);
DDP_LAUNCH(SoftmaxLoss<float>);
DDP_LAUNCH(SoftmaxLoss<double>);
DDP_LAUNCH(ScoreTotals<float>);
DDP_LAUNCH(ScoreTotals<double>);
DDP_LAUNCH(GradientCheck<float>);
DDP_LAUNCH(GradientCheck<double>);
DDP_LAUNCH(StepDecision<float>);
DDP_LAUNCH(StepDecision<double>);

}  // namespace ddp::train::kernels::device
