#include <string>

#include "apps/train/gpu/device_model.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/model/mlp.h"
#include "apps/train/options/options.h"

namespace ddp::train {

std::string gpu_option(const TrainOptions& options) {
  if (options.dtype == Dtype::kBfloat16) return "--dtype bfloat16";
  return options.matmul_precision == MatmulPrecision::kHigh ? "--matmul-precision high" : "";
}

std::string device_obstacle(const TrainOptions& options) {
  if (options.sync_bn)
    return "--sync-bn cannot be combined with --device gpu: the GPU normalizes by its own rank's batch";
  if (options.model == ModelKind::kMlp &&
      Mlp<float>::parameters_of(options.mlp_width, options.mlp_depth) > kMostGpuParameters) {
    return "--device gpu supports at most 2000000000 parameters; make --mlp-width or --mlp-depth "
           "smaller";
  }
  return "";
}

std::string contradiction(const TrainOptions& options, int world_size) {
  if (options.zero && options.sync_every_inter > 1) {
    return "--zero 1 cannot be combined with --sync-every-inter: nodes with different weights cannot share "
           "one optimizer "
           "state";
  }
  if (options.rejoin && options.zero) {
    return "--on-peer-loss rejoin cannot be combined with --zero 1: a lost rank's part of the optimizer's "
           "state "
           "has no copy";
  }
  if (options.share_gpu && options.comm != CommKind::kNccl) return "--share-gpu requires --comm nccl";
  if (options.sync_bn && options.sync_every_inter > 1)
    return "--sync-bn cannot be combined with --sync-every-inter: SyncBN needs all ranks in every step";
  if (options.sync_bn && options.model == ModelKind::kMlp)
    return "--sync-bn: --model mlp has no batch normalization";
  if (options.checkpoint_every % static_cast<std::uint64_t>(options.sync_every_inter) != 0) {
    return "--checkpoint-every must be a multiple of --sync-every-inter: between two averages the nodes "
           "differ";
  }
  if (options.resume == "auto" && options.checkpoint_dir.empty())
    return "--resume auto requires --checkpoint-dir";
  if (!options.resume.empty() && !options.init_from.empty())
    return "--resume and --init-from exclude each other: both set the initial weights";
  if (options.inject_nan && options.inject_nan->rank >= world_size) {
    return "--inject-nan names rank " + std::to_string(options.inject_nan->rank) + " of " +
           std::to_string(world_size);
  }
  const std::string gpu_only = gpu_option(options);
  if (!gpu_only.empty() && options.device == DeviceKind::kCpu) return gpu_only + " requires --device gpu";
  if (!gpu_only.empty() && options.device == DeviceKind::kAuto) {
    const bool host_transport = options.comm == CommKind::kTcp || options.comm == CommKind::kShm;
    if (host_transport && world_size > 1)
      return gpu_only + " requires a GPU; remove --comm, or give --device gpu";
    if (std::string obstacle = device_obstacle(options); !obstacle.empty()) return obstacle;
  }
  if (options.device == DeviceKind::kGpu) {
    if (std::string obstacle = device_obstacle(options); !obstacle.empty()) return obstacle;
    if (const auto can = can_use_gpu(); !can) return "--device gpu: " + can.error().text;
  }
  if (kernels::find_kernels<float>(options.kernels) == nullptr) {
    std::string names;
    for (const auto* one : kernels::all_kernels<float>())
      names += std::string(names.empty() ? "" : ", ") + one->name;
    return "--kernels " + options.kernels + ": this processor runs " + names + " and no other";
  }
  return "";
}

}  // namespace ddp::train
