#include "apps/train/health/checks/health_pattern_body.h"
#include "apps/train/health/checks/health_product_body.h"
#include "apps/train/kernels/gpu/launch.cuh"

namespace ddp::train::kernels::device {

DDP_LAUNCH(WritePattern);
DDP_LAUNCH(ReadPattern);
DDP_LAUNCH(CompareProduct);

}  // namespace ddp::train::kernels::device
