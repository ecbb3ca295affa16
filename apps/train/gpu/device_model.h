#pragma once

#include <cstddef>
#include <memory>

#include "apps/train/model/model.h"
#include "base/result.h"

namespace ddp::train {

/// Succeeds if this build and this machine can train on a GPU. Else the error is kUsage with the reason:
/// "this build has no GPU code …" or "no usable NVIDIA GPU: …" (count_gpus()). Fast, and touches no
/// GPU memory.
Result<> can_use_gpu();
/// Returns the identity of the GPU of `local_rank`, which other ranks compare with theirs:
/// CUDA_VISIBLE_DEVICES may give one GPU to several. Errors as above, or choose_gpu()'s.
Result<std::string> own_gpu(int local_rank);

/// The GPU kernels count parameters in int.
inline constexpr std::size_t kMostGpuParameters = 2'000'000'000;

struct DeviceModelShape {
  int mlp_width = 0, mlp_depth = 0;  ///< only for an Mlp
  int max_batch = 1;
  bool bf16 = false;  ///< stores activations and the weights that kernels read as bf16; T is float
  bool tf32 = false;  ///< an Mlp's products may use TF32
};

/// Returns the model of `host` (a ConvNet or an Mlp), computed on GPU `local_rank` modulo the number of GPUs.
/// Parameters, gradients and running statistics stay on the host, as in every Model. Each step copies them to
/// the GPU and back, so any sum and any update can be made. The model's device_steps() make whole steps on
/// the GPU. While they have the state (from take() to give()), evaluate() uses theirs. A GPU call that fails
/// later throws std::runtime_error. `host` gives names and sizes: it has at most kMostGpuParameters, and
/// batch size 1 keeps it small.
template <class T>
Result<std::unique_ptr<Model<T>>> make_device_model(std::unique_ptr<Model<T>> host,
                                                    const DeviceModelShape& shape);

}  // namespace ddp::train
