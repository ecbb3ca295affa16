#include "apps/train/world/agree_on_choice.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "base/safe_text.h"

namespace ddp::train {

namespace {

constexpr const char* kChoiceKey = "choice";
/// The deciding rank may serve the store, so it leaves after an error only when the others have read it, or
/// when one of them does not answer for so long.
constexpr std::chrono::milliseconds kReadTime{2'000};

std::string ability_key(int rank) {
  return "ability/" + std::to_string(rank);
}
std::string read_key(int rank) {
  return "choice-read/" + std::to_string(rank);
}
std::string rank_text(int rank) {
  return "rank " + std::to_string(rank);
}

Result<RunChoice> collect_and_choose(const ChoiceRanks& ranks, PeerDirectory& directory,
                                     const TrainOptions& options) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  std::vector<RankAbility> all;
  const Clock::time_point deadline = Clock::now() + ranks.timeout;
  for (int rank = 0; rank < ranks.world_size; ++rank) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    const auto text = directory.find(ability_key(rank), std::max(left, milliseconds(1)));
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
    if (!choice) (void)directory.share(read_key(ranks.rank), "");
    return choice;
  }
  auto choice = decide(ranks, directory, options, held);
  if (auto shared = directory.share(kChoiceKey, choice ? to_text(*choice) : to_text(choice.error())); !shared)
    return named(shared.error());
  for (int rank = 0; !choice && rank < ranks.world_size; ++rank) {
    if (rank != ranks.rank && !directory.find(read_key(rank), kReadTime)) break;
  }
  return choice;
}

void refuse_choice(const ChoiceRanks& ranks, PeerDirectory& directory, const std::string& reason) {
  RankAbility ability;
  ability.refusal = reason;
  (void)directory.share(ability_key(ranks.rank), to_text(ability));
}

}  // namespace ddp::train
