#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "launcher/keeper/process_table.h"
#include "rendezvous/flight_recorder/torch_record.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Parents and children of all processes, at one moment.
class ProcessForest {
 public:
  ProcessForest();  ///< reads /proc: 10 to 20 µs for each process of the machine

  /// `root` and all its descendants, parents first; empty if `root` has ended.
  std::vector<ProcessInfo> tree(pid_t root) const;

 private:
  std::map<pid_t, ProcessInfo> processes_;
  std::multimap<pid_t, pid_t> children_;
};

/// State of a worker, read from /proc without disturbing the worker.
struct ProcessSnapshot {
  pid_t subject = 0;  ///< the process that works: the worker, or the child of a shell that waits
  std::string state;  ///< what its main thread does, as in wait_text
  std::string text;   ///< processes, threads, kernel stacks, sockets; many lines
};

/// Reads from /proc what each thread of the worker waits for. Reads only files without locks that a thread
/// stuck in the kernel may hold (never cmdline, environ, maps), so it cannot hang. Takes a few ms for a
/// process with a hundred threads.
ProcessSnapshot take_snapshot(pid_t leader, const ProcessForest& forest);

/// A live worker.
struct InspectedWorker {
  pid_t pid = 0;
  std::string server;  ///< WorkerSockets::server; empty: none
};
using InspectedWorkers = std::map<std::uint32_t, InspectedWorker>;  ///< by rank

/// Finds out on a node where its workers hang. Reports the state of each worker from /proc first, then what
/// PyTorch's worker servers say, then stacks from py-spy and gdb if installed, and NCCL's own diagnosis.
/// Never blocks the loop: servers are asked on other threads, and tools are children with a deadline. Loop
/// thread.
class ProcessInspection {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    std::uint32_t attempt = 0;
    InspectedWorkers leaders;  ///< the live ranks
    std::string worker_path;   ///< PATH of the workers; may lead to a py-spy
    std::string ras_address;   ///< NCCL_RAS_ADDR of the workers; empty: NCCL's default
    Clock::time_point deadline;
    std::uint32_t world_size = 0;
    bool debuggers = true;  ///< py-spy and gdb, which stop a worker for seconds
    /// Gets the collectives of each rank whose server answers. Null: only stacks are asked for.
    std::function<void(const rendezvous::WorkerCollectives&)> send_collectives = {};
  };
  using ReportInspection = std::function<void(const rendezvous::Inspection&)>;

  /// `report` gets one Inspection with the state of each rank, then possibly more with text only, and finally
  /// one with `last`. Before the debuggers start it gets one with `only_stacks_follow`.
  ProcessInspection(asio::any_io_executor executor, Options options, ReportInspection report);

  /// Ends by the deadline, or a second later if a tool cannot be killed.
  Awaitable<> run();
  /// Kills the running tools; nothing more is reported.
  void cancel();
  /// Children that no other component may reap.
  const std::set<pid_t>& pids() const { return pids_; }

  /// Limits in bytes: the answer of one tool, and all answers of a node.
  static constexpr std::size_t kToolText = 64u << 10;
  static constexpr std::size_t kNodeText = 1u << 20;
  /// NCCL's JSON, of which only the begin is kept: about 600 bytes for each rank of a communicator.
  static constexpr std::size_t kRasJson = 2u << 20;

 private:
  struct Subject {
    std::uint32_t rank = 0;
    pid_t pid = 0;
    std::string state;
    bool python = false;
    std::string server;   ///< InspectedWorker::server
    bool stacks = false;  ///< the server has told them
  };
  Awaitable<> sample_all();
  /// What is left of a server's answers.
  struct ServerAnswer {
    std::string stacks;
    std::optional<rendezvous::FlightRecorderDump> dump;
  };
  Awaitable<> ask_servers();
  static Awaitable<> ask_server(ProcessInspection* self, Subject* subject);
  void send_dump(const rendezvous::FlightRecorderDump& dump);
  static Awaitable<> dump_some(ProcessInspection* self);
  Awaitable<> dump(Subject subject);
  Awaitable<> run_one(Subject subject, std::string tool, std::vector<std::string> argv);
  static Awaitable<> ask_nccl(ProcessInspection* self);
  void sort_by_rarity();
  void report_pieces(std::uint32_t rank, const std::string& state, std::string_view text);
  void add_text(std::uint32_t rank, std::string text);

  asio::any_io_executor executor_;
  Options options_;
  ReportInspection report_;
  std::set<pid_t> pids_;
  std::deque<Subject> waiting_;  ///< ranks whose stacks are missing, rare states first
  std::string py_spy_;
  std::string gdb_;
  std::string attach_note_;  ///< why this machine refuses debuggers; empty: it does not
  std::size_t text_left_ = kNodeText;
  BlockingCalls servers_;
  TaskGroup tasks_;
  bool cancelled_ = false;
};

/// The address of NCCL's RAS threads (NCCL_RAS_ADDR): "localhost:28028" or a numeric address. Parsing fails
/// for a value that needs a name service.
struct RasAddress {
  asio::ip::address address;
  std::uint16_t port = 28'028;
};
bool parse_ras_address(const std::string& text, RasAddress& result);

/// Asks NCCL (2.24 or newer) for its view of the job, in the protocol of its client (NVIDIA's documentation,
/// chapter RAS). With `json` the answer is JSON from NCCL 2.28.7 on, else text. At most `limit` bytes are
/// read; what has come when the time is up is returned. Empty: no server, or not NCCL's.
Awaitable<std::string> ask_ras(RasAddress where, bool json, std::chrono::milliseconds timeout,
                               std::size_t limit);

}  // namespace ddp::launcher
