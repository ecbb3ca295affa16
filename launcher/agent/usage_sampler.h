#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/child_process.h"
#include "base/unique_fd.h"
#include "launcher/agent_core/machine_text.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Reads the counters of this machine, and of the job's processes: all descendants of this process, or the
/// members of the attempt's control group where it has one. Files of /sys about adapters may block for as
/// long as their device does, and those of a process while it is inside exec. One thread.
class UsageReader {
 public:
  /// `group`: the directory of the attempt's control group; empty: it has none. `root` is a prefix of every
  /// path, "" for the real one.
  explicit UsageReader(std::string group, std::string root = {})
      : group_(std::move(group)), root_(std::move(root)) {}

  UsageCounters read();

 private:
  std::vector<pid_t> processes();
  void read_job(UsageCounters& counters);

  std::string group_;
  std::string root_;
  std::vector<pid_t> known_;  ///< without a group: the descendants at the last walk through /proc
  int walk_in_ = 0;           ///< samples until the next walk
};

/// Samples what the node and its workers use, during one attempt after another (NodeSample). What may block
/// runs on a thread: while it does, there are no samples, and the loop goes on. Loop thread; the owner keeps
/// the object alive until `idle` has returned.
class UsageSampler {
 public:
  using SendSample = std::function<void(const rendezvous::NodeSample&)>;

  /// `directory`: where ddplaunch-nvml is.
  UsageSampler(asio::any_io_executor executor, std::string directory, SendSample send);

  /// The workers of an attempt start; call when `idle`. `env`: their environment, in which the driver's
  /// library is searched. `gpus`: the indices of those that they use; empty: all of the node. `has_gpus`: the
  /// node has any.
  void begin(std::string group, std::vector<std::string> env, std::vector<std::uint32_t> gpus, bool has_gpus);
  /// The attempt is being stopped: ends sampling and the program that asks the driver.
  void stop();
  Awaitable<> idle() { return tasks_.all_ends(); }
  /// ddplaunch-nvml is being started, so that its pid is not known yet.
  bool starting() const { return starting_; }
  /// Children that no other component may reap.
  std::vector<pid_t> pids() const;

 private:
  struct Helper {
    ChildProcess child;
    UniqueFd out;
  };
  static Awaitable<> sample(UsageSampler* self, std::string group);
  static Awaitable<> watch_gpus(UsageSampler* self, std::vector<std::string> env);
  static Result<Helper> start_helper(const std::string& program, const std::vector<std::string>& env);

  asio::any_io_executor executor_;
  const std::string program_;
  SendSample send_;
  std::unique_ptr<BlockingCalls> calls_;  ///< of this attempt; its thread may hang for longer
  GpuSampleLines gpus_;
  ChildProcess helper_;
  asio::posix::stream_descriptor helper_out_;
  asio::steady_timer timer_;
  TaskGroup tasks_;
  bool starting_ = false;
  bool stopped_ = true;
};

}  // namespace ddp::launcher
