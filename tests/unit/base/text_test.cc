#include "base/text.h"

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp {
namespace {

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

TEST_CASE("an endpoint is split into host and port, both unchecked") {
  const auto split = [](std::string_view text) {
    const auto parts = split_endpoint(text);
    return parts ? parts->host + ' ' + parts->port.value_or("none") : "nothing";
  };
  CHECK(split("gpu01") == "gpu01 none");
  CHECK(split("gpu01:22") == "gpu01 22");
  CHECK(split("gpu01:") == "gpu01 ");
  CHECK(split(":22") == " 22");
  CHECK(split("") == " none");
  CHECK(split("[fe80::1%eth0]:22") == "fe80::1%eth0 22");
  CHECK(split("[::1]") == "::1 none");
  CHECK(split("[::1]:") == "::1 ");
  CHECK(split("[]:1") == " 1");
  CHECK(split("::1:22") == "::1:22 none");
  for (const char* wrong : {"[", "[::1", "[::1]22", "[::1]x:22"})
    CHECK(split(wrong) == "nothing");
}

TEST_CASE("bytes become hexadecimal digits, and only such digits become bytes") {
  CHECK(format_hex(std::string_view("\x00\x7f\xff", 3)) == "007fff");
  CHECK(parse_hex("007fff") == std::string("\x00\x7f\xff", 3));
  CHECK(parse_hex("") == "");
  for (const char* wrong : {"0", "0g", "g0", "AB", "0x"})
    CHECK_FALSE(parse_hex(wrong));
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

template <class Text>
concept Splits = requires(Text text) {
  ddp::split(static_cast<Text>(text), ',');
};
static_assert(Splits<std::string&> && Splits<const std::string&> && Splits<std::string_view>);
static_assert(!Splits<std::string> && !Splits<const std::string>);  // the parts would outlive the text

TEST_CASE("Digits, names of variables, words and characters are recognized") {
  CHECK(ddp::is_digits("007"));
  CHECK_FALSE(ddp::is_digits(""));
  CHECK_FALSE(ddp::is_digits("1a"));
  CHECK(ddp::is_variable_name("_A1"));
  for (const char* wrong : {"", "1A", "A-B", "BASH_FUNC_x%%", "\xc3\xa9"})
    CHECK_FALSE(ddp::is_variable_name(wrong));
  CHECK(ddp::lower_case("Gpu-01.Example") == "gpu-01.example");
  CHECK(ddp::split("a,,b", ',') == std::vector<std::string_view>{"a", "", "b"});
  CHECK(ddp::split("", ',') == std::vector<std::string_view>{""});
  CHECK(ddp::split_lines("a\n\nb\n") == std::vector<std::string_view>{"a", "", "b"});
  CHECK(ddp::split_lines("a\nb").size() == 2);
  CHECK(ddp::split_lines("").empty());
  CHECK(ddp::split_at_blanks(" a\tbc\n").size() == 2);
  CHECK(ddp::split_at_blanks(" \n").empty());
  CHECK(ddp::count_characters("a\xc3\xa9z") == 3);
}

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

}  // namespace
}  // namespace ddp
