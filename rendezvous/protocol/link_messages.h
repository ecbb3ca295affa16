#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// What keeps a link going: signs of life, credit, stdin, words for the user. Part of message.h, which says
/// how they are written.
namespace ddp::rendezvous {

struct Ping {
  static constexpr std::uint8_t kType = 0x48;
  std::uint64_t sequence = 0;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.sequence);
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

/// The master is being stopped by its user (Ctrl-Z): its silence means nothing until the next message.
/// Answered by a Pong with the sequence kAsleep.
struct MasterAsleep {
  static constexpr std::uint8_t kType = 0x4A;
  template <class M, class C>
  static void fields(M&, C&) {}
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

/// Bytes for the stdin of rank 0; empty = end of file.
struct Stdin {
  static constexpr std::uint8_t kType = 0x4B;
  std::string_view data;
  template <class M, class C>
  static void fields(M& m, C& c) {
    c(m.data);
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

}  // namespace ddp::rendezvous
