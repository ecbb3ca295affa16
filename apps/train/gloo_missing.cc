#include "apps/train/gloo_communicator.h"

namespace ddp::train {

Result<std::unique_ptr<Communicator>> connect_gloo(int, int, std::chrono::milliseconds, PeerDirectory&) {
  return Error{ErrorCode::kUsage,
               "--comm gloo: this train was built without Gloo; a build with cmake -DDDP_GLOO=ON has it"};
}

}  // namespace ddp::train
