#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Messages from an agent about its workers. Part of message.h, which describes the encoding.
namespace ddp::rendezvous {

struct WorkerStarted {
  static constexpr std::uint8_t kType = 0x06;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::uint32_t pid = 0;
  std::uint64_t clock_ns = 0;
  std::uint32_t start_attempt = 0;  ///< attempt in which the process was started and from which it survives
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.rank), c(m.pid), c(m.clock_ns), c(m.start_attempt);
  }
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
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.rank), c(m.pid), c(m.code), c(m.sys), c(m.signal), c(m.core), c(m.clock_ns), c(m.text),
        c(m.by_revoke), c(m.after_stop), c(m.late_kill);
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

/// Every worker of the attempt is reaped, its output is sent, and its process tree is gone. `left` counts
/// processes of the job that could not be killed; `left_text` names them.
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

/// Evidence about an abnormal exit beyond the exit status. Follows the WorkerExited of the same rank, before
/// AttemptEnded. The node sends none if it knows nothing more.
struct WorkerEvidence {
  static constexpr std::uint8_t kType = 0x0D;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::string oom;         ///< where the node read that the OOM killer ended it, as text
  std::string xid;         ///< Xid lines of the NVIDIA driver from the time of its end
  std::string error_json;  ///< the content of TORCHELASTIC_ERROR_FILE, as `@record` writes it; at most 32 KiB
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.rank), c(m.oom), c(m.xid), c(m.error_json);
  }
};

/// The collective operations of a worker when it ended or left a failed attempt, if it records them (`train`
/// does). Sent before AttemptEnded or AttemptRevoked; not sent when all workers of the node ended normally.
struct WorkerCollectives {
  static constexpr std::uint8_t kType = 0x15;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::string log;  ///< dump_text(), flight_recorder.h
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.rank), c(m.log);
  }
};

/// Since when no worker of this node has written anything or used CPU time. Sent when it changes, and only
/// with a hang timeout.
struct Quiet {
  static constexpr std::uint8_t kType = 0x0E;
  std::uint32_t attempt = 0;
  bool quiet = false;
  std::uint64_t since_ns = 0;  ///< the node's CLOCK_MONOTONIC at the last activity; only while quiet
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.quiet), c(m.since_ns);
  }
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
  std::vector<std::uint64_t> durations;  ///< of all `ranks` together: StepDurations::counts
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.ranks), c(m.steps), c(m.losses), c(m.phases), c(m.counts), c(m.seconds), c(m.durations);
  }
};

/// Answer to Inspect: for each running rank one with its state, possibly more with further text, then one
/// with `last`.
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
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.rank), c(m.last), c(m.state), c(m.text), c(m.steps), c(m.step);
  }
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
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.request), c(m.rank), c(m.text), c(m.last), c(m.code), c(m.trouble);
  }
};

// ---- workers that survive attempts (docs/developers/worker_protocol.md)

/// All running workers of the node have announced that they can leave the attempt and join another.
struct WorkersGreeted {
  static constexpr std::uint8_t kType = 0x11;
  std::uint32_t attempt = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt);
  }
};

/// All running workers of the node take part in the attempt and have the training state.
struct WorkersReady {
  static constexpr std::uint8_t kType = 0x12;
  std::uint32_t attempt = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt);
  }
};

/// A rank could not reach others. This is only evidence, and has no consequence if a death explains it.
struct WorkerInTrouble {
  static constexpr std::uint8_t kType = 0x13;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::string text;
  std::vector<std::uint32_t> peers;  ///< ranks that it considers lost
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.rank), c(m.text), c(m.peers);
  }
};

/// A worker that has left its attempt.
struct Survivor {
  std::uint32_t local_rank = 0;
  bool holds_state = false;
  std::uint64_t step = 0;  ///< step of the state that it holds
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.local_rank), c(m.holds_state), c(m.step);
  }
};

/// Answer to Revoke instead of AttemptEnded if workers survive. The survivors have left the attempt and wait;
/// all other workers of the node are dead, and their output is sent.
struct AttemptRevoked {
  static constexpr std::uint8_t kType = 0x14;
  std::uint32_t attempt = 0;
  std::vector<Survivor> survivors;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.survivors);
  }
};

}  // namespace ddp::rendezvous
