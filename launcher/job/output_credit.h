#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddp::launcher {

/// Output bytes of each stream that each of `nodes` nodes may have on the way: more makes larger pieces, and
/// all of it may come to lie in the master's memory when nobody reads.
constexpr std::uint32_t credit_window(std::size_t nodes) {
  constexpr std::size_t kAll = 16u << 20;
  return static_cast<std::uint32_t>(
      std::clamp<std::size_t>(kAll / (2 * std::max<std::size_t>(nodes, 1)), 64u << 10, 1u << 20));
}
/// Taken output is given back in pieces of this size: few messages, and an agent never runs dry meanwhile.
constexpr std::uint32_t credit_piece(std::size_t nodes) {
  return credit_window(nodes) / 4;
}

/// A read is worth its system call.
inline constexpr std::size_t kLeastRead = 4u << 10;

/// The output that an agent may still send, counted for each stream of its node (sans-IO): what nobody reads
/// of stdout never holds stderr back.
class OutputCredit {
 public:
  void start(std::size_t window);                     ///< of each stream
  void give(std::uint8_t stream, std::size_t bytes);  ///< the master has taken so many
  void spend(std::uint8_t stream,
             std::size_t bytes);   ///< so many were sent, perhaps more than there was room
  void lift() { lifted_ = true; }  ///< nobody takes output any more: nothing may wait
  /// 0 also while it is too little to be worth a read: more comes, for what was sent is given back.
  std::size_t room(std::uint8_t stream) const;

 private:
  std::array<std::ptrdiff_t, 2> room_{};  ///< negative: sent at a stop beyond the credit, and owed
  bool lifted_ = false;
};

/// Whose pipe is read next, and how far (sans-IO). Those with little come first and are read whole, so that a
/// loud rank never holds up the line of a quiet one. The loud ones take turns of a whole pipe each: a worker
/// that stands still before a full pipe would wake, and stop again, for each part of it. The driver's duties:
/// 1. ask for a round whenever there is something to read and room for it; 2. read each turn's bytes at most,
/// in the order given.
class OutputTurns {
 public:
  static constexpr std::size_t kLittle = 16u << 10;
  static constexpr std::size_t kMost = 256u << 10;  ///< a whole pipe

  struct Ready {
    std::uint32_t who = 0;
    std::size_t bytes = 0;  ///< that wait; 0: its end does
  };
  struct Turn {
    std::uint32_t who = 0;
    std::size_t bytes = 0;
  };

  /// `ready`: who has something to read, ascending. The turns' bytes together are `room` at most; who gets no
  /// turn comes earlier in the next round. Valid until the next call.
  std::span<const Turn> round(std::span<const Ready> ready, std::size_t room);
  /// The round ended early, `left` bytes before the end of the turn of `who`, who is loud: the next one
  /// begins with them.
  void cut_short(std::uint32_t who, std::size_t left) {
    next_loud_ = cut_who_ = who;
    cut_left_ = left;
  }

 private:
  void give_turns(std::span<const Ready> ready, bool loud, std::uint32_t& next, std::size_t& room);

  std::uint32_t next_quiet_ = 0;  ///< who begins
  std::uint32_t next_loud_ = 0;
  std::uint32_t cut_who_ = 0;
  std::size_t cut_left_ = 0;  ///< of the turn of cut_who_; 0: no turn was cut
  std::vector<Turn> turns_;
};

}  // namespace ddp::launcher
