#include "launcher/lines/line_watch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"

namespace ddp::launcher {

// ---- LinePatterns: from a pattern's text to a tree (Parser), from there to instructions (emit), and to the
// states of the automaton while lines are read.

namespace {

using ByteSet = std::bitset<256>;

constexpr int kMostRepeats = 1000;

bool is_letter_or_digit(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_word(unsigned char c) {
  return is_letter_or_digit(c) || c == '_';
}

bool ends_line(unsigned char c) {
  return c == '\n' || c == '\r';
}

ByteSet range(unsigned char first, unsigned char last) {
  ByteSet set;
  for (std::size_t c = first; c <= last; ++c)
    set.set(c);
  return set;
}

/// Returns what \d, \w, \s or an opposite of them stands for; unset: `letter` is none of these.
std::optional<ByteSet> named_class(char letter) {
  ByteSet set;
  switch (letter | 0x20) {
    case 'd': set = range('0', '9'); break;
    case 'w':
      for (std::size_t c = 0; c < set.size(); ++c)
        set[c] = is_word(static_cast<unsigned char>(c));
      break;
    case 's':
      for (const unsigned char c : {' ', '\t', '\n', '\r', '\f', '\v'})
        set.set(c);
      break;
    default: return std::nullopt;
  }
  return (letter & 0x20) != 0 ? set : ~set;
}

}  // namespace

struct LinePatterns::Node {
  enum class Kind : std::uint8_t { kSet, kEdge, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  ByteSet set = {};                                    ///< kSet
  Instruction::Kind edge = Instruction::Kind::kBegin;  ///< kEdge
  std::vector<Node> parts = {};                        ///< kRepeat has one
  int least = 0;                                       ///< kRepeat
  int most = -1;                                       ///< kRepeat; -1: any number
};

class LinePatterns::Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Node> parse() {
    if (text_.starts_with("(?i)")) {
      ignore_case_ = true;
      at_ = 4;
    }
    Node whole = choice();
    if (!error_ && at_ < text_.size()) fail(at_, "this ) closes no group");
    if (error_) return std::move(*error_);
    return whole;
  }

 private:
  bool more() const { return !error_ && at_ < text_.size(); }
  bool accept(char c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void fail(std::size_t at, const std::string& what) {
    if (!error_) error_ = Error{ErrorCode::kUsage, "position " + std::to_string(at + 1) + ": " + what, 0};
  }

  Node choice() {
    Node choice{.kind = Node::Kind::kChoice};
    do
      choice.parts.push_back(sequence());
    while (accept('|'));
    return choice.parts.size() == 1 ? std::move(choice.parts[0]) : choice;
  }

  Node sequence() {
    Node sequence;
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      const std::size_t begin = at_;
      Node part = piece();
      if (!more()) {
        sequence.parts.push_back(std::move(part));
        break;
      }
      sequence.parts.push_back(repeated(std::move(part), begin));
    }
    return sequence;
  }

  Node repeated(Node part, std::size_t begin) {
    const std::size_t at = at_;
    Node repeat{.kind = Node::Kind::kRepeat};
    if (!repetition(repeat)) return part;
    if (part.kind == Node::Kind::kEdge)
      fail(begin, quote(text_.substr(begin, at - begin)) + " cannot be repeated");
    (void)accept('?');  // without greed: the same lines match
    Node again;
    const std::size_t second = at_;
    if (repetition(again)) fail(second, "a repetition cannot be repeated; put it into ( )");
    repeat.parts.push_back(std::move(part));
    return repeat;
  }

  /// Reads *, +, ?, {n}, {n,}, {,m} or {n,m}. Any other { is a character.
  bool repetition(Node& repeat) {
    const std::size_t begin = at_;
    if (accept('*')) return true;
    if (accept('+')) return repeat.least = 1, true;
    if (accept('?')) return repeat.most = 1, true;
    if (!accept('{')) return false;
    const auto first = number();
    const bool comma = accept(',');
    const auto last = comma ? number() : first;
    if (!accept('}') || (!first && !comma)) return at_ = begin, false;
    repeat.least = first.value_or(0);
    repeat.most = last.value_or(-1);
    if (repeat.least > kMostRepeats || repeat.most > kMostRepeats)
      fail(begin, "at most " + std::to_string(kMostRepeats) + " repetitions are possible");
    if (repeat.most >= 0 && repeat.most < repeat.least) fail(begin, "the larger number comes first");
    return true;
  }

  std::optional<int> number() {
    const std::size_t begin = at_;
    while (more() && text_[at_] >= '0' && text_[at_] <= '9')
      ++at_;
    if (at_ == begin) return std::nullopt;
    return parse_number<int>(text_.substr(begin, at_ - begin)).value_or(kMostRepeats + 1);
  }

  Node piece() {
    const std::size_t begin = at_;
    const char c = text_[at_++];
    switch (c) {
      case '(': return group(begin);
      case '[': return bytes(class_set(begin));
      case '.': return bytes(range(0, 255));
      case '^': return edge(Instruction::Kind::kBegin);
      case '$': return edge(Instruction::Kind::kEnd);
      case '\\': return escaped(begin);
      case '*':
      case '+':
      case '?':
        fail(begin, quote(std::string(1, c)) + " repeats nothing; a backslash makes it a character");
        return {};
      default: return bytes(folded(range(static_cast<unsigned char>(c), static_cast<unsigned char>(c))));
    }
  }

  Node group(std::size_t begin) {
    if (text_.substr(at_).starts_with("?:"))
      at_ += 2;
    else if (more() && text_[at_] == '?')
      fail(begin,
           "of the groups that begin with (? only (?: ) is known, and (?i) at the start of the pattern");
    if (error_) return {};
    Node inside = choice();
    if (!accept(')')) fail(begin, "this ( is not closed");
    return inside;
  }

  Node escaped(std::size_t begin) {
    if (at_ == text_.size()) {
      fail(begin, "a backslash needs a character behind it");
      return {};
    }
    const char c = text_[at_++];
    if (c == 'b') return edge(Instruction::Kind::kWordEdge);
    if (c == 'B') return edge(Instruction::Kind::kNoWordEdge);
    if (const auto set = named_class(c)) return bytes(*set);
    return bytes(folded(literal(begin, c)));
  }

  /// Returns the one character that is written as `c` behind a backslash.
  ByteSet literal(std::size_t begin, char c) {
    if (c == 't') c = '\t';
    if (is_letter_or_digit(static_cast<unsigned char>(c)))
      fail(begin, quote(text_.substr(begin, 2)) +
                      " is not known; \\d \\w \\s \\b \\t are, and the opposites "
                      "\\D \\W \\S \\B");
    return range(static_cast<unsigned char>(c), static_cast<unsigned char>(c));
  }

  ByteSet class_set(std::size_t begin) {
    ByteSet set;
    const bool opposite = accept('^');
    for (bool first = true;; first = false) {
      if (!more()) {
        fail(begin, "this [ is not closed");
        return set;
      }
      if (!first && accept(']')) break;
      const std::size_t at = at_;
      const auto [low, one] = class_item();
      if (error_) return set;
      // A minus before the end is a character.
      const bool is_range = more() && text_[at_] == '-' && text_.substr(at_, 2) != "-]";
      if (!is_range) {
        set |= low;
        continue;
      }
      ++at_;
      if (!more()) continue;
      const auto [high, other] = class_item();
      if (error_) return set;
      if (!one || !other || *one > *other) {
        fail(at, quote(text_.substr(at, at_ - at)) + " is no range");
        return set;
      }
      set |= range(*one, *other);
    }
    set = folded(set);
    return opposite ? ~set : set;
  }

  /// Returns an item of a class, and its byte if it is a single one.
  std::pair<ByteSet, std::optional<unsigned char>> class_item() {
    const std::size_t begin = at_;
    char c = text_[at_++];
    if (static_cast<unsigned char>(c) >= 0x80) {
      fail(begin, "a class can only have ASCII characters; write alternatives: (ä|ö)");
    } else if (c == '[' && more() && text_[at_] == ':') {
      fail(begin, "named classes such as [:alpha:] are not known; use ranges, \\d, \\w or \\s");
    } else if (c == '\\') {
      if (at_ == text_.size()) {
        fail(begin, "a backslash needs a character behind it");
        return {};
      }
      c = text_[at_++];
      if (const auto set = named_class(c)) return {*set, std::nullopt};
      const ByteSet one = literal(begin, c);
      return {one, c == 't' ? static_cast<unsigned char>('\t') : static_cast<unsigned char>(c)};
    }
    return {range(static_cast<unsigned char>(c), static_cast<unsigned char>(c)),
            static_cast<unsigned char>(c)};
  }

  ByteSet folded(ByteSet set) const {
    if (!ignore_case_) return set;
    for (std::size_t upper = 'A'; upper <= 'Z'; ++upper)
      set[upper] = set[upper | 0x20] = set[upper] || set[upper | 0x20];
    return set;
  }

  static Node bytes(const ByteSet& set) { return {.kind = Node::Kind::kSet, .set = set}; }
  static Node edge(Instruction::Kind kind) { return {.kind = Node::Kind::kEdge, .edge = kind}; }

  std::string_view text_;
  std::size_t at_ = 0;
  bool ignore_case_ = false;
  std::optional<Error> error_;
};

// ---- from the tree to instructions

Result<> LinePatterns::add(std::string_view pattern) {
  if (pattern.empty()) return Error{ErrorCode::kUsage, "position 1: the pattern is empty", 0};
  if (pattern.size() > kMostText) {
    return Error{ErrorCode::kUsage,
                 "position " + std::to_string(kMostText + 1) + ": a pattern has at most " +
                     std::to_string(kMostText) + " bytes",
                 0};
  }
  DDP_REQUIRE(begins_.size() < kMost, begins_.size());
  const Node tree = DDP_TRY(Parser(pattern).parse());
  const std::size_t before = program_.size();
  program_.push_back({Instruction::Kind::kMatch, 0, static_cast<std::uint16_t>(begins_.size())});
  auto begin = static_cast<std::uint16_t>(before);
  if (!emit(tree, begin, std::min(before + kMostInstructions, kMostOfAll))) {
    program_.resize(before);
    if (kMostOfAll < before + kMostInstructions)
      return Error{ErrorCode::kUsage,
                   "position 1: the patterns together are too large with their repetitions written out; at "
                   "most " +
                       std::to_string(kMostOfAll) + " characters and choices",
                   0};
    return Error{ErrorCode::kUsage,
                 "position 1: the pattern is too large with its repetitions written out; at "
                 "most " +
                     std::to_string(kMostInstructions) + " characters and choices",
                 0};
  }
  begins_.push_back(begin);
  prepared_ = false;
  return {};
}

/// Adds the instructions of `node`, behind which those at `next` follow, and sets `next` to its own first
/// one. Returns false when there would be more than `most`.
bool LinePatterns::emit(const Node& node, std::uint16_t& next, std::size_t most) {
  const auto append = [&](Instruction instruction) {
    program_.push_back(instruction);
    return static_cast<std::uint16_t>(program_.size() - 1);
  };
  if (program_.size() >= most) return false;
  switch (node.kind) {
    case Node::Kind::kSet: next = append({Instruction::Kind::kSet, next, 0, node.set}); return true;
    case Node::Kind::kEdge: next = append({node.edge, next}); return true;
    case Node::Kind::kSequence:
      for (auto part = node.parts.rbegin(); part != node.parts.rend(); ++part)
        if (!emit(*part, next, most)) return false;
      return true;
    case Node::Kind::kChoice: {
      std::optional<std::uint16_t> begin;
      for (const Node& part : node.parts) {
        std::uint16_t way = next;
        if (!emit(part, way, most)) return false;
        begin = begin ? append({Instruction::Kind::kSplit, *begin, way}) : way;
      }
      next = *begin;
      return true;
    }
    case Node::Kind::kRepeat: {
      const std::uint16_t end = next;
      if (node.most < 0) {
        const std::uint16_t loop = append({Instruction::Kind::kSplit, 0, end});
        next = loop;
        if (!emit(node.parts[0], next, most)) return false;
        program_[loop].next = next;
        next = loop;
      }
      for (int i = node.least; i < node.most; ++i) {
        if (!emit(node.parts[0], next, most)) return false;
        next = append({Instruction::Kind::kSplit, next, end});
      }
      for (int i = 0; i < node.least; ++i) {
        const std::size_t before = program_.size();
        if (!emit(node.parts[0], next, most)) return false;
        if (program_.size() == before) break;  // nothing, so often: nested, this would take for ever
      }
      return true;
    }
  }
  return false;
}

// ---- states

/// Finds the classes of bytes: those that are in the same sets.
void LinePatterns::prepare() {
  prepared_ = true;
  std::map<std::vector<bool>, std::uint16_t> classes;
  example_ = {'\n'};
  for (std::size_t c = 0; c < class_of_.size(); ++c) {
    const auto byte = static_cast<unsigned char>(c);
    std::vector<bool> member{is_word(byte)};
    for (const Instruction& instruction : program_)
      if (instruction.kind == Instruction::Kind::kSet) member.push_back(instruction.set[c]);
    if (ends_line(byte)) {
      class_of_[c] = kEndClass;
      continue;
    }
    const auto [found, is_new] = classes.try_emplace(member, static_cast<std::uint16_t>(example_.size()));
    if (is_new) example_.push_back(byte);
    class_of_[c] = found->second;
  }
  clear_states();
}

void LinePatterns::clear_states() {
  ++generation_;
  numbers_.clear();
  states_.assign(1, nullptr);
  flags_.assign(1, 0);
  transitions_.assign(example_.size(), kUnknown);
}

std::uint16_t LinePatterns::number_of(State state) {
  const auto [found, is_new] =
      numbers_.try_emplace(std::move(state), static_cast<std::uint16_t>(states_.size()));
  if (is_new) {
    states_.push_back(&found->first);
    flags_.push_back(std::get<2>(found->first));
    transitions_.resize(transitions_.size() + example_.size(), kUnknown);
  }
  return found->second;
}

/// Follows splits and edges from all instructions of the state and from the begin of each pattern, because a
/// match may begin at any byte. Edges are decided only here, where the byte behind them is known.
std::uint16_t LinePatterns::make_transition(std::uint16_t from, std::size_t byte_class) {
  const auto& [pending, before, flags] = *states_[from];
  const bool at_end = byte_class == kEndClass;
  const unsigned char byte = example_[byte_class];
  const bool edge = (before == Before::kWord) != (!at_end && is_word(byte));
  std::vector<bool> seen(program_.size());
  std::vector<std::uint16_t> open(pending);
  open.insert(open.end(), begins_.begin(), begins_.end());
  std::vector<std::uint16_t> next;
  std::uint32_t found = 0;
  while (!open.empty()) {
    const std::uint16_t at = open.back();
    open.pop_back();
    if (seen[at]) continue;
    seen[at] = true;
    const Instruction& instruction = program_[at];
    bool passes = true;
    switch (instruction.kind) {
      case Instruction::Kind::kSet:
        if (!at_end && instruction.set[byte]) next.push_back(instruction.next);
        continue;
      case Instruction::Kind::kMatch: found |= 1u << instruction.other; continue;
      case Instruction::Kind::kSplit: open.push_back(instruction.other); break;
      case Instruction::Kind::kBegin: passes = before == Before::kBegin; break;
      case Instruction::Kind::kEnd: passes = at_end; break;
      case Instruction::Kind::kWordEdge: passes = edge; break;
      case Instruction::Kind::kNoWordEdge: passes = !edge; break;
    }
    if (passes) open.push_back(instruction.next);
  }
  std::ranges::sort(next);
  next.erase(std::unique(next.begin(), next.end()), next.end());
  State state{std::move(next), is_word(byte) ? Before::kWord : Before::kOther, found};
  if (at_end) state = {{}, Before::kBegin, found | kEnded};
  if (states_.size() > kMostStates) {
    clear_states();
    return number_of(std::move(state));
  }
  const std::uint16_t to = number_of(std::move(state));
  transitions_[from * example_.size() + byte_class] = to;
  return to;
}

std::size_t LinePatterns::read(std::string_view bytes, Line& line) {
  if (!prepared_) prepare();
  const auto advance = [this](std::uint16_t state, char byte) {
    const std::size_t byte_class = class_of_[static_cast<unsigned char>(byte)];
    const std::uint16_t next = transitions_[state * example_.size() + byte_class];
    return next != kUnknown ? next : make_transition(state, byte_class);
  };
  if (std::exchange(line.ended, false)) line.text.clear(), line.found = 0;
  std::uint16_t state = line.state;
  if (line.generation != generation_) {
    // The states were made again since. What is kept of the line leads to the new one.
    state = number_of({{}, Before::kBegin, 0});
    for (const char byte : line.text)
      state = advance(state, byte);
  }
  std::size_t at = 0;
  while (at < bytes.size() && !line.ended) {
    // Known transitions to states that complete nothing: all that happens for most bytes.
    const std::uint16_t* const transitions = transitions_.data();
    const std::uint32_t* const flags = flags_.data();
    for (const std::size_t width = example_.size(); at < bytes.size(); ++at) {
      const std::uint16_t next =
          transitions[state * width + class_of_[static_cast<unsigned char>(bytes[at])]];
      if (next == kUnknown || flags[next] != 0) break;
      state = next;
    }
    if (at == bytes.size()) break;
    state = advance(state, bytes[at++]);
    line.found |= flags_[state] & ~kEnded;
    line.ended = (flags_[state] & kEnded) != 0;
  }
  line.state = state;
  line.generation = generation_;
  if (!line.ended || line.found != 0)
    line.text += bytes.substr(0, std::min(at - (line.ended ? 1 : 0), Line::kKept - line.text.size()));
  return at;
}

// ---- the rules of --watch

Result<WatchRule> parse_watch_rule(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  const std::string action = equals == std::string::npos ? "" : text.substr(equals + 1);
  const auto known = std::ranges::find(WatchRule::kActions, action);
  if (known == WatchRule::kActions.end())
    return Error{ErrorCode::kUsage, "give REGEX=ACTION, and as ACTION report, hang or fail", 0};
  WatchRule rule{text.substr(0, equals), static_cast<WatchRule::Action>(known - WatchRule::kActions.begin())};
  LinePatterns patterns;
  DDP_TRY(patterns.add(rule.pattern));
  return rule;
}

LineWatch::LineWatch(const std::vector<WatchRule>& rules) : rules_(rules), counts_(rules.size()) {
  for (const WatchRule& rule : rules_) {
    const auto added = patterns_.add(rule.pattern);
    DDP_REQUIRE(added.has_value(), rule.pattern);
  }
}

std::vector<LineWatch::Hit> LineWatch::add(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream,
                                           std::string_view bytes) {
  if (attempt_ != attempt) {
    attempt_ = attempt;
    open_.clear();
    counts_.assign(rules_.size(), {});
  }
  LinePatterns::Line& line = open_[{rank, stream}];
  std::vector<Hit> hits;
  if (bytes.empty() && !line.ended && !line.text.empty()) bytes = "\n";  // the last line lacks its end
  while (!bytes.empty()) {
    bytes.remove_prefix(patterns_.read(bytes, line));
    if (!line.ended || line.found == 0) continue;
    for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
      if ((line.found >> rule & 1) == 0) continue;
      Count& count = counts_[rule];
      ++count.lines;
      if (!count.ranks.insert(static_cast<int>(rank)).second || count.named == kMostNamed) continue;
      ++count.named;
      hits.push_back({rule, line.text});
    }
  }
  return hits;
}

std::vector<std::string> LineWatch::take_counts() {
  std::vector<std::string> texts;
  for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
    const Count count = std::exchange(counts_[rule], {});
    if (count.lines <= count.named) continue;
    texts.push_back(rules_[rule].text() + ": " + counted(count.lines, "line") + " of " +
                    format_ranks({count.ranks.begin(), count.ranks.end()}));
  }
  return texts;
}

}  // namespace ddp::launcher
