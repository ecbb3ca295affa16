#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// Messages from the master to an agent about the job and its attempts. Part of message.h, which describes
/// the encoding.
namespace ddp::rendezvous {

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// First frame of the master: the job as this node runs it. No part of it ever passes through a shell or a
/// command line.
struct JobStart {
  static constexpr std::uint8_t kType = 0x41;
  std::string job_id;
  std::string host;  ///< the node's name in the hostfile, for messages and labels
  std::uint8_t command_kind = 0;
  std::vector<std::string> argv;
  std::string python;
  std::string chdir;   ///< empty: the agent's own directory
  Pairs env;           ///< the launcher's environment, filtered; overrides the node's own
  Pairs explicit_env;  ///< from --env and from the host; overrides both
  std::vector<std::string> devices;
  bool local = false;  ///< this node is the launcher's own machine, so its device variables count
  bool stdin_to_rank0 = false;
  std::uint32_t master_timeout_ms = 0;
  std::uint32_t link_grace_ms = 0;    ///< TERM to KILL when the link to the master is lost
  std::uint32_t credit = 0;           ///< output bytes per stream that the agent may have unacknowledged
  std::uint32_t hang_timeout_ms = 0;  ///< 0: no hang detection
  bool may_restart = true;            ///< another attempt may begin while this node is silent
  bool stop_leaders = false;       ///< a Stop's signals but KILL go to the workers alone, not to their groups
  std::vector<std::string> setup;  ///< shell scripts, run once before the workers; the workers get the
                                   ///< variables that they set
  /// Pids of a lost earlier agent of this job on this machine: its keeper, its workers, and itself. Empty:
  /// the node has nothing to check.
  std::vector<std::uint32_t> predecessor;
  std::uint64_t predecessor_clock_ns = 0;  ///< CLOCK_MONOTONIC of the node when that agent said hello
  /// Pids of the keepers of the job's other live nodes on this machine, whose processes are not touched.
  std::vector<std::uint32_t> keepers;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.job_id), c(m.host), c(m.command_kind), c(m.argv), c(m.python), c(m.chdir), c(m.env),
        c(m.explicit_env), c(m.devices), c(m.local), c(m.stdin_to_rank0), c(m.master_timeout_ms),
        c(m.link_grace_ms), c(m.credit), c(m.hang_timeout_ms), c(m.may_restart), c(m.stop_leaders),
        c(m.setup), c(m.predecessor), c(m.predecessor_clock_ns), c(m.keepers);
  }
};

/// To node 0: serve the store of this attempt (mode kAgent), or find a port where rank 0 can serve it
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

/// To the other nodes: asks which of these addresses reaches node 0's store.
struct Probe {
  static constexpr std::uint8_t kType = 0x43;
  std::uint32_t attempt = 0;
  std::vector<std::string> addresses;  ///< in order of preference
  std::uint16_t port = 0;
  std::uint32_t timeout_ms = 0;
  std::string token = {};  ///< from StoreOpened; empty: accept the answer of any store
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.addresses), c(m.port), c(m.timeout_ms), c(m.token);
  }
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
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.node_rank), c(m.nodes), c(m.first_rank), c(m.local_world_size), c(m.world_size),
        c(m.max_restarts), c(m.master_addr), c(m.master_port), c(m.agent_store), c(m.interface_name),
        c(m.from);
  }
};

/// Ends the attempt: `signal` now, TERM near the end of `grace_ms` if that was another one, KILL at its end
/// (0: KILL now). A second Stop may only shorten the grace.
struct Stop {
  static constexpr std::uint8_t kType = 0x45;
  std::uint32_t attempt = 0;
  std::uint32_t grace_ms = 0;
  std::string reason;
  std::uint8_t signal = 15;  ///< SIGTERM, or the user's SIGINT or SIGHUP
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.grace_ms), c(m.reason), c(m.signal);
  }
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
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.deadline_ms), c(m.reason), c(m.kill);
  }
};

/// Passes a signal to every worker's leader.
struct Signal {
  static constexpr std::uint8_t kType = 0x46;
  std::uint8_t number = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.number);
  }
};

/// Collects evidence of a hang, before the attempt is stopped for it.
struct Inspect {
  static constexpr std::uint8_t kType = 0x4C;
  std::uint32_t attempt = 0;
  std::uint32_t timeout_ms = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.timeout_ms);
  }
};

/// Asks about running workers, for `ddplaunch stacks` and `ddplaunch exec`. It does not change the job.
struct Query {
  static constexpr std::uint8_t kType = 0x4F;
  std::uint32_t request = 0;  ///< a number of the master
  std::vector<std::uint32_t> ranks;
  std::vector<std::string> argv;  ///< a command to run as the first of `ranks` would; empty: stacks of all
  std::uint32_t timeout_ms = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.request), c(m.ranks), c(m.argv), c(m.timeout_ms);
  }
};

/// Nobody waits for the answer any more: ends what it runs.
struct CancelQuery {
  static constexpr std::uint8_t kType = 0x50;
  std::uint32_t request = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.request);
  }
};

/// Orders the agent to clean up and exit. The result of the job is for a node that was started by itself: its
/// own process then ends with the job's exit code.
struct Leave {
  static constexpr std::uint8_t kType = 0x47;
  std::int32_t code = 0;
  std::string text = {};  ///< one line: the cause
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.code), c(m.text);
  }
};

}  // namespace ddp::rendezvous
