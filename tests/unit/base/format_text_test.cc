#include "base/format_text.h"

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace ddp;

TEST_CASE("a formatted text has any length") {
  CHECK(format_text("%d of %s", 3, "four") == "3 of four");
  CHECK(format_text("%s", std::string(5000, 'x').c_str()) == std::string(5000, 'x'));
  CHECK(format_text("%s", "").empty());
}

TEST_CASE("a count has the word in singular or plural") {
  CHECK(counted(1, "node") == "1 node");
  CHECK(counted(0, "node") == "0 nodes");
  CHECK(counted(std::size_t{2}, "process", "processes") == "2 processes");
  CHECK(counted(1, "process", "processes") == "1 process");
}

TEST_CASE("a duration has the largest unit that needs no long fraction") {
  using namespace std::chrono_literals;
  CHECK(format_duration(20ms) == "20 ms");
  CHECK(format_duration(2s) == "2 s");
  CHECK(format_duration(2500ms) == "2.5 s");
  CHECK(format_duration(90s) == "90 s");
  CHECK(format_duration(10min) == "10 min");
  CHECK(format_duration(1h) == "1 h");
}

TEST_CASE("words are joined, and many are cut short") {
  const std::vector<std::string> words{"a", "", "c"};
  CHECK(join({}, ", ").empty());
  CHECK(join(words, ", ") == "a, , c");
  CHECK(join_some(words, 3) == "a, , c");
  CHECK(join_some({"a", "b", "c"}, 1) == "a and 2 more");
  CHECK(join_alternatives({"a", "b", "c"}) == "a, b or c");
  CHECK(join_alternatives({"a", "b"}) == "a or b");
  CHECK(join_alternatives({"a"}) == "a");
  CHECK(quoted("a b") == "\"a b\"");
}
