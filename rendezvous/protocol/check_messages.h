#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/protocol/job_messages.h"

/// The request of `ddplaunch check` to a node, and the answer. Part of message.h, which describes the
/// encoding.
namespace ddp::rendezvous {

/// One GPU of a node, as the driver reports it.
struct NodeGpu {
  std::string name;
  std::uint64_t memory = 0;  ///< bytes
  std::uint64_t memory_free = 0;
  std::uint32_t processes = 0;  ///< on the GPU already; none belongs to this job
  std::string holders;          ///< the first processes as text: "python 4711 (alice) 12.1 GiB"
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.name), c(m.memory), c(m.memory_free), c(m.processes), c(m.holders);
  }
};

/// Space in one directory of a node.
struct NodeDisk {
  std::string path;
  std::uint64_t size = 0;  ///< bytes; 0: not known, `trouble` has the reason
  std::uint64_t free = 0;  ///< for an ordinary user
  bool writable = false;
  std::string trouble;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.path), c(m.size), c(m.free), c(m.writable), c(m.trouble);
  }
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
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.system), c(m.os), c(m.system_trouble), c(m.directory), c(m.directory_trouble),
        c(m.environment_trouble), c(m.program), c(m.program_trouble), c(m.gpus), c(m.gpus_trouble),
        c(m.versions), c(m.nofile), c(m.most_files), c(m.memlock), c(m.processes), c(m.shm_size),
        c(m.shm_free), c(m.disks), c(m.features), c(m.infiniband), c(m.clock_ns), c(m.wall_ns), c(m.found),
        c(m.left);
  }
};

/// Asks what would prevent a job on this node, or ends what is left of one. Sent instead of JobStart; nothing
/// is started.
struct NodeCheck {
  static constexpr std::uint8_t kType = 0x4D;
  JobStart job;
  bool has_program = false;      ///< the job names a program to search for
  std::uint32_t timeout_ms = 0;  ///< per tool that is called
  bool clean = false;            ///< end all processes of `job.job_id`, whose master has ended; check nothing
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.job), c(m.has_program), c(m.timeout_ms), c(m.clean);
  }
};

}  // namespace ddp::rendezvous
