#include "apps/train/world/run_choice.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "base/text.h"

namespace ddp::train {

namespace {

constexpr std::string RankAbility::*kFields[] = {
    &RankAbility::host, &RankAbility::gpu_obstacle, &RankAbility::nccl_obstacle, &RankAbility::gpu,
    &RankAbility::nccl, &RankAbility::refusal,      &RankAbility::visible};

/// What keeps the ranks from GPUs or NCCL, and what to do; an empty text: nothing.
struct Obstacle {
  std::string text;
  std::string remedy = {};
};
constexpr const char* kOneEach = "start one rank per GPU";

/// Names the first rank with an obstacle, and how many more there are.
std::string first_obstacle(std::span<const RankAbility> ranks, std::string RankAbility::*obstacle) {
  std::string text;
  std::size_t more = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string& why = ranks[rank].*obstacle;
    if (why.empty()) continue;
    if (!text.empty()) {
      ++more;
    } else {
      text = concat("rank ", rank, " on ", ranks[rank].host, ": ", why);
    }
  }
  if (more == 0) return text;
  return text + "; and " + counted(more, "more rank");
}

std::string version_of(const RankAbility& ability) {
  return ability.nccl.substr(0, ability.nccl.find(" ("));
}

/// Names the first rank whose GPU an earlier rank has too.
std::string shared_gpu(std::span<const RankAbility> ranks) {
  std::map<std::string, std::size_t> owners;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].gpu.empty()) continue;
    const auto [owner, is_first] = owners.emplace(ranks[rank].gpu, rank);
    if (is_first) continue;
    return concat("rank ", rank, " on ", ranks[rank].host, ": its GPU is also that of rank ", owner->second);
  }
  return "";
}

/// Names the first rank that sees a GPU: "rank 0 on gpu01 sees 8 GPUs".
std::string first_visible(std::span<const RankAbility> ranks) {
  const auto rank = std::ranges::find_if(ranks, [](const RankAbility& one) { return !one.visible.empty(); });
  if (rank == ranks.end()) return "";
  return concat("rank ", rank - ranks.begin(), " on ", rank->host, " sees ", rank->visible);
}

/// Names the first rank without a GPU of its own.
Obstacle gpu_obstacle(std::span<const RankAbility> ranks) {
  if (std::string text = first_obstacle(ranks, &RankAbility::gpu_obstacle); !text.empty())
    return {text, "give each rank a GPU that works"};
  return {shared_gpu(ranks), kOneEach};
}

Obstacle nccl_obstacle(std::span<const RankAbility> ranks) {
  if (ranks.size() < 2) return {};
  if (std::string text = first_obstacle(ranks, &RankAbility::nccl_obstacle); !text.empty())
    return {text, "install NCCL for every rank"};
  if (std::string text = shared_gpu(ranks); !text.empty()) return {text, kOneEach};
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (version_of(ranks[rank]) == version_of(ranks[0])) continue;
    return {concat("rank ", rank, " on ", ranks[rank].host, " has ", version_of(ranks[rank]), ", rank 0 on ",
                   ranks[0].host, " has ", version_of(ranks[0])),
            "install the same version on all nodes, or name its file by DDPLAUNCH_NCCL_LIBRARY"};
  }
  return {};
}

/// Returns why these options need the CPU; empty: they do not. A world of one has no transport.
Obstacle cpu_reason(const TrainOptions& options, std::size_t ranks) {
  const bool host_transport = options.comm == CommKind::kTcp || options.comm == CommKind::kShm;
  if (host_transport && ranks > 1)
    return {std::string("--comm ") + comm_text(options.comm) + " needs the CPU"};
  if (options.sync_bn) return {"--sync-bn needs the CPU"};
  return {device_obstacle(options)};
}

Error unusable(const Obstacle& obstacle, const std::string& instead) {
  return usage_error(obstacle.text, "; ", obstacle.remedy.empty() ? "" : obstacle.remedy + ", or ", instead);
}

}  // namespace

bool leaves_choice(const TrainOptions& options) {
  return options.device == DeviceKind::kAuto ||
         (options.device == DeviceKind::kGpu && options.comm == CommKind::kAuto);
}

Result<RunChoice> choose_run(const TrainOptions& options, std::span<const RankAbility> ranks) {
  RunChoice choice{options.device, options.comm, ""};
  if (const std::string text = shared_gpu(ranks); options.comm == CommKind::kNccl && !text.empty()) {
    return usage_error("--comm nccl: ", text, "; start one rank per GPU, or use --share-gpu");
  }
  if (options.device == DeviceKind::kAuto) {
    Obstacle obstacle = cpu_reason(options, ranks.size());
    if (obstacle.text.empty()) obstacle = gpu_obstacle(ranks);
    if (obstacle.text.empty() && options.comm == CommKind::kAuto) obstacle = nccl_obstacle(ranks);
    choice.obstacle = obstacle.text;
    choice.device = choice.obstacle.empty() ? DeviceKind::kGpu : DeviceKind::kCpu;
    const std::string gpu_only = gpu_option(options), visible = first_visible(ranks);
    if (choice.device == DeviceKind::kCpu && !gpu_only.empty())
      return usage_error(gpu_only, " requires --device gpu: ", choice.obstacle);
    if (choice.device == DeviceKind::kCpu && !visible.empty())
      return unusable({obstacle.text + ", and " + visible, obstacle.remedy},
                      "use the CPUs with --device cpu");
  }
  if (choice.device == DeviceKind::kGpu && options.comm == CommKind::kAuto && ranks.size() > 1) {
    if (const Obstacle gpus = gpu_obstacle(ranks); !gpus.text.empty())
      return unusable(gpus, "use the CPUs with --device cpu");
    const Obstacle obstacle = nccl_obstacle(ranks);
    if (!obstacle.text.empty()) return unusable(obstacle, "use the slow --comm shm or tcp");
    choice.comm = CommKind::kNccl;
  }
  return choice;
}

std::string to_text(const RankAbility& ability) {
  std::string text;
  for (const auto field : kFields)
    text += one_line(ability.*field) + '\n';
  return text;
}

RankAbility read_rank_ability(std::string_view text) {
  RankAbility ability;
  for (const auto field : kFields)
    ability.*field = take_field(text);
  return ability;
}

std::string to_text(const RunChoice& choice) {
  return std::string(device_text(choice.device)) + '\n' + comm_text(choice.comm) + '\n' +
         one_line(choice.obstacle);
}

std::string to_text(const Error& error) {
  return (error.code == ErrorCode::kUsage ? "usage\n" : "timeout\n") + one_line(error.text);
}

Result<RunChoice> read_run_choice(std::string_view text) {
  const std::string first = take_field(text);
  if (first == "usage") return Error{ErrorCode::kUsage, take_field(text)};
  if (first == "timeout") return Error{ErrorCode::kTimeout, take_field(text)};
  const std::string comm = take_field(text);
  RunChoice choice;
  choice.obstacle = take_field(text);
  for (const auto& [device_word, device] : device_words()) {
    for (const auto& [comm_word, kind] : comm_words()) {
      if (first != device_word || comm != comm_word || device == DeviceKind::kAuto) continue;
      choice.device = device;
      choice.comm = kind;
      return choice;
    }
  }
  return Error{ErrorCode::kProtocol,
               "another rank published a choice of the device that cannot be read; check that "
               "all ranks run the same version of train"};
}

std::string choice_line(const RunChoice& choice, const std::string& transport) {
  std::string line = choice.device == DeviceKind::kGpu ? "device gpu" : "device cpu";
  if (transport != "none") line += ", " + transport;
  return choice.obstacle.empty() ? line : line + " (" + choice.obstacle + ")";
}

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

milliseconds time_until(Clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(1));
}

Result<RunChoice> collect_and_choose(const GroupConfig& ranks, PeerDirectory& directory,
                                     const TrainOptions& options) {
  std::vector<RankAbility> all;
  const Clock::time_point deadline = Clock::now() + ranks.start_timeout;
  for (int rank = 0; rank < ranks.world_size; ++rank) {
    const auto text = DDP_TRY(find_shared(
        directory, ability_key(rank), time_until(deadline), ranks.me(),
        ": " + ranks.rank_text(rank) + " has not reached the store in time; check that it started"));
    all.push_back(read_rank_ability(text));
    if (!all.back().refusal.empty()) return Error{ErrorCode::kUsage, all.back().refusal};
  }
  return choose_run(options, all);
}

Result<RunChoice> decide(const GroupConfig& ranks, PeerDirectory& directory, TrainOptions options,
                         const std::optional<RunChoice>& held) {
  if (held && (held->device == DeviceKind::kCpu || held->comm != CommKind::kAuto)) return *held;
  if (held) options.device = held->device;
  return collect_and_choose(ranks, directory, options);
}

}  // namespace

Result<RunChoice> agree_on_choice(const GroupConfig& ranks, int deciding_rank, PeerDirectory& directory,
                                  const TrainOptions& options, const RankAbility& ability,
                                  const std::optional<RunChoice>& held) {
  const std::string me = ranks.me();
  DDP_TRY(within(me, directory.share(ability_key(ranks.rank), to_text(ability))));
  if (ranks.rank != deciding_rank) {
    // The deciding rank waits for all ranks first, and publishes also that it waited in vain.
    const auto text = DDP_TRY(within(me, directory.find(kChoiceKey, 2 * ranks.start_timeout)));
    auto choice = read_run_choice(text);
    if (!choice) leave_store(ranks, directory, false);
    return choice;
  }
  auto choice = decide(ranks, directory, options, held);
  DDP_TRY(within(me, directory.share(kChoiceKey, choice ? to_text(*choice) : to_text(choice.error()))));
  if (!choice) leave_store(ranks, directory, true);  // it may serve the store
  return choice;
}

Result<> check_own_gpu(const GroupConfig& ranks, PeerDirectory& directory, const RankAbility& ability,
                       std::pair<int, int> node) {
  if (ability.gpu.empty()) return {};
  for (int rank = node.first; rank < node.second; ++rank) {
    if (rank == ranks.rank) continue;
    const auto text = DDP_TRY(within(ranks.me(), directory.find(ability_key(rank), ranks.start_timeout)));
    if (read_rank_ability(text).gpu != ability.gpu) continue;
    return usage_error(ranks.me(), " on ", ability.host, ": its GPU is also that of ", ranks.rank_text(rank),
                       ", and the job uses NCCL; give it a GPU of its own");
  }
  return {};
}

void leave_store(const GroupConfig& ranks, PeerDirectory& directory, bool waits) {
  (void)directory.share(left_key(ranks.rank), "");
  const Clock::time_point deadline = Clock::now() + kLeaveTime;
  for (int rank = 0; waits && rank < ranks.world_size; ++rank) {
    if (!directory.find(left_key(rank), time_until(deadline))) break;
  }
}

void refuse_choice(const GroupConfig& ranks, PeerDirectory& directory, const std::string& reason) {
  RankAbility ability;
  ability.refusal = reason;
  (void)directory.share(ability_key(ranks.rank), to_text(ability));
}

}  // namespace ddp::train
