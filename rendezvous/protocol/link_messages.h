#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Messages that keep a link going: heartbeats, credit, stdin, notices. Part of message.h, which describes
/// the encoding.
namespace ddp::rendezvous {

struct Ping {
  static constexpr std::uint8_t kType = 0x48;
  std::uint64_t sequence = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.sequence);
  }
};

struct Pong {
  static constexpr std::uint8_t kType = 0x0A;
  std::uint64_t sequence = 0;
  std::uint64_t clock_ns = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.sequence), c(m.clock_ns);
  }
};

/// Output bytes of one stream that the master has taken; the agent may send as many again. Each stream has
/// its own credit, so that a dying worker's last lines pass even if nobody reads the output of the others.
struct Credit {
  static constexpr std::uint8_t kType = 0x49;
  std::uint8_t stream = 1;
  std::uint32_t bytes = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.stream), c(m.bytes);
  }
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

/// The stdin of rank 0 took `bytes`; the master may send as many again. When rank 0 has ended, `read` is how
/// many bytes of all that were sent to this node a rank 0 has read.
struct StdinTaken {
  static constexpr std::uint8_t kType = 0x0C;
  std::uint32_t bytes = 0;
  bool ended = false;
  std::uint64_t read = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.bytes), c(m.ended), c(m.read);
  }
};

/// A message for the user, such as a refused connection to the store. Shown with the node's name.
struct Notice {
  static constexpr std::uint8_t kType = 0x0B;
  std::string text;
  bool detail = false;  ///< a completed step, shown only with --verbose
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.text), c(m.detail);
  }
};

}  // namespace ddp::rendezvous
