#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "apps/train/collectives/peer_directory.h"
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

/// Lets the deciding rank end at once with `reason`, because this rank leaves before the choice.
void refuse_choice(const ChoiceRanks& ranks, PeerDirectory& directory, const std::string& reason);

}  // namespace ddp::train
