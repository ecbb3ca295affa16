#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "apps/train/collectives/communicator.h"
#include "apps/train/options/options.h"
#include "base/result.h"

namespace ddp::train {

/// GPU and NCCL support of one rank. Each rank publishes its own, so that all ranks make the same choice.
struct RankAbility {
  std::string host;
  std::string gpu_obstacle;   ///< why this rank has no GPU of its own; empty: it has one
  std::string nccl_obstacle;  ///< why this rank cannot load NCCL; empty: it can
  std::string gpu;            ///< identity of its GPU; empty: none, or others may use it (--share-gpu)
  std::string nccl;           ///< "NCCL 2.28.9 (/usr/lib/x86_64-linux-gnu/libnccl.so.2)"; empty: not loaded
  std::string refusal;        ///< why this rank has left before the choice; empty: it takes part
  std::string visible;        ///< the GPUs that it sees, usable or not: "8 GPUs"; empty: none
};

/// The device and the transport of a training, equal on all ranks.
struct RunChoice {
  DeviceKind device = DeviceKind::kCpu;
  CommKind comm = CommKind::kAuto;
  /// Reason why no GPU is used: "rank 1 on gpu02: no NVIDIA driver is installed". Empty: GPUs are used, or
  /// the options fix the choice.
  std::string obstacle;
};

/// Returns whether the options leave the device or its transport to the ranks.
bool leaves_choice(const TrainOptions& options);

/// Chooses for --device auto and --comm auto. If any rank sees a GPU, all ranks use GPUs and NCCL: a GPU that
/// cannot be used is an error, because a test that silently ran on the CPU would prove nothing. If none sees
/// one, the CPU is used. A world of one needs no NCCL. `ranks` holds all ranks in their order. Errors
/// (kUsage): a visible GPU or NCCL cannot be used, gpu_option() without a GPU, --comm nccl with two ranks on
/// one GPU.
Result<RunChoice> choose_run(const TrainOptions& options, std::span<const RankAbility> ranks);

/// Texts of one line per field, for the store.
std::string to_text(const RankAbility& ability);
RankAbility read_rank_ability(std::string_view text);
std::string to_text(const RunChoice& choice);
/// A text for ranks that wait for a choice that could not be made.
std::string to_text(const Error& error);
/// Returns the choice, or the error (kUsage or kTimeout).
Result<RunChoice> read_run_choice(std::string_view text);

/// Returns the line that tells the user what was chosen: "device cpu, shm+tcp (rank 1 on gpu02: no NVIDIA
/// driver is installed)". `transport` is CommWorld::backend, or the name of the NCCL library.
std::string choice_line(const RunChoice& choice, const std::string& transport);

/// Returns the same choice, or the same error, on all ranks. `deciding_rank` collects the abilities and
/// publishes the choice. `held` is the choice of an earlier attempt whose state this rank holds: its device
/// is kept, and only a transport that was left open is chosen again. Errors: kUsage (the options cannot be
/// met, or a rank has refused them), kTimeout (a rank did not come), the directory's.
Result<RunChoice> agree_on_choice(const GroupConfig& ranks, int deciding_rank, PeerDirectory& directory,
                                  const TrainOptions& options, const RankAbility& ability,
                                  const std::optional<RunChoice>& held);

/// Returns kUsage if another rank of the node has the GPU of this rank. For a rank that joins a held choice
/// of NCCL, which was made without it. `node`: its first rank, and the one after its last.
Result<> check_own_gpu(const GroupConfig& ranks, PeerDirectory& directory, const RankAbility& ability,
                       std::pair<int, int> node);

/// Call after an error, before the process ends. With `waits`, which a rank that serves the store needs, it
/// returns when all others have called it, too, or after 2 s: until then they may read the reason.
void leave_store(const GroupConfig& ranks, PeerDirectory& directory, bool waits);

/// Lets the deciding rank end at once with `reason`, because this rank leaves before the choice.
void refuse_choice(const GroupConfig& ranks, PeerDirectory& directory, const std::string& reason);

}  // namespace ddp::train
