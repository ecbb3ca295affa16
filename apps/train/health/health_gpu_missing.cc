#include "apps/train/health/health_device.h"

namespace ddp::train {

Result<> can_test_gpu() {
  return Error{ErrorCode::kUsage, "this build tests no GPU, only CPUs"};
}

Result<std::unique_ptr<HealthDevice>> open_health_gpu(int) {
  return can_test_gpu().error();
}

}  // namespace ddp::train
