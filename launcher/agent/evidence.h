#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/exit_status.h"
#include "base/unique_fd.h"
#include "launcher/agent_core/kernel_evidence.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Gathers on a node what tells more of a worker's bad end than its exit status: the kernel's memory killer,
/// errors of the NVIDIA driver, the file that `@record` writes. For one attempt at a time. Nothing is read
/// before the attempt's workers are gone, so neither the news of a failure nor a stop waits for it; what this
/// node does not let us read is left out. Loop thread only.
class EvidenceCollector {
 public:
  using Clock = std::chrono::steady_clock;
  using SendEvidence = std::function<void(const rendezvous::WorkerEvidence&)>;

  /// `disk`: reads error files, which may lie on a disk that hangs.
  EvidenceCollector(asio::any_io_executor executor, BlockingCalls& disk)
      : executor_(std::move(executor)), disk_(disk) {}

  /// The workers of an attempt are about to start: what the kernel says from now on may be about them.
  /// `error_files` are theirs, in the order of ranks from `first_rank`; they may not exist.
  void begin(std::uint32_t attempt, std::uint32_t first_rank, std::vector<std::string> error_files);
  void worker_started(pid_t pid);  ///< all of a node live in one memory cgroup: the first is looked at, soon
  void worker_ended(std::uint32_t rank, pid_t pid, const ExitStatus& status);
  /// A SIGKILL after `time` is our own.
  void kills_from(Clock::time_point time);
  bool any() const { return !ends_.empty(); }  ///< some worker of the attempt has ended badly

  /// After the end of all workers, before their error files are removed. Calls `send` for each bad end of
  /// which there is something to tell. Reads in slices: other handlers of the loop run in between.
  Awaitable<> collect(SendEvidence send);

 private:
  struct AbnormalExit {
    std::uint32_t rank = 0;
    pid_t pid = 0;
    bool killed = false;      ///< SIGKILL, and not ours
    bool terminated = false;  ///< SIGTERM, as a rule ours: only the file may tell more
  };
  void read_kernel_log(std::uint64_t now_us);
  void find_memory_group();
  void add_victim(const OomVictim& victim, std::string line);
  std::string oom_in_log(pid_t pid) const;
  std::string xids_of(const AbnormalExit& end) const;
  Awaitable<std::map<std::uint32_t, std::string>> read_error_files();
  void report_oom(std::vector<rendezvous::WorkerEvidence>& evidence) const;

  asio::any_io_executor executor_;
  BlockingCalls& disk_;
  std::uint32_t attempt_ = 0;
  std::uint32_t first_rank_ = 0;
  std::vector<std::string> error_files_;
  UniqueFd kernel_log_;  ///< /dev/kmsg behind its last record at `begin`; empty: not readable
  bool more_in_log_ = false;
  pid_t a_worker_ = 0;
  std::string memory_events_;    ///< file with the counter of the workers' memory cgroup; empty: none
  std::uint64_t oom_kills_ = 0;  ///< its value at the start
  std::optional<Clock::time_point> kills_from_;
  std::vector<AbnormalExit> ends_;
  bool only_terminated_ = true;                             ///< all of ends_
  std::vector<std::pair<OomVictim, std::string>> victims_;  ///< with the kernel's line
  std::vector<std::string> xids_;
};

}  // namespace ddp::launcher
