#include "apps/train/health/checks/health_pattern_body.h"
#include "apps/train/kernels/gpu/launch.cuh"

namespace ddp::train::kernels::device {

DDP_LAUNCH(WritePattern);
DDP_LAUNCH(ReadPattern);

}  // namespace ddp::train::kernels::device
