#include "apps/train/gpu/device_model.h"

namespace ddp::train {

Result<> can_use_gpu() {
  return Error{
      ErrorCode::kUsage,
      "this build has no GPU code: no CUDA compiler was found when it was configured, or -DDDP_CUDA=OFF"};
}

template <class T>
Result<std::unique_ptr<Model<T>>> make_device_model(std::unique_ptr<Model<T>>, const DeviceModelShape&) {
  return can_use_gpu().error();
}

template Result<std::unique_ptr<Model<float>>> make_device_model(std::unique_ptr<Model<float>>,
                                                                 const DeviceModelShape&);
template Result<std::unique_ptr<Model<double>>> make_device_model(std::unique_ptr<Model<double>>,
                                                                  const DeviceModelShape&);

}  // namespace ddp::train
