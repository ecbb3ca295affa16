#pragma once

#include <cstddef>
#include <memory>

#include "apps/train/model/model.h"
#include "base/result.h"

namespace ddp::train {

/// Whether this build and this machine can train on a GPU; kUsage with the reason: "this build has no GPU
/// code …", "no usable NVIDIA GPU: cudaGetDeviceCount said …". Fast, and touches no GPU's memory.
Result<> can_use_gpu();

/// The GPU's kernels count in int.
inline constexpr std::size_t kMostGpuParameters = 2'000'000'000;

struct DeviceModelShape {
  int mlp_width = 0, mlp_depth = 0;  ///< of an Mlp
  int max_batch = 1;
  bool bf16 = false;  ///< activations and the weights that kernels read are stored so; T is float
};

/// The model of `host` (a ConvNet or an Mlp) that computes on GPU `local_rank` modulo
/// the number of GPUs. Parameters, gradients and running statistics are the host's, as of every Model, and go
/// to the GPU and back in each step, so that any sum and update can be made; its device_steps() make whole
/// steps on the GPU. A call of the GPU that fails later ends in a std::runtime_error. `host` (of at most
/// kMostGpuParameters) gives names and sizes; of batch size 1 it is small.
template <class T>
Result<std::unique_ptr<Model<T>>> make_device_model(std::unique_ptr<Model<T>> host,
                                                    const DeviceModelShape& shape);

}  // namespace ddp::train
