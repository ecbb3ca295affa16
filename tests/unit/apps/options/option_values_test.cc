#include "apps/options/option_table.h"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"

using namespace ddp;
using std::chrono::milliseconds;

TEST_CASE("Durations") {
  CHECK(parse_duration("500ms") == milliseconds(500));
  CHECK(parse_duration("15s") == milliseconds(15'000));
  CHECK(parse_duration("1.5s") == milliseconds(1'500));
  CHECK(parse_duration("2m") == milliseconds(120'000));
  CHECK(parse_duration("2min") == milliseconds(120'000));
  CHECK(parse_duration("1h") == milliseconds(3'600'000));
  CHECK(parse_duration("0") == milliseconds(0));
  CHECK(parse_duration("1000h") == milliseconds(3'600'000'000));
  for (const char* text :
       {"", "s", "-1s", "1d", "1e3", ".5s", "inf", "1001h", "1 s", "nan", "99999999999999999999999"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_duration(text));
  }
}

TEST_CASE("Moments") {
  const milliseconds now(1'000'000'000);
  CHECK(parse_moment("10m", now) == now - milliseconds(600'000));
  CHECK(parse_moment("1970-01-02T00:00:01Z", now) == milliseconds(86'401'000));
  CHECK(parse_moment("1970-01-02T00:00:01.25Z", now) == milliseconds(86'401'250));
  CHECK(parse_moment("1970-01-02t00:00:01.123456789z", now) == milliseconds(86'401'123));
  CHECK(parse_moment("1970-01-02T01:30:00+01:30", now) == milliseconds(86'400'000));
  CHECK(parse_moment("1970-01-02T00:00:00-00:30", now) == milliseconds(88'200'000));
  CHECK(parse_moment("2026-11-21T03:14:39.962Z", now) == milliseconds(1'795'230'879'962));
  for (const char* text : {"", "yesterday", "2026-11-21", "2026-11-21T03:14:39", "2026-02-30T00:00:00Z",
                           "2026-11-21T24:00:00Z", "2026-11-21T03:14:39.Z", "2026-11-21T03:14:39+1:00",
                           "2026-11-21T03:14:39Zx", "1969-01-01T00:00:00Z", "2026-11-21 03:14:39Z"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_moment(text, now));
  }
}

TEST_CASE("Sizes") {
  CHECK(parse_size("8") == 8);
  CHECK(parse_size("64K") == 64u << 10);
  CHECK(parse_size("1.5m") == 3u << 19);
  CHECK(parse_size("32MiB") == 32u << 20);
  CHECK(parse_size("2GB") == std::uint64_t{2} << 30);
  CHECK(parse_size("1024T") == std::uint64_t{1} << 50);
  for (const char* text : {"", "K", "-1", "1X", "1.5.5", "1025T", "1e9"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_size(text));
  }
}

TEST_CASE("Readers refuse what their fields cannot have") {
  milliseconds time{7};
  CHECK(time_into(time, milliseconds(1000))("2s").empty());
  CHECK(time == milliseconds(2000));
  CHECK(time_into(time, milliseconds(1000))("10ms") == " is too short; at least 1000ms");
  CHECK(time_into(time, milliseconds(1000))("0") == " is too short; at least 1000ms");
  CHECK(time_into(time, milliseconds(1000))("1001h") == " is too long; at most 3600000s");
  CHECK(time_into(time, milliseconds(1000))("x") == ": give a time like 500ms, 15s, 2m or 1h");
  CHECK(time == milliseconds(2000));
  CHECK(time_into(time, milliseconds(1000), true)("0").empty());
  CHECK(time == milliseconds(0));

  int whole = 7;
  CHECK(number_into(whole, -2, 8)("-2").empty());
  CHECK(whole == -2);
  for (const char* text : {"", "9", "-3", "1.0", "1e0", "x", " 1", "1 ", "99999999999999999999"}) {
    CAPTURE(text);
    CHECK(number_into(whole, -2, 8)(text) == ": give a whole number from -2 to 8");
  }
  std::uint64_t large = 0;
  CHECK(number_into(large, 0, 1e15)("1000000000000000").empty());
  CHECK(large == 1'000'000'000'000'000);
  CHECK(number_into(large, 0, 1e15)("x") == ": give a whole number");
  CHECK(number_into(large, 1, 1e15)("0") == ": give a whole number of at least 1");
  CHECK(number_into(large, 0, 1e15)("-1") == ": give a whole number of at least 0");
  CHECK(number_into(large, 0, 1e15)("1000000000000001") == ": give a whole number up to 1000000000000000");

  std::optional<int> maybe;
  CHECK(number_into(maybe, 1, 8)("9") == ": give a whole number from 1 to 8");
  CHECK_FALSE(maybe);
  CHECK(number_into(maybe, 1, 8)("8").empty());
  CHECK(maybe == 8);

  double real = 7;
  CHECK(number_into(real, 0, 1)("0.5").empty());
  CHECK(number_into(real, 0, 1)("1e-3").empty());
  CHECK(real == 1e-3);
  CHECK(number_into(real, 0, 1)("nan") == ": give a number from 0 to 1");
  CHECK(number_into(real, 0, 1)("2") == ": give a number from 0 to 1");

  std::size_t size = 7;
  CHECK(size_into(size, 1)("0") == ": give a size like 8, 64K, 1.5M or 2G");
  CHECK(size_into(size, 1)("4K").empty());
  CHECK(size == 4096);

  std::string directory;
  CHECK(directory_into(directory)("a//").empty());
  CHECK(directory == "a");
  CHECK(directory_into(directory)("/").empty());
  CHECK(directory == "/");

  std::string word;
  const ReadValue lower =
      checked([](std::string_view text) { return text == "a"; }, ": give a", text_into(word));
  CHECK(lower("A") == ": give a");
  CHECK(word.empty());
  CHECK(lower("a").empty());
  CHECK(word == "a");
  milliseconds parsed{1};
  CHECK(parsed_into(parsed, parse_duration, ": give a time")("x") == ": give a time");
  CHECK(parsed_into(parsed, parse_duration, ": give a time")("2s").empty());
  CHECK(parsed == milliseconds(2000));
}

TEST_CASE("Rules for one value of an option hold for no other") {
  const auto errors = [](const std::vector<std::string>& args) {
    std::string from, place;
    int every = 1;
    OptionTable table("");
    table.group("All");
    table.value({.names = "--place", .value = "DIR", .not_with = {{{"--from"}}}}, text_into(place));
    table.value({.names = "--every", .value = "N"}, number_into(every, 1, 9));
    table.value({.names = "--from",
                 .value = "DIR|auto",
                 .help = "begin here",
                 .not_with = {{{"--place x"}, "; it is full"}},
                 .only_with = {{"--every 1"}, ", which is the default"},
                 .rules_for = "auto"},
                text_into(from));
    CHECK(table.find("--from")->rules_text() == "With `auto`: only with `--every 1`, and not with `--place x`.");
    CHECK(table.help().find("only with") == std::string::npos);
    return parse_arguments("p", args, table);
  };
  CHECK(errors({"--from", "a", "--every", "2"}).empty());
  CHECK(errors({"--from", "auto", "--every", "1"}).empty());
  const std::string other = "--place cannot be used with --from";
  CHECK(errors({"--from", "a", "--every", "2", "--place", "x"}) == std::vector{other});
  CHECK(errors({"--from", "auto", "--every", "2", "--place", "x"}) ==
        std::vector<std::string>{other, "--from auto cannot be used with --place x; it is full",
                                 "--from auto is only for --every 1, which is the default"});
}
