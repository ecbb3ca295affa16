#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "apps/train/collectives/communicator.h"
#include "apps/train/options/options.h"
#include "apps/train/world/run_choice.h"
#include "base/result.h"

namespace ddp::train {

/// The ranks that make one choice, as one of them sees them.
struct ChoiceRanks {
  int rank = 0;
  int world_size = 1;
  int deciding_rank = 0;                       ///< collects the abilities, and publishes the choice
  std::chrono::milliseconds timeout{120'000};  ///< for ranks that start late
};

/// Returns the same choice, or the same error, on all ranks. `held` is the choice of an earlier attempt whose
/// state this rank holds: its device is kept, and only a transport that was left open is chosen again.
/// Errors: kUsage (the options cannot be met, or a rank has refused them), kTimeout (a rank did not come),
/// the directory's.
Result<RunChoice> agree_on_choice(const ChoiceRanks& ranks, PeerDirectory& directory,
                                  const TrainOptions& options, const RankAbility& ability,
                                  const std::optional<RunChoice>& held);

/// Returns kUsage if another rank of the node has the GPU of this rank. For a rank that joins a held choice
/// of NCCL, which was made without it. `node`: its first rank, and the one after its last.
Result<> check_own_gpu(const ChoiceRanks& ranks, PeerDirectory& directory, const RankAbility& ability,
                       std::pair<int, int> node);

/// Call after an error, before the process ends. With `waits`, which a rank that serves the store needs, it
/// returns when all others have called it, too, or after 2 s: until then they may read the reason.
void leave_store(const ChoiceRanks& ranks, PeerDirectory& directory, bool waits);

/// Lets the deciding rank end at once with `reason`, because this rank leaves before the choice.
void refuse_choice(const ChoiceRanks& ranks, PeerDirectory& directory, const std::string& reason);

}  // namespace ddp::train
