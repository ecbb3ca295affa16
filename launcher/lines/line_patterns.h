#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/result.h"

namespace ddp::launcher {

/// Regular expressions that are searched in lines, all of them in one pass (sans-IO). Nothing backtracks:
/// each byte moves one automaton, whose states are made when they are first needed (Thompson 1968; decision
/// 0036).
///
/// Known are: characters, `.`, [classes], \d \w \s and their opposites, \b, \t, ( ), (?: ), |, * + ? {n,m}, ^
/// and $, and (?i) at the begin. A backslash makes any other character that is no letter or digit literal.
/// They mean what they mean in Python's `re` for bytes. A line is bytes up to LF or CR, and not valid UTF-8
/// by necessity: a character beyond ASCII is a sequence of bytes, and cannot be in a class.
class LinePatterns {
 public:
  static constexpr std::size_t kMost = 16;               ///< patterns
  static constexpr std::size_t kMostText = 1000;         ///< bytes of a pattern
  static constexpr std::size_t kMostInstructions = 500;  ///< of a pattern, with its repetitions written out
  /// Above it all states are made again. With them go at most 1 MiB of transitions.
  static constexpr std::size_t kMostStates = 2000;

  /// Adds a pattern. The error has the position in it: "position 5: …".
  Result<> add(std::string_view pattern);

  /// The line at which a stream is.
  struct Line {
    static constexpr std::size_t kKept = 256;

    std::string text;         ///< of a line that is not complete: its first bytes, at most kKept
    std::uint32_t found = 0;  ///< bit N: it matches the pattern that was added as number N
    bool ended = false;

   private:
    friend class LinePatterns;
    std::uint16_t state = 0;
    std::uint64_t generation = 0;  ///< of `state`; 0: none
  };
  /// Reads `bytes` up to the end of the line, with it, and returns their number. `line.ended` tells whether
  /// the end was there. `text` is then the line's begin if the line matches, and the next call begins another
  /// line.
  std::size_t read(std::string_view bytes, Line& line);

 private:
  /// Bytes of one class move every state alike. Class 0 are the ends of lines.
  static constexpr std::size_t kEndClass = 0;
  static constexpr std::uint16_t kUnknown = 0;  ///< a transition that is not made yet

  struct Instruction {
    enum class Kind : std::uint8_t { kSet, kSplit, kBegin, kEnd, kWordEdge, kNoWordEdge, kMatch };
    Kind kind = Kind::kMatch;
    std::uint16_t next = 0;
    std::uint16_t other = 0;    ///< kSplit: the second way; kMatch: the pattern's number
    std::bitset<256> set = {};  ///< kSet: bytes
  };
  enum class Before : std::uint8_t { kBegin, kWord, kOther };  ///< what precedes the present byte
  /// Where the automaton is between two bytes: instructions, in ascending order, what precedes, and what
  /// flags_ has of it.
  using State = std::tuple<std::vector<std::uint16_t>, Before, std::uint32_t>;
  static constexpr std::uint32_t kEnded = 1u << 31;  ///< in flags_, above the bits of Line::found

  struct Node;
  class Parser;
  bool emit(const Node& node, std::uint16_t& next, std::size_t most);
  void prepare();
  void clear_states();
  std::uint16_t number_of(State state);
  std::uint16_t make_transition(std::uint16_t from, std::size_t byte_class);

  std::vector<Instruction> program_;
  std::vector<std::uint16_t> begins_;  ///< of each pattern
  bool prepared_ = false;
  std::array<std::uint16_t, 256> class_of_{};
  std::vector<unsigned char> example_;  ///< a byte of each class
  std::map<State, std::uint16_t> numbers_;
  std::vector<const State*> states_;        ///< by number; number 0 is no state
  std::vector<std::uint32_t> flags_;        ///< of each state: patterns that the last byte completed, kEnded
  std::vector<std::uint16_t> transitions_;  ///< of each state and class
  std::uint64_t generation_ = 0;            ///< changes when numbers lose their meaning
};

}  // namespace ddp::launcher
