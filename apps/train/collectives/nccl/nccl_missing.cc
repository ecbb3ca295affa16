#include "apps/train/collectives/nccl/nccl_world.h"

namespace ddp::train {

Result<> nccl_is_here(const NcclWorldConfig&) {
  return Error{
      ErrorCode::kUsage,
      "--comm nccl: this train was built without NCCL; a build on a machine with the CUDA toolkit and "
      "NCCL's header (nccl.h) has it"};
}

Result<NcclGpuMemory> nccl_gpu_memory(int, int, bool) {
  return nccl_is_here({}).error();
}

Result<NcclWorld> connect_nccl(const NcclWorldConfig& config, PeerDirectory&) {
  return nccl_is_here(config).error();
}

bool nccl_is_stuck() {
  return false;
}

}  // namespace ddp::train
