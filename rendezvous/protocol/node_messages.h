#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Messages from an agent about its node, and answers for the whole node. Part of message.h, which describes
/// the encoding.
namespace ddp::rendezvous {

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
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.hostname), c(m.machine_id), c(m.pid), c(m.cpus), c(m.gpus), c(m.clock_ns), c(m.interfaces),
        c(m.workers), c(m.keeper), c(m.pid_namespace);
  }
};

/// Answer to JobStart: this node can run the job (or `Refused`).
struct JobAccepted {
  static constexpr std::uint8_t kType = 0x02;
  std::string program;                       ///< the resolved program, for the plan and the report
  std::vector<std::string> infiniband = {};  ///< adapters with an active InfiniBand port: "mlx5_0"
  std::string no_infiniband = {};  ///< why NCCL would not use the adapters, as text; empty: no obstacle
  bool predecessor_gone =
      false;  ///< proven: all of JobStart::predecessor have ended, without any process left
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.program), c(m.infiniband), c(m.no_infiniband), c(m.predecessor_gone);
  }
};

/// The node cannot do what the last request demanded. `code` is an ErrorCode.
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
  std::string token = {};  ///< only this store answers to it; for Probe
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.port), c(m.token);
  }
};

/// Answer to Probe. `address` is the first candidate that answered; empty: none did. `text` says why the
/// candidates before it did not.
struct ProbeResult {
  static constexpr std::uint8_t kType = 0x05;
  std::uint32_t attempt = 0;
  std::string address;
  std::string text;
  std::string local = {};  ///< the node's own address on the route to `address`
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.attempt), c(m.address), c(m.text), c(m.local);
  }
};

}  // namespace ddp::rendezvous
