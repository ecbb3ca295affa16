#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/job/job_spec.h"

namespace ddp::launcher {

/// Regular expressions that are searched in lines, all of them in one pass (sans-IO). Nothing backtracks:
/// each byte moves one automaton, whose states are made when they are first needed (Thompson 1968; decision
/// 0036).
///
/// Known are: characters, `.`, [classes], \d \w \s and their opposites, \b, \t, ( ), (?: ), |, * + ? {n,m}, ^
/// and $, and (?i) at the start. A backslash makes any other character that is no letter or digit literal.
/// They mean what they mean in Python's `re` for bytes. A line is bytes up to LF or CR, and not valid UTF-8
/// by necessity: a character beyond ASCII is a sequence of bytes, and cannot be in a class.
class LinePatterns {
 public:
  static constexpr std::size_t kMost = 16;               ///< patterns
  static constexpr std::size_t kMostText = 1000;         ///< bytes of a pattern
  static constexpr std::size_t kMostInstructions = 500;  ///< of a pattern, with its repetitions written out
  /// Of all patterns. The worst ones touch each of them for each byte, on the loop that renews leases.
  static constexpr std::size_t kMostOfAll = 1000;
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

/// Reads "REGEX=ACTION". The last '=' separates them. The error tells what is wrong with `text`.
Result<WatchRule> parse_watch_rule(const std::string& text);

/// Finds the lines of workers' output that the rules of --watch name (sans-IO; docs/users/hang.md). Lines of
/// progress bars count, too: CR ends a line as LF does.
class LineWatch {
 public:
  /// Ranks that are named for a rule in an attempt. Those that follow are only counted, so that thousands of
  /// ranks cannot bury other messages.
  static constexpr std::size_t kMostNamed = 8;

  /// The patterns of the rules are valid.
  explicit LineWatch(const std::vector<WatchRule>& rules);

  struct Hit {
    std::size_t rule = 0;
    std::string line;  ///< its first bytes, raw
  };
  /// Takes bytes of one stream of a rank, in order; empty: the stream has ended. Attempts follow each other.
  /// Returns the first line of the rank for each rule, once in an attempt.
  std::vector<Hit> add(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream,
                       std::string_view bytes);
  /// Returns a line for each rule of which add() has not told all: "--watch 'nan=report': 34 lines of ranks
  /// 0-7". Counting begins anew.
  std::vector<std::string> take_counts();

 private:
  struct Count {
    std::uint64_t lines = 0;
    std::size_t named = 0;
    std::set<int> ranks;
  };
  std::vector<WatchRule> rules_;
  LinePatterns patterns_;
  std::optional<std::uint32_t> attempt_;
  std::map<std::pair<std::uint32_t, std::uint8_t>, LinePatterns::Line> open_;  ///< by rank and stream
  std::vector<Count> counts_;                                                  ///< of each rule
};

}  // namespace ddp::launcher
