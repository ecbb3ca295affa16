#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddp::launcher {

/// Returns how many output bytes of each stream each of `nodes` nodes may have in transit. More makes larger
/// pieces, but all of it may fill the master's memory when the output is not read.
constexpr std::uint32_t credit_window(std::size_t nodes) {
  constexpr std::size_t kAll = 8u << 20;
  return static_cast<std::uint32_t>(
      std::clamp<std::size_t>(kAll / (2 * std::max<std::size_t>(nodes, 1)), 32u << 10, 1u << 20));
}
/// Returns the size of the pieces in which credit is given back: few messages, but an agent never runs dry.
constexpr std::uint32_t credit_piece(std::size_t nodes) {
  return credit_window(nodes) / 4;
}

/// The smallest read that is worth a system call.
inline constexpr std::size_t kLeastRead = 4u << 10;

/// The output that an agent may still send, counted per stream of its node (sans-IO). Unread stdout therefore
/// never holds stderr back.
class OutputCredit {
 public:
  void start(std::size_t window);                    ///< of each stream
  void add(std::uint8_t stream, std::size_t bytes);  ///< the master has taken `bytes`
  void spend(std::uint8_t stream,
             std::size_t bytes);   ///< `bytes` were sent, perhaps beyond the room
  void lift() { lifted_ = true; }  ///< the output has no reader: never wait
  /// Returns 0 also if the room is too small for a read. It grows again, because the credit of sent bytes is
  /// given back.
  std::size_t room(std::uint8_t stream) const;

 private:
  std::array<std::ptrdiff_t, 2> room_{};  ///< negative: sent beyond the credit at a stop, and owed
  bool lifted_ = false;
};

/// Decides which pipe is read next, and how far (sans-IO). Pipes with little data come first and are read
/// whole, so that a loud rank never delays the line of a quiet one. Loud ranks take turns of a whole pipe
/// each; otherwise a worker that is blocked on a full pipe would wake and block again for each part. The
/// driver's duties: 1. ask for a round whenever there is something to read and room for it; 2. read at most
/// each turn's bytes, in the given order.
class OutputTurns {
 public:
  static constexpr std::size_t kLittle = 16u << 10;
  static constexpr std::size_t kMost = 256u << 10;  ///< a whole pipe

  struct Ready {
    std::uint32_t who = 0;
    std::size_t bytes = 0;  ///< waiting bytes; 0: only the end of the stream waits
  };
  struct Turn {
    std::uint32_t who = 0;
    std::size_t bytes = 0;
  };

  /// `ready` lists the pipes with something to read, ascending. The turns take at most `room` bytes together.
  /// A pipe without a turn comes earlier in the next round. The result is valid until the next call.
  std::span<const Turn> round(std::span<const Ready> ready, std::size_t room);

 private:
  void give_turns(std::span<const Ready> ready, bool loud, std::uint32_t& next, std::size_t& room);

  std::uint32_t next_quiet_ = 0;  ///< the first in the next round
  std::uint32_t next_loud_ = 0;
  std::vector<Turn> turns_;
};

}  // namespace ddp::launcher
