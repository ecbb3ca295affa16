#include "base/text.h"

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

TEST_CASE("A number is all of the text, or its beginning") {
  CHECK(ddp::parse_number<int>("-12") == -12);
  CHECK(ddp::parse_number<unsigned>("ff", 16) == 255);
  for (const char* wrong : {"", " 1", "+1", "1 ", "1x", "99999999999"})
    CHECK_FALSE(ddp::parse_number<int>(wrong));
  CHECK(ddp::leading_number<int>("12 of 30") == 12);
  CHECK_FALSE(ddp::leading_number<int>("of 30"));
}

TEST_CASE("Digits, names of variables, words and characters are recognized") {
  CHECK(ddp::is_digits("007"));
  CHECK_FALSE(ddp::is_digits(""));
  CHECK_FALSE(ddp::is_digits("1a"));
  CHECK(ddp::is_variable_name("_A1"));
  for (const char* wrong : {"", "1A", "A-B", "BASH_FUNC_x%%", "\xc3\xa9"})
    CHECK_FALSE(ddp::is_variable_name(wrong));
  CHECK(ddp::lower_case("Gpu-01.Example") == "gpu-01.example");
  CHECK(ddp::split_at_blanks(" a\tbc\n").size() == 2);
  CHECK(ddp::split_at_blanks(" \n").empty());
  CHECK(ddp::count_characters("a\xc3\xa9z") == 3);
}
