#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

/// The messages of the control protocol between master and agents, as described in
/// docs/developers/protocol.md. Plain data; the codec reads and writes the members of a struct in the order
/// in which they stand here; an enum is one byte. Type numbers are never reused.
namespace ddp::rendezvous {

/// Both ends must have the same version: the launcher starts (or copies) the matching agent.
inline constexpr std::uint32_t kProtocolVersion = 1;

// ---- the link: heartbeats, credit, stdin, notices

struct Ping {
  static constexpr std::uint8_t kType = 0x48;
  std::uint64_t sequence = 0;
};

struct Pong {
  static constexpr std::uint8_t kType = 0x0A;
  std::uint64_t sequence = 0;
  std::uint64_t clock_ns = 0;
};

/// Output bytes of one stream that the master has taken; the agent may send as many again. Each stream has
/// its own credit, so that a dying worker's last lines pass even if nobody reads the output of the others.
struct Credit {
  static constexpr std::uint8_t kType = 0x49;
  std::uint8_t stream = 1;
  std::uint32_t bytes = 0;
};

/// Bytes for the stdin of rank 0; empty = end of file.
struct Stdin {
  static constexpr std::uint8_t kType = 0x4B;
  std::string_view data;
};

/// The stdin of rank 0 took `bytes`; the master may send as many again. When rank 0 has ended, `read` is how
/// many bytes of all that were sent to this node a rank 0 has read.
struct StdinTaken {
  static constexpr std::uint8_t kType = 0x0C;
  std::uint32_t bytes = 0;
  bool ended = false;
  std::uint64_t read = 0;
};

/// A message for the user, such as a refused connection to the store. Shown with the node's name.
struct Notice {
  static constexpr std::uint8_t kType = 0x0B;
  std::string text;
  bool detail = false;  ///< a completed step, shown only with --verbose
};

// ---- from an agent: its node, and answers for the whole node

/// A usable network interface of a node.
struct Interface {
  std::string name;
  std::string address;  ///< numeric, IPv4 or IPv6 without scope
  std::uint8_t prefix_length = 0;
  bool up = false;
  bool loopback = false;
};

/// First frame of an agent: its identity and the resources of its node.
struct Hello {
  static constexpr std::uint8_t kType = 0x01;
  std::string hostname;
  std::string machine_id;  ///< equal on two agents exactly if they share kernel and network namespace
  std::uint32_t pid = 0;
  std::uint32_t cpus = 0;  ///< logical CPUs usable by this job: affinity, limited by the cgroup's quota
  std::uint32_t gpus = 0;
  std::uint64_t clock_ns = 0;  ///< CLOCK_MONOTONIC of the node when sent
  std::vector<Interface> interfaces;
  std::uint32_t workers = 0;        ///< number set on the node itself (per-node mode); 0: the master decides
  std::uint32_t keeper = 0;         ///< the keeper's pid
  std::uint64_t pid_namespace = 0;  ///< the namespace of these pids: the inode of /proc/self/ns/pid; 0: not
                                    ///< known
};

/// Answer to JobStart: this node can run the job (or `Refused`).
struct JobAccepted {
  static constexpr std::uint8_t kType = 0x02;
  std::string program;                       ///< the resolved program, for the plan and the report
  std::vector<std::string> infiniband = {};  ///< adapters with an active InfiniBand port: "mlx5_0"
  std::string no_infiniband = {};  ///< why NCCL would not use the adapters, as text; empty: no obstacle
  bool predecessor_gone =
      false;  ///< proven: all of JobStart::predecessor have ended, without any process left
};

/// The node cannot do what the last request demanded.
struct Refused {
  static constexpr std::uint8_t kType = 0x03;
  ErrorCode code = ErrorCode::kUsage;
  std::int32_t sys = 0;
  std::string text;
};

struct StoreOpened {
  static constexpr std::uint8_t kType = 0x04;
  std::uint32_t attempt = 0;
  std::uint16_t port = 0;
  std::string token = {};  ///< only this store answers to it; for Probe
};

/// Answer to Probe. `address` is the first candidate that answered; empty: none did. `text` says why the
/// candidates before it did not.
struct ProbeResult {
  static constexpr std::uint8_t kType = 0x05;
  std::uint32_t attempt = 0;
  std::string address;
  std::string text;
  std::string local = {};  ///< the node's own address on the route to `address`
};

// ---- from the master: the job and its attempts

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// The command of a worker. For kTrain the agent fills in argv[0], because it knows the path of its own
/// `train`.
struct WorkerCommand {
  enum class Kind : std::uint8_t {
    kNone = 0,     ///< in a JobStart: a node of per-node mode has a command of its own
    kProgram = 1,  ///< argv as it is, argv[0] searched in the worker's PATH
    kPython = 2,   ///< argv after `python3 -u`
    kModule = 3,   ///< argv after `python3 -u -m`
    kTrain = 4,    ///< the bundled trainer; argv has its arguments only
  };
  Kind kind = Kind::kProgram;
  std::vector<std::string> argv;
  std::string python;  ///< interpreter for kPython and kModule; empty: python3 from the worker's PATH
};

/// First frame of the master: the job as this node runs it. No part of it ever passes through a shell or a
/// command line.
struct JobStart {
  static constexpr std::uint8_t kType = 0x41;
  std::string job_id;
  std::string host;  ///< the node's name in the hostfile, for messages and labels
  WorkerCommand command{WorkerCommand::Kind::kNone, {}, {}};
  std::string chdir;   ///< empty: the agent's own directory
  Pairs env;           ///< the launcher's environment, filtered; overrides the node's own
  Pairs explicit_env;  ///< from --env and from the host; overrides both
  std::vector<std::string> devices;
  bool local = false;  ///< this node is the launcher's own machine, so its device variables count
  bool stdin_to_rank0 = false;
  std::uint32_t master_timeout_ms = 0;
  std::uint32_t link_grace_ms = 0;        ///< TERM to KILL when the link to the master is lost
  std::uint32_t credit = 0;               ///< output bytes per stream that the agent may have unacknowledged
  std::uint32_t activity_timeout_ms = 0;  ///< the shortest silence that the master acts on; 0: none
  bool diagnosis = true;                  ///< Python workers get the hook (docs/users/hang.md)
  bool may_restart = true;                ///< another attempt may begin while this node is silent
  bool stop_leaders = false;       ///< a Stop's signals but KILL go to the workers alone, not to their groups
  std::vector<std::string> setup;  ///< shell scripts, run once before the workers; the workers get the
                                   ///< variables that they set
  /// Pids of a lost earlier agent of this job on this machine: its keeper, its workers, and itself. Empty:
  /// the node has nothing to check.
  std::vector<std::uint32_t> predecessor;
  std::uint64_t predecessor_clock_ns = 0;  ///< CLOCK_MONOTONIC of the node when that agent said hello
  /// Pids of the keepers of the job's other live nodes on this machine, whose processes are not touched.
  std::vector<std::uint32_t> keepers;
};

/// Server of MASTER_PORT (docs/users/environment.md).
enum class StoreMode : std::uint8_t { kAgent = 1, kWorker = 2 };

/// To node 0: serve the store of this attempt (mode kAgent), or find a port where rank 0 can serve it
/// (kWorker).
struct OpenStore {
  static constexpr std::uint8_t kType = 0x42;
  std::uint32_t attempt = 0;
  StoreMode mode = StoreMode::kAgent;
  bool loopback_only = false;
  std::uint16_t port = 0;  ///< 0: choose
  std::uint16_t first_port = 0;
  std::uint16_t last_port = 0;
  std::vector<std::string> allow;  ///< addresses that may connect
};

/// To the other nodes: asks which of these addresses reaches node 0's store.
struct Probe {
  static constexpr std::uint8_t kType = 0x43;
  std::uint32_t attempt = 0;
  std::vector<std::string> addresses;  ///< in order of preference
  std::uint16_t port = 0;
  std::uint32_t timeout_ms = 0;
  std::string token = {};  ///< from StoreOpened; empty: accept the answer of any store
};

/// Starts this node's workers: ranks first_rank … first_rank + local_world_size − 1. Survivors of a revoked
/// attempt take part in this one with their local ranks; only the other workers are started.
struct Spawn {
  static constexpr std::uint8_t kType = 0x44;
  std::uint32_t attempt = 0;
  std::uint32_t node_rank = 0;
  std::uint32_t nodes = 0;
  std::uint32_t first_rank = 0;
  std::uint32_t local_world_size = 0;
  std::uint32_t world_size = 0;
  std::uint32_t max_restarts = 0;
  std::string master_addr;
  std::uint16_t master_port = 0;
  bool agent_store = true;
  std::string interface_name;  ///< for NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; empty: do not set them
  std::int32_t from = -1;      ///< rank that holds the training state; negative: none does
};

/// Ends the attempt: `signal` now, TERM near the end of `grace_ms` if that was another one, KILL at its end
/// (0: KILL now). A second Stop may only shorten the grace.
struct Stop {
  static constexpr std::uint8_t kType = 0x45;
  std::uint32_t attempt = 0;
  std::uint32_t grace_ms = 0;
  std::string reason;
  std::uint8_t signal = 15;  ///< SIGTERM, or the user's SIGINT or SIGHUP
};

/// Ends the attempt but keeps its workers: workers that can leave the attempt do, and wait for the next one.
/// A worker that cannot, or that has not answered after `deadline_ms`, is killed. The answer is
/// AttemptRevoked, or AttemptEnded if no worker survives. A Stop may follow.
struct Revoke {
  static constexpr std::uint8_t kType = 0x4E;
  std::uint32_t attempt = 0;
  std::uint32_t deadline_ms = 0;
  std::string reason;
  std::vector<std::uint32_t> kill;  ///< ranks of this node that hang: they are killed first
};

/// Passes a signal to every worker's leader.
struct Signal {
  static constexpr std::uint8_t kType = 0x46;
  std::uint8_t number = 0;
};

/// Asks what each worker does, and for its collectives.
struct Inspect {
  static constexpr std::uint8_t kType = 0x4C;
  std::uint32_t attempt = 0;
  std::uint32_t timeout_ms = 0;
  bool unless_active = false;  ///< the answer is empty if a worker is active
  bool texts = false;          ///< also stacks and states of threads, for the files of a hang
  bool debuggers = false;      ///< also from py-spy and gdb, which stop the workers for seconds
};

/// Asks about running workers, for `ddplaunch stacks` and `ddplaunch exec`. It does not change the job.
struct Query {
  static constexpr std::uint8_t kType = 0x4F;
  std::uint32_t request = 0;  ///< a number of the master
  std::vector<std::uint32_t> ranks;
  std::vector<std::string> argv;  ///< a command to run as the first of `ranks` would; empty: stacks of all
  std::uint32_t timeout_ms = 0;
};

/// Nobody waits for the answer any more: ends what it runs.
struct CancelQuery {
  static constexpr std::uint8_t kType = 0x50;
  std::uint32_t request = 0;
};

/// Orders the agent to clean up and exit. The result of the job is for a node that was started by itself: its
/// own process then ends with the job's exit code.
struct Leave {
  static constexpr std::uint8_t kType = 0x47;
  std::int32_t code = 0;
  std::string text = {};  ///< one line: the cause
};

// ---- from an agent: its workers

struct WorkerStarted {
  static constexpr std::uint8_t kType = 0x06;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::uint32_t pid = 0;
  std::uint64_t clock_ns = 0;
  std::uint32_t start_attempt = 0;  ///< attempt in which the process was started and from which it survives
};

/// The end of a worker. Sent when it happens, ahead of output that is still queued.
struct WorkerExited {
  static constexpr std::uint8_t kType = 0x07;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::uint32_t pid = 0;    ///< 0: it never started; `text` has the reason
  std::uint8_t code = 0;    ///< exit code; 126 or 127 when it could not be executed
  std::int32_t sys = 0;     ///< errno of the failed start
  std::uint8_t signal = 0;  ///< the signal that killed it, or 0
  bool core = false;
  std::uint64_t clock_ns = 0;  ///< the node's CLOCK_MONOTONIC when it ended
  std::string text;
  bool by_revoke = false;   ///< the agent killed it because it could not leave the attempt; `text` has the
                            ///< reason
  bool after_stop = false;  ///< its end, of whatever kind, began after a signal of the agent; an end
                            ///< by SIGKILL: after its SIGKILL
  bool late_kill = false;   ///< it ended by a SIGKILL of others after the agent's SIGTERM
  bool gave_up = false;  ///< a worker of PyTorch that gave up waiting for a peer, or lost it: its peers may
                         ///< tell why. WorkerCollectives may follow
  bool non_retryable = false;  ///< it reported that another attempt would fail the same way
};

/// Bytes of a worker's stdout (1) or stderr (2), in order. `data` points into the received frame; empty = end
/// of the stream. Counted against the agent's credit by data.size().
struct Output {
  static constexpr std::uint8_t kType = 0x08;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::uint8_t stream = 1;
  std::uint64_t clock_ns = 0;  ///< the node's CLOCK_MONOTONIC when the bytes were read from the worker
  std::string_view data;
};

/// Every worker of the attempt is reaped, its output is sent, and its process tree is gone. `left` counts
/// processes of the job that could not be killed; `left_text` names them.
struct AttemptEnded {
  static constexpr std::uint8_t kType = 0x09;
  std::uint32_t attempt = 0;
  std::uint32_t left = 0;
  std::string left_text;
};

/// Evidence about an abnormal exit beyond the exit status. Follows the WorkerExited of the same rank, before
/// AttemptEnded. The node sends none if it knows nothing more.
struct WorkerEvidence {
  static constexpr std::uint8_t kType = 0x0D;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::string oom;         ///< where the node read that the OOM killer ended it, as text
  std::string xid;         ///< Xid lines of the NVIDIA driver from the time of its end
  std::string error_json;  ///< the content of TORCHELASTIC_ERROR_FILE, as `@record` writes it; at most 32 KiB
};

/// The collective operations of a worker, if it records them. Those of `train` are sent before AttemptEnded
/// or AttemptRevoked, when it ended or left a failed attempt; not when all workers of the node ended
/// normally. Those of PyTorch are sent while the node inspects its workers. The newest one of a rank counts.
struct WorkerCollectives {
  static constexpr std::uint8_t kType = 0x15;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::string log;  ///< dump_text(), flight_recorder.h
};

/// Since when no worker of this node has been active (docs/users/hang.md). Sent when it changes, and only
/// with JobStart::activity_timeout_ms.
struct Quiet {
  static constexpr std::uint8_t kType = 0x0E;
  std::uint32_t attempt = 0;
  bool quiet = false;
  std::uint64_t since_ns = 0;  ///< the node's CLOCK_MONOTONIC at the last activity; only while quiet
  bool by_steps = false;       ///< all workers of the node report steps, so CPU time did not count
};

/// Steps that workers of the node have completed (docs/developers/worker_protocol.md), as far as they have
/// changed since the last such message. Sent once a second at most, and at the end of a worker.
struct WorkerSteps {
  static constexpr std::uint8_t kType = 0x17;
  std::uint32_t attempt = 0;
  std::vector<std::uint32_t> ranks;
  std::vector<std::uint64_t> steps;      ///< of each of `ranks`
  std::vector<std::uint64_t> losses;     ///< of each of `ranks`: the bits of a double; a nan: not reported
  std::vector<std::string> phases;       ///< of each of `ranks`: what it does now; empty: not reported
  std::vector<std::uint64_t> counts;     ///< of each of `ranks`: steps measured since the last message
  std::vector<std::uint64_t> seconds;    ///< of each of `ranks`: the bits of a double; their durations' sum
  std::vector<std::uint64_t> waits;      ///< of each of `ranks`: the part of `seconds` in which it waited for
                                         ///< other ranks, as the bits of a double; 0: not reported
  std::vector<std::uint64_t> durations;  ///< StepDurations::counts of all `ranks`: bucket, steps, bucket, …
};

/// One GPU of a node over the last period. 0 means that the driver did not say, except for `busy`.
struct GpuSample {
  std::uint32_t index = 0;        ///< in the driver's order
  std::uint32_t busy = 0;         ///< percent of the time in which a kernel ran, at most 100
  std::uint64_t memory_used = 0;  ///< bytes, of all processes
  std::uint64_t memory = 0;       ///< bytes
  std::uint32_t power_mw = 0;
  std::uint32_t celsius = 0;
  std::uint32_t clock_mhz = 0;  ///< of the multiprocessors
  std::uint64_t throttle = 0;   ///< why the clock is lowered: nvmlClocksThrottleReasons of nvml.h
  std::uint32_t xid = 0;        ///< number of the last Xid error of this attempt
};

/// What a node and the job's processes on it used since the message before. Sent every 5 s while workers run.
/// Rates are per second; a CPU that was busy all the time counts 1000.
struct NodeSample {
  static constexpr std::uint8_t kType = 0x18;
  std::uint32_t cpus = 0;  ///< of the machine
  std::uint64_t cpu_milli = 0;
  std::uint64_t memory = 0;  ///< bytes of the machine
  std::uint64_t memory_used = 0;
  std::uint64_t job_cpu_milli = 0;
  std::uint64_t job_memory = 0;  ///< bytes
  std::uint64_t network_in = 0;  ///< bytes per second, as the next five
  std::uint64_t network_out = 0;
  std::uint64_t infiniband_in = 0;  ///< also of RoCE
  std::uint64_t infiniband_out = 0;
  std::uint64_t disk_read = 0;
  std::uint64_t disk_written = 0;
  std::uint64_t steal_milli = 0;     ///< CPUs that the host of a virtual machine took away, times 1000
  std::uint64_t memory_stall = 0;    ///< share of the time in which a process waited for memory, times 1000
  std::uint64_t network_errors = 0;  ///< packets with errors since the message before
  std::vector<GpuSample> gpus;
};

/// Answer to Inspect: for each running rank one with its state, possibly more with further text, and finally
/// one with `last`. Before debuggers start, one with `only_stacks_follow`.
struct Inspection {
  static constexpr std::uint8_t kType = 0x0F;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  bool last = false;
  std::string state;   ///< text that is equal for ranks that do the same: "sleeping in futex"
  std::string text;    ///< stacks and other evidence, many lines
  bool steps = false;  ///< the rank reports its steps (docs/developers/worker_protocol.md); `step` of them
                       ///< are complete
  std::uint64_t step = 0;
  bool only_stacks_follow = false;  ///< the node has told all of its ranks that a verdict rests on
};

/// Answer to Query: pieces of text of a rank, then one answer with `last`.
struct QueryAnswer {
  static constexpr std::uint8_t kType = 0x16;
  std::uint32_t request = 0;
  std::uint32_t rank = 0;
  std::string text;  ///< stacks, or what the command wrote
  bool last = false;
  std::int32_t code = 0;  ///< with `last`: exit code of the command, 128+n for a signal
  std::string trouble;    ///< with `last`: why there is no answer; empty: there is one
};

// ---- workers that survive attempts (docs/developers/worker_protocol.md)

/// All running workers of the node have announced that they can leave the attempt and join another.
struct WorkersGreeted {
  static constexpr std::uint8_t kType = 0x11;
  std::uint32_t attempt = 0;
};

/// All running workers of the node take part in the attempt and have the training state.
struct WorkersReady {
  static constexpr std::uint8_t kType = 0x12;
  std::uint32_t attempt = 0;
};

/// A rank could not reach others. This is only evidence, and has no consequence if a death explains it.
struct WorkerInTrouble {
  static constexpr std::uint8_t kType = 0x13;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::string text;
  std::vector<std::uint32_t> peers;  ///< ranks that it considers lost
};

/// A worker that has left its attempt.
struct Survivor {
  std::uint32_t local_rank = 0;
  bool holds_state = false;
  std::uint64_t step = 0;  ///< step of the state that it holds
};

/// Answer to Revoke instead of AttemptEnded if workers survive. The survivors have left the attempt and wait;
/// all other workers of the node are dead, and their output is sent.
struct AttemptRevoked {
  static constexpr std::uint8_t kType = 0x14;
  std::uint32_t attempt = 0;
  std::vector<Survivor> survivors;
};

// ---- `ddplaunch check`: the request to a node, and the answer

/// One GPU of a node, as the driver reports it.
struct NodeGpu {
  std::string name;
  std::uint64_t memory = 0;  ///< bytes
  std::uint64_t memory_free = 0;
  std::uint32_t processes = 0;  ///< on the GPU already; none belongs to this job
  std::string holders;          ///< the first processes as text: "python 4711 (alice) 12.1 GiB"
};

/// Space in one directory of a node.
struct NodeDisk {
  std::string path;
  std::uint64_t size = 0;  ///< bytes; 0: not known, `trouble` has the reason
  std::uint64_t free = 0;  ///< for an ordinary user
  bool writable = false;
  std::string trouble;
};

/// Answer to NodeCheck. Empty trouble texts mean that there is no trouble.
struct NodeChecked {
  static constexpr std::uint8_t kType = 0x10;
  std::string system;          ///< kernel and machine: "Linux 6.1.0-18-amd64 x86_64"
  std::string os;              ///< the name that the distribution gives itself
  std::string system_trouble;  ///< why no thread can be made
  std::string directory;       ///< the workers' working directory
  std::string directory_trouble;
  std::string environment_trouble;  ///< what the forwarded environment refers to and the node lacks
  std::string program;              ///< resolved; empty: not searched, or see program_trouble
  std::string program_trouble;
  std::vector<NodeGpu> gpus;
  std::string gpus_trouble;      ///< why `gpus` may be incomplete
  Pairs versions;                ///< must be equal on all nodes: driver, CUDA, NCCL, torch, Python
  std::uint64_t nofile = 0;      ///< soft limit of open files of the workers
  std::uint64_t most_files = 0;  ///< hard limit of open files; all ones: no limit
  std::uint64_t memlock = 0;     ///< bytes that workers may lock; all ones: no limit
  std::uint64_t processes = 0;   ///< limit of the user's processes; all ones: none
  std::uint64_t shm_size = 0;    ///< /dev/shm in bytes; 0: there is none
  std::uint64_t shm_free = 0;
  std::vector<NodeDisk> disks;
  Pairs features;  ///< what jobs use where it is there, and why it is not (empty: it is there)
  std::vector<std::string> infiniband;  ///< adapters with an active port: "mlx5_0"
  std::uint64_t clock_ns = 0;           ///< CLOCK_MONOTONIC of the node when sent
  std::uint64_t wall_ns = 0;            ///< CLOCK_REALTIME at the same moment, since 1970
  std::uint32_t found = 0;              ///< with NodeCheck::clean: processes of the job that lived
  std::vector<std::string> left;        ///< those that could not be ended, or why others may live
};

/// Asks what would prevent a job on this node, or ends what is left of one. Sent instead of JobStart; nothing
/// is started.
struct NodeCheck {
  static constexpr std::uint8_t kType = 0x4D;
  JobStart job;
  bool has_program = false;      ///< the job names a program to search for
  std::uint32_t timeout_ms = 0;  ///< per tool that is called
  bool clean = false;            ///< end all processes of `job.job_id`, whose master has ended; check nothing
};

// ---- all of them

using Message =
    std::variant<Hello, JobAccepted, Refused, StoreOpened, ProbeResult, WorkerStarted, WorkerExited, Output,
                 AttemptEnded, Pong, Notice, StdinTaken, WorkerEvidence, Quiet, Inspection, NodeChecked,
                 WorkersGreeted, WorkersReady, WorkerInTrouble, AttemptRevoked, WorkerCollectives,
                 QueryAnswer, WorkerSteps, NodeSample, JobStart, OpenStore, Probe, Spawn, Stop, Revoke,
                 Signal, Leave, Ping, Credit, Stdin, Inspect, NodeCheck, Query, CancelQuery>;

}  // namespace ddp::rendezvous
