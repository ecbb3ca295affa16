#include "apps/train/health/checks/health_kernels.h"
#include "apps/train/kernels/gpu/device_launch.h"

namespace ddp::train::kernels::device {

DDP_LAUNCH(WritePattern);
DDP_LAUNCH(ReadPattern);
DDP_LAUNCH(CompareProduct);

}  // namespace ddp::train::kernels::device
