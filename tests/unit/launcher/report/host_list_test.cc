#include "launcher/report/short_lists.h"

#include "tests/support/catch.h"

using namespace ddp::launcher;

TEST_CASE("sets of ranks") {
  CHECK(rank_set({3}) == "3");
  CHECK(rank_set({3, 1, 2, 1}) == "1-3");
  CHECK(rank_set({0, 1, 5}) == "0,1,5");
  CHECK(rank_set({0, 2, 4, 6, 8, 10, 12, 14}) == "0,2,4,6,8,10,12,14");
  CHECK(rank_set({0, 2, 4, 6, 8, 10, 12, 14, 16}) == "0,2,4,6,8,10,12,14,…");
}

TEST_CASE("lists of hosts") {
  CHECK(host_list({"a"}) == "a");
  CHECK(host_list({"a", "b"}) == "a and b");
  CHECK(host_list({"a", "b", "c", "d", "e"}) == "a, b, c, d and e");
  CHECK(host_list({"a", "b", "c", "d", "e", "f"}) == "a, b, c, d and 2 more hosts");
}
