#include "base/parse_text.h"

#include <string>

#include "tests/support/catch.h"

using ddp::edit_distance;
using ddp::nearest_word;
using ddp::whole_number;

TEST_CASE("Edit distance counts insertions, deletions, replacements and swaps") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("port", "port") == 0);
  CHECK(edit_distance("prot", "port") == 1);
  CHECK(edit_distance("slot", "slots") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("The nearest word is suggested when one is near enough") {
  CHECK(nearest_word("slot", {"port", "slots"}) == "slots");
  CHECK(nearest_word("hostfil", {"host", "hostfile"}) == "hostfile");
  CHECK(nearest_word("nproc", {"nnodes", "nproc-per-node"}) == "nproc-per-node");
  CHECK(nearest_word("ssh", {"ssh-config", "ssh-command"}).empty());
  CHECK(nearest_word("zebra", {"host", "hostfile"}).empty());
  CHECK(nearest_word("", {"a"}).empty());
  CHECK(nearest_word(std::string(1000, 'x'), {"a"}).empty());
  CHECK(nearest_word("b", {}).empty());
}

TEST_CASE("A whole number is digits up to a limit") {
  CHECK(whole_number("0", 10) == 0);
  CHECK(whole_number("10", 10) == 10);
  CHECK_FALSE(whole_number("11", 10));
  CHECK_FALSE(whole_number("4", 3));
  CHECK_FALSE(whole_number("", 10));
  CHECK_FALSE(whole_number("-1", 10));
  CHECK_FALSE(whole_number("+1", 10));
  CHECK_FALSE(whole_number("4x", 10));
  CHECK_FALSE(whole_number("18446744073709551616", ~0ULL));
  CHECK(whole_number("18446744073709551615", ~0ULL) == ~0ULL);
}
