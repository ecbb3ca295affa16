#pragma once

#include <memory>

#include "apps/train/collectives/nccl/nccl_device.h"

namespace ddp::train {

/// Which of `gpus` a rank takes: the one of its local rank; the only one that CUDA_VISIBLE_DEVICES leaves it;
/// with `shared` they are dealt out in turn. Errors (kUsage) say what is missing.
Result<int> choose_gpu(int gpus, int local_rank, bool restricted, bool shared);

/// That GPU, as this process sees it. `restricted`: CUDA_VISIBLE_DEVICES is set. An error (kUsage) without a
/// GPU or driver: "needs an NVIDIA GPU: cudaGetDeviceCount said …".
Result<int> find_gpu(int local_rank, bool restricted, bool shared);
Result<std::unique_ptr<NcclDevice>> open_cuda_device(int gpu);

}  // namespace ddp::train
