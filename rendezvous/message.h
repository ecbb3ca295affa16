#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// The messages of the control protocol between master and agents, as docs/protocol.md describes them. Plain
/// data; each struct lists its fields once (`fields`), and the codec reads and writes by that list. Numbers
/// are never reused.
namespace ddp::rendezvous {

/// Both ends must speak the same version: the launcher starts (or pushes) the agent that fits it.
inline constexpr std::uint32_t kProtocolVersion = 1;

using Pairs = std::vector<std::pair<std::string, std::string>>;

// ---- agent → master

/// A usable network interface of a node.
struct Interface {
  std::string name;
  std::string address;  ///< numeric, IPv4 or IPv6 without scope
  std::uint8_t prefix_length = 0;
  bool up = false;
  bool loopback = false;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.name), c(m.address), c(m.prefix_length), c(m.up), c(m.loopback);
  }
};

/// First frame of an agent: who it is and what its node has.
struct Hello {
  static constexpr std::uint8_t kType = 0x01;
  std::string hostname;
  std::string machine_id;  ///< equal on two agents exactly when they share kernel and network namespace
  std::uint32_t pid = 0;
  std::uint32_t cpus = 0;  ///< logical ones usable by this job: affinity, cut by the cgroup's quota
  std::uint32_t gpus = 0;
  std::uint64_t clock_ns = 0;  ///< CLOCK_MONOTONIC of the node when sent
  std::vector<Interface> interfaces;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.hostname), c(m.machine_id), c(m.pid), c(m.cpus), c(m.gpus), c(m.clock_ns), c(m.interfaces);
  }
};

/// Answer to JobStart: this node can run the job (or `Refused`).
struct JobAccepted {
  static constexpr std::uint8_t kType = 0x02;
  std::string program;                       ///< the resolved program, for the plan and the report
  std::vector<std::string> infiniband = {};  ///< adapters with an active InfiniBand port: "mlx5_0"
  std::string no_infiniband =
      {};  ///< why NCCL would not use them here, in words; empty: nothing is in its way
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.program), c(m.infiniband), c(m.no_infiniband);
  }
};

/// The node cannot do what the last request asked. `code` is an ErrorCode.
struct Refused {
  static constexpr std::uint8_t kType = 0x03;
  std::uint8_t code = 0;
  std::int32_t sys = 0;
  std::string text;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.code), c(m.sys), c(m.text);
  }
};

struct StoreOpened {
  static constexpr std::uint8_t kType = 0x04;
  std::uint32_t attempt = 0;
  std::uint16_t port = 0;
  std::string token = {};  ///< what this store alone answers to, for Probe
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.port), c(m.token);
  }
};

/// Answer to Probe. `address` is the first candidate that answered; empty: none did. `text` says why those
/// before it did not.
struct ProbeResult {
  static constexpr std::uint8_t kType = 0x05;
  std::uint32_t attempt = 0;
  std::string address;
  std::string text;
  std::string local = {};  ///< the node's own address on the way to `address`
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.address), c(m.text), c(m.local);
  }
};

struct WorkerStarted {
  static constexpr std::uint8_t kType = 0x06;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::uint32_t pid = 0;
  std::uint64_t clock_ns = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.rank), c(m.pid), c(m.clock_ns);
  }
};

/// The end of a worker, sent when it happens and ahead of any output still on its way.
struct WorkerExited {
  static constexpr std::uint8_t kType = 0x07;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::uint32_t pid = 0;    ///< 0: it never started, and `text` says why
  std::uint8_t code = 0;    ///< exit code; 126 or 127 when it could not be executed
  std::int32_t sys = 0;     ///< errno of the failed start
  std::uint8_t signal = 0;  ///< the signal that killed it, or 0
  bool core = false;
  std::uint64_t clock_ns = 0;  ///< the node's CLOCK_MONOTONIC when it ended
  std::string text;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.rank), c(m.pid), c(m.code), c(m.sys), c(m.signal), c(m.core), c(m.clock_ns), c(m.text);
  }
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
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.rank), c(m.stream), c(m.clock_ns), c(m.data);
  }
};

/// Every worker of the attempt is reaped, its output sent, its tree gone. `left` counts live processes of the
/// job that could not be ended; `left_text` names them.
struct AttemptEnded {
  static constexpr std::uint8_t kType = 0x09;
  std::uint32_t attempt = 0;
  std::uint32_t left = 0;
  std::string left_text;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.left), c(m.left_text);
  }
};

/// Sequence of the Pong that answers MasterAsleep; Pings count from 1.
inline constexpr std::uint64_t kAsleep = 0;

struct Pong {
  static constexpr std::uint8_t kType = 0x0A;
  std::uint64_t sequence = 0;
  std::uint64_t clock_ns = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.sequence), c(m.clock_ns);
  }
};

/// Something a person should read, such as a refused stranger at the store. Shown with the node's name.
struct Notice {
  static constexpr std::uint8_t kType = 0x0B;
  std::string text;
  bool detail = false;  ///< a step done, for who asked for --verbose
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.text), c(m.detail);
  }
};

/// The stdin of rank 0 took `bytes`; the master may send as many again.
struct StdinTaken {
  static constexpr std::uint8_t kType = 0x0C;
  std::uint32_t bytes = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.bytes);
  }
};

/// What the node knows about a bad end beyond the exit status. Follows the WorkerExited of the same rank,
/// before AttemptEnded; not sent when there is nothing to tell.
struct WorkerEvidence {
  static constexpr std::uint8_t kType = 0x0D;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::string oom;         ///< the kernel ended it for want of memory: where that was read, in words
  std::string xid;         ///< the NVIDIA driver's Xid lines of the time of its end
  std::string error_json;  ///< the content of TORCHELASTIC_ERROR_FILE, as `@record` writes it; at most 64 KiB
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.rank), c(m.oom), c(m.xid), c(m.error_json);
  }
};

/// Since when no worker of this node has written anything or used CPU time; sent when it changes, and only
/// with a hang timeout.
struct Quiet {
  static constexpr std::uint8_t kType = 0x0E;
  std::uint32_t attempt = 0;
  bool quiet = false;
  std::uint64_t since_ns = 0;  ///< the node's CLOCK_MONOTONIC of the last sign of life; only while quiet
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.quiet), c(m.since_ns);
  }
};

/// Answer to Inspect: for each living rank one with its state, perhaps more whose text is to be added, then
/// one with `last`.
struct Inspection {
  static constexpr std::uint8_t kType = 0x0F;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  bool last = false;
  std::string state;  ///< in words that are equal in ranks that do the same: "sleeping in futex"
  std::string text;   ///< stacks and what else could be read, many lines
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.rank), c(m.last), c(m.state), c(m.text);
  }
};

/// One GPU of a node, as its driver tells.
struct NodeGpu {
  std::string name;
  std::uint64_t memory = 0;  ///< bytes
  std::uint64_t memory_free = 0;
  std::uint32_t processes = 0;  ///< on it already; none of them is of this job
  std::string holders;          ///< the first few of them in words: "python 4711 (alice) 12.1 GiB"
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.name), c(m.memory), c(m.memory_free), c(m.processes), c(m.holders);
  }
};

/// Room in one directory of a node.
struct NodeDisk {
  std::string path;
  std::uint64_t size = 0;  ///< bytes; 0: not known, and `trouble` says why
  std::uint64_t free = 0;  ///< for an ordinary user
  bool writable = false;
  std::string trouble;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.path), c(m.size), c(m.free), c(m.writable), c(m.trouble);
  }
};

/// Answer to NodeCheck. A trouble that is empty: there is none.
struct NodeChecked {
  static constexpr std::uint8_t kType = 0x10;
  std::string system;     ///< kernel and machine: "Linux 6.1.0-18-amd64 x86_64"
  std::string os;         ///< the distribution's name of itself
  std::string directory;  ///< the workers' working directory
  std::string directory_trouble;
  std::string environment_trouble;  ///< what the forwarded environment promises and the node lacks
  std::string program;              ///< resolved; empty: not looked for, or in trouble
  std::string program_trouble;
  std::vector<NodeGpu> gpus;
  std::string gpus_trouble;     ///< why `gpus` may be short of what the node has
  Pairs versions;               ///< what has to be equal on all nodes: driver, CUDA, NCCL, torch, Python
  std::uint64_t nofile = 0;     ///< soft limit of open files of the workers
  std::uint64_t memlock = 0;    ///< bytes that they may lock; all ones: no limit
  std::uint64_t processes = 0;  ///< limit of the user's processes; all ones: none
  std::uint64_t shm_size = 0;   ///< /dev/shm in bytes; 0: there is none
  std::uint64_t shm_free = 0;
  std::vector<NodeDisk> disks;
  std::vector<std::string> infiniband;  ///< adapters with an active port: "mlx5_0"
  std::uint64_t clock_ns = 0;           ///< CLOCK_MONOTONIC of the node when sent
  std::uint64_t wall_ns = 0;            ///< CLOCK_REALTIME of the same moment, since 1970
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.system), c(m.os), c(m.directory), c(m.directory_trouble), c(m.environment_trouble), c(m.program),
        c(m.program_trouble), c(m.gpus), c(m.gpus_trouble), c(m.versions), c(m.nofile), c(m.memlock),
        c(m.processes), c(m.shm_size), c(m.shm_free), c(m.disks), c(m.infiniband), c(m.clock_ns),
        c(m.wall_ns);
  }
};

// ---- master → agent

/// First frame of the master: the job as this node runs it. Nothing of it ever passes a shell or a command
/// line.
struct JobStart {
  static constexpr std::uint8_t kType = 0x41;
  std::string job_id;
  std::string host;  ///< the node's name in the hostfile, for messages and labels
  std::uint8_t command_kind = 0;
  std::vector<std::string> argv;
  std::string python;
  std::string chdir;   ///< empty: the agent's own directory
  Pairs env;           ///< the launcher's environment, filtered; laid over the node's own
  Pairs explicit_env;  ///< --env and the host's own; laid over both
  std::vector<std::string> devices;
  bool local = false;  ///< this node is the launcher's own machine: its device variables count
  bool stdin_to_rank0 = false;
  std::uint32_t master_timeout_ms = 0;
  std::uint32_t link_grace_ms = 0;    ///< TERM to KILL when the link to the master is lost
  std::uint32_t credit = 0;           ///< output bytes of each stream that the agent may have unacknowledged
  std::uint32_t hang_timeout_ms = 0;  ///< 0: nobody watches for hangs
  std::vector<std::string> setup;  ///< shell scripts, run once before the workers, whose variables they set
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.job_id), c(m.host), c(m.command_kind), c(m.argv), c(m.python), c(m.chdir), c(m.env),
        c(m.explicit_env), c(m.devices), c(m.local), c(m.stdin_to_rank0), c(m.master_timeout_ms),
        c(m.link_grace_ms), c(m.credit), c(m.hang_timeout_ms), c(m.setup);
  }
};

/// To node 0: serve the store of this attempt (mode kAgent), or find a port on which rank 0 may serve it
/// (kWorker).
struct OpenStore {
  static constexpr std::uint8_t kType = 0x42;
  std::uint32_t attempt = 0;
  std::uint8_t mode = 1;
  bool loopback_only = false;
  std::uint16_t port = 0;  ///< 0: choose
  std::uint16_t first_port = 0;
  std::uint16_t last_port = 0;
  std::vector<std::string> allow;  ///< addresses that may connect
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.mode), c(m.loopback_only), c(m.port), c(m.first_port), c(m.last_port), c(m.allow);
  }
};

/// To the others: which of these addresses reaches node 0's store?
struct Probe {
  static constexpr std::uint8_t kType = 0x43;
  std::uint32_t attempt = 0;
  std::vector<std::string> addresses;  ///< in order of preference
  std::uint16_t port = 0;
  std::uint32_t timeout_ms = 0;
  std::string token = {};  ///< of StoreOpened; empty: any store's answer will do
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.addresses), c(m.port), c(m.timeout_ms), c(m.token);
  }
};

/// Start this node's workers: ranks first_rank … first_rank + local_world_size − 1.
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
  std::string interface_name;  ///< for NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; empty: leave them alone
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.node_rank), c(m.nodes), c(m.first_rank), c(m.local_world_size), c(m.world_size),
        c(m.max_restarts), c(m.master_addr), c(m.master_port), c(m.agent_store), c(m.interface_name);
  }
};

/// End the attempt: TERM now, KILL after `grace_ms` (0: KILL now). A second Stop may only shorten the grace.
struct Stop {
  static constexpr std::uint8_t kType = 0x45;
  std::uint32_t attempt = 0;
  std::uint32_t grace_ms = 0;
  std::string reason;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.grace_ms), c(m.reason);
  }
};

/// Pass a signal to every worker's leader.
struct Signal {
  static constexpr std::uint8_t kType = 0x46;
  std::uint8_t number = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.number);
  }
};

/// Clean up and exit.
struct Leave {
  static constexpr std::uint8_t kType = 0x47;
  template <class M, class C>
  static void fields(M&, C&) {}
};

struct Ping {
  static constexpr std::uint8_t kType = 0x48;
  std::uint64_t sequence = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.sequence);
  }
};

/// Output bytes of one stream that the master has taken; the agent may send as many again. Each stream has
/// its own credit, so that the last words of a dying worker pass although nobody reads what the others print.
struct Credit {
  static constexpr std::uint8_t kType = 0x49;
  std::uint8_t stream = 1;
  std::uint32_t bytes = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.stream), c(m.bytes);
  }
};

/// The master is being stopped by its user (Ctrl-Z): its silence means nothing until the next message.
/// Answered by a Pong with the sequence kAsleep.
struct MasterAsleep {
  static constexpr std::uint8_t kType = 0x4A;
  template <class M, class C>
  static void fields(M&, C&) {}
};

/// Bytes for the stdin of rank 0; empty = end of file.
struct Stdin {
  static constexpr std::uint8_t kType = 0x4B;
  std::string_view data;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.data);
  }
};

/// What is known of a hang is wanted, before the attempt is stopped for it.
struct Inspect {
  static constexpr std::uint8_t kType = 0x4C;
  std::uint32_t attempt = 0;
  std::uint32_t timeout_ms = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.timeout_ms);
  }
};

/// What would be in a job's way on this node? Instead of JobStart; nothing is started.
struct NodeCheck {
  static constexpr std::uint8_t kType = 0x4D;
  JobStart job;
  bool has_program = false;      ///< the job names one, to be looked for
  std::uint32_t timeout_ms = 0;  ///< of each tool that is asked
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.job), c(m.has_program), c(m.timeout_ms);
  }
};

using Message = std::variant<Hello, JobAccepted, Refused, StoreOpened, ProbeResult, WorkerStarted,
                             WorkerExited, Output, AttemptEnded, Pong, Notice, StdinTaken, WorkerEvidence,
                             Quiet, Inspection, NodeChecked, JobStart, OpenStore, Probe, Spawn, Stop, Signal,
                             Leave, Ping, Credit, MasterAsleep, Stdin, Inspect, NodeCheck>;

}  // namespace ddp::rendezvous
