#include <string>

#include "apps/train/gpu/device_model.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/model/mlp.h"
#include "apps/train/options/options.h"

namespace ddp::train {

std::string contradiction(const TrainOptions& options, int world_size) {
  if (options.zero && options.sync_every_inter > 1) {
    return "--zero 1 and --sync-every-inter do not go together: nodes that differ cannot share one optimizer "
           "state";
  }
  if (options.rejoin && options.zero) {
    return "--on-peer-loss rejoin and --zero 1 do not go together: a dead rank's part of the optimizer's "
           "state "
           "exists nowhere else";
  }
  if (options.share_gpu && options.comm != CommKind::kNccl)
    return "--share-gpu is about NCCL, which refuses two ranks on one GPU: write --comm nccl";
  if (options.sync_bn && options.sync_every_inter > 1)
    return "--sync-bn and --sync-every-inter do not go together: SyncBN talks to all ranks in every step";
  if (options.sync_bn && options.model == ModelKind::kMlp)
    return "--sync-bn: the mlp has no batch normalisation";
  if (options.optimizer.beta1 >= 1 || options.optimizer.beta2 >= 1)
    return "--beta1 and --beta2 must be below 1: AdamW divides by what is left to 1";
  if (options.checkpoint_every % static_cast<std::uint64_t>(options.sync_every_inter) != 0) {
    return "--checkpoint-every must be a multiple of --sync-every-inter: between two averages the nodes "
           "differ";
  }
  if (options.resume == "auto" && options.checkpoint_dir.empty())
    return "--resume auto looks into --checkpoint-dir; give one";
  if (!options.resume.empty() && !options.init_from.empty())
    return "--resume and --init-from both say where the weights come from; give one";
  if (options.inject_nan && options.inject_nan->rank >= world_size) {
    return "--inject-nan names rank " + std::to_string(options.inject_nan->rank) + " of " +
           std::to_string(world_size);
  }
  if (options.dtype == Dtype::kBfloat16 && options.device != DeviceKind::kGpu)
    return "--dtype bfloat16 is what a GPU can do: add --device gpu, or leave it out";
  if (options.device == DeviceKind::kGpu) {
    if (options.sync_bn)
      return "--sync-bn and --device gpu do not go together: the GPU normalises by its own rank's batch";
    if (const auto can = can_use_gpu(); !can) return "--device gpu: " + can.error().text;
    if (options.model == ModelKind::kMlp &&
        Mlp<float>::parameters_of(options.mlp_width, options.mlp_depth) > kMostGpuParameters) {
      return "--device gpu takes models of at most 2000000000 parameters; make --mlp-width or --mlp-depth "
             "smaller";
    }
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
