#include "launcher/report/host_texts.h"

#include "tests/support/catch.h"

using namespace ddp::launcher;

TEST_CASE("lists of hosts") {
  CHECK(host_list({}).empty());
  CHECK(host_list({"a"}) == "a");
  CHECK(host_list({"a", "b"}) == "a and b");
  CHECK(host_list({"a", "b", "c", "d", "e"}) == "a, b, c, d and e");
  CHECK(host_list({"a", "b", "c", "d", "e", "f"}) == "a, b, c, d and 2 more hosts");
}
