#include "apps/train/world/agree_on_choice.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "base/safe_text.h"

namespace ddp::train {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kChoiceKey = "choice";
/// A rank that serves the store stays for so long after an error.
constexpr milliseconds kLeaveTime{2'000};

std::string ability_key(int rank) {
  return "ability/" + std::to_string(rank);
}
std::string left_key(int rank) {
  return "left/" + std::to_string(rank);
}
std::string rank_text(int rank) {
  return "rank " + std::to_string(rank);
}

milliseconds time_until(Clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(1));
}

Result<RunChoice> collect_and_choose(const ChoiceRanks& ranks, PeerDirectory& directory,
                                     const TrainOptions& options) {
  std::vector<RankAbility> all;
  const Clock::time_point deadline = Clock::now() + ranks.timeout;
  for (int rank = 0; rank < ranks.world_size; ++rank) {
    const auto text = directory.find(ability_key(rank), time_until(deadline));
    if (!text && text.error().code == ErrorCode::kTimeout) {
      return Error{ErrorCode::kTimeout, rank_text(ranks.rank) + ": " + rank_text(rank) +
                                            " has not reached the store in time; check that it started"};
    }
    if (!text) return within(rank_text(ranks.rank), text.error());
    all.push_back(read_rank_ability(*text));
    if (!all.back().refusal.empty()) return Error{ErrorCode::kUsage, all.back().refusal};
  }
  return choose_run(options, all);
}

Result<RunChoice> decide(const ChoiceRanks& ranks, PeerDirectory& directory, TrainOptions options,
                         const std::optional<RunChoice>& held) {
  if (held && (held->device == DeviceKind::kCpu || held->comm != CommKind::kAuto)) return *held;
  if (held) options.device = held->device;
  return collect_and_choose(ranks, directory, options);
}

}  // namespace

Result<RunChoice> agree_on_choice(const ChoiceRanks& ranks, PeerDirectory& directory,
                                  const TrainOptions& options, const RankAbility& ability,
                                  const std::optional<RunChoice>& held) {
  const auto named = [&ranks](const Error& error) { return within(rank_text(ranks.rank), error); };
  if (auto shared = directory.share(ability_key(ranks.rank), to_text(ability)); !shared)
    return named(shared.error());
  if (ranks.rank != ranks.deciding_rank) {
    // The deciding rank waits for all ranks first, and publishes also that it waited in vain.
    const auto text = directory.find(kChoiceKey, 2 * ranks.timeout);
    if (!text) return named(text.error());
    auto choice = read_run_choice(*text);
    if (!choice) leave_store(ranks, directory, false);
    return choice;
  }
  auto choice = decide(ranks, directory, options, held);
  if (auto shared = directory.share(kChoiceKey, choice ? to_text(*choice) : to_text(choice.error())); !shared)
    return named(shared.error());
  if (!choice) leave_store(ranks, directory, true);  // it may serve the store
  return choice;
}

Result<> check_own_gpu(const ChoiceRanks& ranks, PeerDirectory& directory, const RankAbility& ability,
                       std::pair<int, int> node) {
  if (ability.gpu.empty()) return {};
  for (int rank = node.first; rank < node.second; ++rank) {
    if (rank == ranks.rank) continue;
    const auto text = directory.find(ability_key(rank), ranks.timeout);
    if (!text) return within(rank_text(ranks.rank), text.error());
    if (read_rank_ability(*text).gpu != ability.gpu) continue;
    return Error{ErrorCode::kUsage, rank_text(ranks.rank) + " on " + ability.host +
                                        ": its GPU is also that of " + rank_text(rank) +
                                        ", and the job uses NCCL; give it a GPU of its own"};
  }
  return {};
}

void leave_store(const ChoiceRanks& ranks, PeerDirectory& directory, bool waits) {
  (void)directory.share(left_key(ranks.rank), "");
  const Clock::time_point deadline = Clock::now() + kLeaveTime;
  for (int rank = 0; waits && rank < ranks.world_size; ++rank) {
    if (!directory.find(left_key(rank), time_until(deadline))) break;
  }
}

void refuse_choice(const ChoiceRanks& ranks, PeerDirectory& directory, const std::string& reason) {
  RankAbility ability;
  ability.refusal = reason;
  (void)directory.share(ability_key(ranks.rank), to_text(ability));
}

}  // namespace ddp::train
