#include "base/text.h"

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
  CHECK(quote("a b") == "\"a b\"");
}

TEST_CASE("a measured time has three or four digits") {
  using namespace std::chrono_literals;
  CHECK(format_elapsed(42'900us) == "42 ms");
  CHECK(format_elapsed(999ms) == "999 ms");
  CHECK(format_elapsed(1s) == "1.0 s");
  CHECK(format_elapsed(119'900ms) == "119.9 s");
  CHECK(format_elapsed(2min) == "2 min");
  CHECK(format_elapsed(119min + 59s) == "119 min");
  CHECK(format_elapsed(205min) == "3 h 25 min");
}

TEST_CASE("bytes have a binary unit") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes(std::uint64_t{120} << 30) == "120 GiB");
  CHECK(format_bytes(~std::uint64_t{0} - 1) == "16384 PiB");
  CHECK(format_bytes(~std::uint64_t{0}) == "unlimited");
}

TEST_CASE("an endpoint has brackets only around an IPv6 address") {
  CHECK(format_endpoint("gpu01", 22) == "gpu01:22");
  CHECK(format_endpoint("10.0.0.1", 29500) == "10.0.0.1:29500");
  CHECK(format_endpoint("fe80::1%eth0", 1) == "[fe80::1%eth0]:1");
}

TEST_CASE("numbers are sorted runs, and many are cut short") {
  CHECK(format_number_set({}).empty());
  CHECK(format_number_set({3, 1, 2, 1}) == "1-3");
  CHECK(format_number_set({0, 2, 3, 9, 10, 11, 20}) == "0,2-3,9-11,20");
  CHECK(format_number_set({0, 2, 4}, 3) == "0,2,4");
  CHECK(format_number_set({0, 2, 4, 6, 7}, 3) == "0,2,4,…");
  CHECK(format_ranks({5}) == "rank 5");
  CHECK(format_ranks({0, 1, 5}) == "ranks 0-1,5");
  CHECK(format_ranks({0, 2, 4, 6, 8, 10, 12, 14, 16}) == "ranks 0,2,4,6,8,10,12,14,…");
  CHECK(format_number_range(4, 1) == "4");
  CHECK(format_number_range(0, 8) == "0-7");
}
