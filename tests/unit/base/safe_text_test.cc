#include "base/text.h"

#include "tests/support/catch.h"

using ddp::escape_unsafe_in_json;
using ddp::first_character;
using ddp::one_line;
using ddp::replace_unsafe;

TEST_CASE("UTF-8 characters are distinguished from other bytes") {
  CHECK(first_character("a").code == 'a');
  CHECK(first_character("\xc3\xa4x").code == 0xe4);
  CHECK(first_character("\xc3\xa4x").length == 2);
  CHECK(first_character("\xf0\x9f\x9a\x80").code == 0x1f680);
  CHECK(first_character("\xf0\x9f\x9a\x80").length == 4);
  // Truncated, overlong, a surrogate, beyond Unicode, and a byte that begins no character.
  for (const char* text :
       {"\xe2\x80", "\xc0\x80", "\xe0\x80\x9b", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x9b", "\xff"}) {
    INFO(text);
    CHECK_FALSE(first_character(text).valid);
    CHECK(first_character(text).length == 1);
  }
}

TEST_CASE("control sequences and invisible characters are replaced") {
  CHECK(replace_unsafe("a\n\tb caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x9a\x80 \xc2\xa0") ==
        "a\n\tb caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x9a\x80 \xc2\xa0");
  CHECK(replace_unsafe(std::string_view("\0\r\x1b[2J\x7f", 7)) == "???[2J?");
  CHECK(replace_unsafe("\xc2\x80 \xc2\x9b \xc2\x9f \xc2\xa0") == "? ? ? \xc2\xa0");       // U+0080 to U+009F
  CHECK(replace_unsafe("\xe2\x80\xaa \xe2\x80\xae \xe2\x80\xaf") == "? ? \xe2\x80\xaf");  // U+202A to U+202E
  CHECK(replace_unsafe("\xe2\x81\xa6 \xe2\x81\xa9 \xe2\x81\xaa") == "? ? \xe2\x81\xaa");  // U+2066 to U+2069
  CHECK(replace_unsafe("\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c") == "???");  // U+200E, U+200F, U+061C
  CHECK(replace_unsafe("\xe2\x80\x8b\xe2\x80\x8c\xe2\x80\x8d\xe2\x81\xa0\xef\xbb\xbf") ==
        "?????");                                             // zero width
  CHECK(replace_unsafe("\xe2\x80\xa8\xe2\x80\xa9") == "??");  // separators
  CHECK(replace_unsafe("\xc2\xad \xe1\xa0\x8e \xef\xbf\xb9\xef\xbf\xbb \xef\xbf\xbc") ==
        "? ? ?? \xef\xbf\xbc");  // U+00AD, U+180E, U+FFF9 to U+FFFB
  CHECK(replace_unsafe("\xf3\xa0\x80\x80 \xf3\xa0\x81\xbf \xf3\xa0\x82\x80") ==
        "? ? \xf3\xa0\x82\x80");  // U+E0000 to U+E007F: tags
  CHECK(replace_unsafe("\x9b\xe2\x80 \xc0\x9b \xff\xe4\xad") ==
        "?\xe2? \xc0? \xff\xe4\xad");  // 8-bit controls; other bytes stay
}

TEST_CASE("a JSON document keeps its meaning") {
  CHECK(escape_unsafe_in_json("\xc2\xad\xf3\xa0\x81\x81") == "\\u00ad\\udb40\\udc41");  // U+E0041
  CHECK(escape_unsafe_in_json("{\n  \"a\": \"x\xc2\x9b\xe2\x80\xae\x7f\xc3\xa4\"\n}") ==
        "{\n  \"a\": \"x\\u009b\\u202e\\u007f\xc3\xa4\"\n}");
}

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
