#include "base/one_line.h"

#include "tests/support/catch.h"

using ddp::one_line;

TEST_CASE("Text from outside becomes one line") {
  CHECK(one_line("/data/run 1 \\n größe") == "/data/run 1 \\n größe");
  CHECK(one_line("a\nb\r\tc") == "a\\nb\\r\\tc");
  CHECK(one_line(std::string_view("\0\x1b[2J\x7f", 6)) == "\\x00\\x1b[2J\\x7f");
  CHECK(one_line("\xc2\x9b"
                 "31m \xe2\x80\xae \xe2\x80\xa8") == "\\u009b31m \\u202e \\u2028");
  CHECK(one_line("a\xd8\x9c\xe2\x80\x8b\xef\xbb\xbf\x9b") == "a\\u061c\\u200b\\ufeff\\x9b");
  CHECK(one_line("\xe2\x80\x93 \xe2\x80\xa6 \xff\xe2") == "\xe2\x80\x93 \xe2\x80\xa6 \xff\xe2");
  CHECK(one_line("\xc2\xad\xf3\xa0\x81\x81") == "\\u00ad\\U000e0041");
  CHECK(one_line(one_line("\x01\n")) == "\\x01\\n");
}
