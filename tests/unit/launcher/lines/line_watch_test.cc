#include "launcher/lines/line_watch.h"

#include <random>

#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::launcher;

namespace {

/// Returns whether the pattern is found in the line, which comes in pieces of one byte.
bool matches(std::string_view pattern, std::string_view line) {
  LinePatterns patterns;
  REQUIRE(patterns.add(pattern).has_value());
  LinePatterns::Line state;
  for (const char byte : line)
    patterns.read({&byte, 1}, state);
  patterns.read("\n", state);
  REQUIRE(state.ended);
  return state.found == 1;
}

std::string error_of(std::string_view pattern) {
  const auto added = LinePatterns().add(pattern);
  return added ? "" : added.error().text;
}

}  // namespace

TEST_CASE("patterns are found anywhere in a line, as with re.search") {
  struct Row {
    const char* pattern;
    const char* found;
    const char* not_found;
  };
  const auto row = GENERATE(
      Row{"nan", "loss=nan", "loss=na n"}, Row{"(?i)\\bnan\\b", "loss: NaN!", "finance"},
      Row{"loss[=: ]+(nan|-?inf)", "loss: -inf", "loss 1.0"}, Row{"^step \\d{3,}$", "step 1000", "step 12"},
      Row{"a{2}b", "caab", "cab"}, Row{"^a{1,2}$", "aa", "aaa"}, Row{"^a{,1}$", "a", "aa"},
      Row{"x{y}", "x{y}", "xy"}, Row{"^(?:ab|c)*?$", "abcab", "aba"}, Row{"[^a-c]", "d", "abc"},
      Row{"[]x]", "]", "[a"}, Row{"[a-]", "-", "b"}, Row{"[\\d.]+ s/it", "3.5 s/it", "fast s/it"},
      Row{"\\[\\w+\\]\\t", "[gpu]\t", "[gpu] "}, Row{"a.c", "a\tc", "ac"}, Row{"ü", "für", "fur"},
      Row{"\\D\\W\\S", "a b", "1 b"}, Row{"a|^$", "", "b"}, Row{"o\\Bx", "fox", "o x"});
  CAPTURE(row.pattern);
  CHECK(matches(row.pattern, row.found));
  CHECK_FALSE(matches(row.pattern, row.not_found));
}

TEST_CASE("errors in a pattern, with the position") {
  CHECK(error_of("") == "position 1: the pattern is empty");
  CHECK(error_of("a(b") == "position 2: this ( is not closed");
  CHECK(error_of("ab)") == "position 3: this ) closes no group");
  CHECK(error_of("x[a-") == "position 2: this [ is not closed");
  CHECK(error_of("[z-a]") == "position 2: \"z-a\" is no range");
  CHECK(error_of("a|*b") == "position 3: \"*\" repeats nothing; a backslash makes it a character");
  CHECK(error_of("a**") == "position 3: a repetition cannot be repeated; put it into ( )");
  CHECK(error_of("^*") == "position 1: \"^\" cannot be repeated");
  CHECK(error_of("a{3,2}") == "position 2: the larger number comes first");
  CHECK(error_of("a{1001}") == "position 2: at most 1000 repetitions are possible");
  CHECK(error_of("a\\") == "position 2: a backslash needs a character behind it");
  CHECK(error_of("(a)\\1") ==
        "position 4: \"\\1\" is not known; \\d \\w \\s \\b \\t are, and the opposites \\D \\W \\S \\B");
  CHECK(error_of("a(?=b)") ==
        "position 2: of the groups that begin with (? only (?: ) is known, and (?i) at the start of the "
        "pattern");
  CHECK(error_of("[[:alpha:]]") ==
        "position 2: named classes such as [:alpha:] are not known; use ranges, \\d, \\w or \\s");
  CHECK(error_of("[ä]") == "position 2: a class can only have ASCII characters; write alternatives: (ä|ö)");
  CHECK(error_of("((a{100}){100}){100}") ==
        "position 1: the pattern is too large with its repetitions written out; at most 500 characters and "
        "choices");
  CHECK(error_of(std::string(1001, 'a')) == "position 1001: a pattern has at most 1000 bytes");
  // The number is larger than any type.
  CHECK(error_of("a{99999999999999999999}") == "position 2: at most 1000 repetitions are possible");
}

// The time of an engine that backtracks grows exponentially with the length of such a line: the test would
// not end. The last pattern has 2^21 states, of which most lines need new ones.
TEST_CASE("no pattern and no line take more than linear time") {
  const std::string as(100'000, 'a');
  CHECK_FALSE(matches("(a+)+$", as + 'b'));
  CHECK_FALSE(matches("(a|aa)+$", as + 'b'));
  CHECK_FALSE(matches("(.*)(.*)(.*)(.*)[^a]$", as));
  CHECK_FALSE(matches("^((a?){15}){15}b", as));
  std::string nothing;
  for (int i = 0; i < 100; ++i)
    nothing = "(" + nothing + "){1000}";
  CHECK(matches(nothing, "a"));
  std::string random;
  std::mt19937 bits(1);
  while (random.size() < 20'000)
    random += static_cast<char>('a' + bits() % 2);
  CHECK(matches("(a|b)*a(a|b){20}c", random + std::string(1, 'a') + std::string(20, 'b') + 'c'));
}

TEST_CASE("the patterns of a job have a limit together") {
  LinePatterns patterns;
  REQUIRE(patterns.add("a[ab]{400}x").has_value());
  REQUIRE(patterns.add("b[ab]{400}x").has_value());
  CHECK(patterns.add("c[ab]{400}x").error().text ==
        "position 1: the patterns together are too large with their repetitions written out; at most 1000 "
        "characters and choices");
  CHECK(patterns.add("c[ab]{100}x").has_value());
  LinePatterns::Line line;
  patterns.read("c" + std::string(100, 'a') + "x\n", line);
  CHECK(line.found == 4);
}

TEST_CASE("states that are made again do not change what an open line matches") {
  LinePatterns patterns;
  REQUIRE(patterns.add("^start.*end$").has_value());
  REQUIRE(patterns.add("(a|b)*a(a|b){20}c").has_value());
  LinePatterns::Line first;
  patterns.read("start ", first);
  LinePatterns::Line other;
  std::mt19937 bits(1);
  for (std::size_t i = 0; i < 4 * LinePatterns::kMostStates; ++i)
    patterns.read(bits() % 2 == 0 ? "a" : "b", other);
  CHECK(other.text.size() == LinePatterns::Line::kKept);
  patterns.read("the end\nanother\n", first);
  CHECK(first.ended);
  CHECK(first.found == 1);
  CHECK(first.text == "start the end");
}

TEST_CASE("a rule of --watch") {
  const auto rule = parse_watch_rule("loss=nan=fail");
  REQUIRE(rule.has_value());
  CHECK(rule->pattern == "loss=nan");
  CHECK(rule->text() == "--watch 'loss=nan=fail'");
  CHECK(parse_watch_rule("nan=kill").error().text == "give REGEX=ACTION, and as ACTION report, hang or fail");
  CHECK(parse_watch_rule("nan").error().text == "give REGEX=ACTION, and as ACTION report, hang or fail");
  CHECK(parse_watch_rule("(=fail").error().text == "position 1: this ( is not closed");
}

TEST_CASE("each rank is named once for each rule, and the rest is counted") {
  LineWatch watch({{"nan", WatchRule::Action::kReport}, {"^slow", WatchRule::Action::kReport}});
  CHECK(watch.add(0, 3, 1, "loss na").empty());
  const auto hits = watch.add(0, 3, 1, "n\rloss nan\nfine\nslow ");
  REQUIRE(hits.size() == 1);
  CHECK(hits[0].rule == 0);
  CHECK(hits[0].line == "loss nan");
  CHECK(watch.add(0, 3, 2, "nan\n").empty());
  // The stream ends without a line end, and with one.
  REQUIRE(watch.add(0, 3, 1, "").size() == 1);
  CHECK(watch.add(0, 3, 1, "").empty());
  for (std::uint32_t rank = 4; rank < 20; ++rank)
    CHECK(watch.add(0, rank, 2, "a nan\n").size() == (rank - 3 < LineWatch::kMostNamed ? 1 : 0));
  CHECK(watch.take_counts() == std::vector<std::string>{"--watch 'nan=report': 19 lines of ranks 3-19"});
  CHECK(watch.take_counts().empty());
  // Another attempt begins, with open lines of its own.
  CHECK(watch.add(1, 3, 1, "nan\n").size() == 1);
}
