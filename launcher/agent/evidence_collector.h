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
#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/agent_core/agent_core.h"
#include "launcher/agent_core/machine_text.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Gathers on a node the causes of a worker's abnormal exit beyond its exit status: the kernel's OOM killer,
/// errors of the NVIDIA driver, the file that `@record` writes. Serves one attempt at a time. Reads nothing
/// before the attempt's workers are gone, so it delays neither the report of a failure nor a stop. Omits what
/// this node does not let us read. Loop thread only.
class EvidenceCollector {
 public:
  using Clock = std::chrono::steady_clock;
  using SendEvidence = std::function<void(const rendezvous::WorkerEvidence&)>;

  /// `disk` reads and removes the error files, which may lie on a hanging disk.
  EvidenceCollector(asio::any_io_executor executor, BlockingCalls& disk)
      : executor_(std::move(executor)), disk_(disk) {}

  /// Call before the workers of an attempt start: later kernel messages may concern them. `error_files` are
  /// the workers' files, in the order of ranks from `first_rank`; they may not exist. A survivor among
  /// `processes` keeps the file that it has, the other files of the previous attempt are removed.
  void begin(std::uint32_t attempt, std::uint32_t first_rank, std::vector<std::string> error_files,
             const WorkerProcesses& processes);
  void worker_started(pid_t pid);  ///< reads the memory cgroup soon after the first; all share it
  void worker_ended(std::uint32_t rank, pid_t pid, const ExitStatus& status);
  /// SIGKILLs after `time` come from the agent.
  void kills_from(Clock::time_point time);
  bool any() const { return !ends_.empty(); }  ///< some worker of the attempt exited abnormally

  /// Call after the end of workers. Calls `send` for each abnormal exit with evidence. Reads in slices, so
  /// that other handlers of the loop run in between.
  Awaitable<> collect(SendEvidence send);
  /// Call after the end of the attempt. Waits only briefly, because the disk may hang.
  Awaitable<> remove_files() { return remove(this, std::exchange(error_files_, {})); }

 private:
  struct AbnormalExit {
    std::uint32_t rank = 0;
    pid_t pid = 0;
    bool killed = false;      ///< by SIGKILL, not from the agent
    bool lost_child = false;  ///< exit 137: a shell or container client whose program a SIGKILL ended
    bool terminated = false;  ///< by SIGTERM, usually the agent's: only the file may add evidence
  };
  /// A counter of OOM kills in a file of the kernel.
  struct OomCounter {
    std::string file;         ///< empty: none
    std::uint64_t start = 0;  ///< its value when the first worker had started
    static OomCounter read(std::string file);
    std::uint64_t now() const;
    std::string text() const;  ///< " (oom_kill in FILE went from 0 to 1)"
  };
  void read_kernel_log(std::uint64_t now_us);
  void find_memory_group();
  void add_victim(const OomVictim& victim, std::string line);
  std::string oom_in_log(pid_t pid) const;
  std::string xids_of(const AbnormalExit& end) const;
  Awaitable<std::map<std::uint32_t, std::string>> read_error_files();
  static Awaitable<> remove(EvidenceCollector* self, std::vector<std::string> files);
  void report_oom(std::vector<rendezvous::WorkerEvidence>& evidence) const;

  asio::any_io_executor executor_;
  BlockingCalls& disk_;
  std::uint32_t attempt_ = 0;
  std::uint32_t first_rank_ = 0;
  std::vector<std::string> error_files_;
  UniqueFd kernel_log_;  ///< /dev/kmsg after its last record at `begin`; empty: not readable
  bool more_in_log_ = false;
  pid_t a_worker_ = 0;
  OomCounter group_kills_;    ///< in the workers' memory cgroup
  OomCounter machine_kills_;  ///< on the whole machine
  std::optional<Clock::time_point> kills_from_;
  std::vector<AbnormalExit> ends_;
  bool only_terminated_ = true;                             ///< true for all of ends_
  std::vector<std::pair<OomVictim, std::string>> victims_;  ///< with the kernel's line
  std::vector<std::string> xids_;
};

/// Memory of the agent in which each of its workers records its collectives, as `train` does
/// (rendezvous::FlightRecorderMemory). It is read when workers have ended or left an attempt, however they
/// ended. Loop thread.
class FlightRecorderBoard {
 public:
  /// Makes room for `workers` workers and keeps existing contents. Error: kSystem.
  Result<> make_room(std::uint32_t workers);
  /// DDPLAUNCH_COLLECTIVES of the workers: a file that processes of our user can open while the agent is
  /// alive. It holds one FlightRecorderMemory for each local rank, kStride bytes apart. Empty: there is no
  /// room.
  std::string path() const;

  /// The worker's open operations and the last finished one, as dump_text(). Empty if the worker has written
  /// nothing in that attempt as that rank.
  std::string text(std::uint32_t local_rank, std::uint32_t rank, std::uint32_t attempt) const;

 private:
  UniqueFd memory_;
  std::uint32_t room_ = 0;
};

}  // namespace ddp::launcher
