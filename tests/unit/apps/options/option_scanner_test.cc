#include "apps/options/option_table.h"

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace ddp;
using Words = std::vector<std::string>;

namespace {

enum class Color { kRed, kBlue };

struct Fields {
  bool fast = false;
  int count = 1;
  std::string file, label = "none", listen = "not given", operation;
  Words hosts;
  Color color = Color::kRed;
};

struct Command {
  Fields fields;
  OptionTable table{"usage: tool [options]\n"};

  Command() {
    table.group("First", "", "tool --fast");
    table.flag({.names = "-f,--fast", .help = "be fast"}, fields.fast);
    table.value({.names = "-b,--count", .value = "N", .default_text = "1", .help = "how often"},
                number_into(fields.count, 1, 8));
    table.value({.names = "--file-name", .value = "FILE", .help = "input"}, text_into(fields.file));
    table.value({.names = "--label", .value = "TEXT", .help = "prefix", .takes_empty = true},
                text_into(fields.label));
    table.group("Second");
    table.list({.names = "--host", .value = "LIST", .help = "hosts"}, texts_into(fields.hosts));
    table.choice<Color>({.names = "--color", .help = "of the lines"}, fields.color,
                        {{"red", Color::kRed}, {"blue", Color::kBlue}});
    table.value({.names = "--listen", .value = "[PORT]", .help = "wait"}, text_into(fields.listen));
    table.value({.names = "OPERATION", .help = "what to do"}, text_into(fields.operation));
  }
  Words parse(const Words& words) { return parse_arguments("tool", words, table); }
};

Words errors_of(const Words& words) {
  return Command().parse(words);
}

}  // namespace

TEST_CASE("Values go into typed fields") {
  Command command;
  CHECK(command
            .parse({"--count=3", "sum", "-f", "--file_name", "a b", "--host", "a", "--color", "blue",
                    "--host=b"})
            .empty());
  CHECK(command.fields.count == 3);
  CHECK(command.fields.fast);
  CHECK(command.fields.file == "a b");
  CHECK(command.fields.hosts == Words{"a", "b"});
  CHECK(command.table.find("--host")->repeats);
  CHECK_FALSE(command.table.find("--count")->repeats);
  CHECK(command.fields.color == Color::kBlue);
  CHECK(command.fields.operation == "sum");
  CHECK(command.table.given("--count"));
  CHECK(command.table.given("-f"));
  CHECK_FALSE(command.table.given("--label"));
}

TEST_CASE("The last of several equal options counts") {
  Command command;
  CHECK(command.parse({"--count", "3", "-b5"}).empty());
  CHECK(command.fields.count == 5);
}

TEST_CASE("A value may begin with a dash or be empty where that is valid") {
  Command command;
  CHECK(command.parse({"--file-name", "-x", "--label="}).empty());
  CHECK(command.fields.file == "-x");
  CHECK(command.fields.label.empty());
  Command braces;
  CHECK(braces.parse({"--label", "{}", "--host", "[a,b]", "--listen=-1"}).empty());
  CHECK(braces.fields.label == "{}");
  CHECK(braces.fields.hosts == Words{"[a,b]"});
  CHECK(braces.fields.listen == "-1");
  CHECK(errors_of({"--file-name="}) == Words{"--file-name has an empty value"});
}

TEST_CASE("An optional value may be omitted") {
  Command with, without, last;
  CHECK(with.parse({"--listen", "80"}).empty());
  CHECK(with.fields.listen == "80");
  CHECK(without.parse({"--listen", "--fast"}).empty());
  CHECK(without.fields.listen.empty());
  CHECK(without.table.given("--listen"));
  CHECK(last.parse({"--listen"}).empty());
  CHECK(last.fields.listen.empty());
}

TEST_CASE("All errors are reported") {
  CHECK(errors_of({"--count", "9", "--color", "green", "--fas", "--file-name"}) ==
        Words{"unknown option --fas; did you mean --fast?", "--file-name needs a value: --file-name FILE",
              "--count 9: give a whole number from 1 to 8", "unknown --color \"green\" (red, blue)"});
  CHECK(errors_of({"--zebra=1"}) == Words{"unknown option --zebra; tool --help lists all options"});
  CHECK(errors_of({"--fast=1"}) == Words{"--fast=1: give true, false, or no value"});
  CHECK(errors_of({"--count", "--fast"}) == Words{"--count needs a value: --count N"});
  CHECK(errors_of({"sum", "more"}) == Words{"unexpected word \"more\"; tool --help lists all options"});
}

TEST_CASE("A flag may be switched on or off with a value") {
  Command on, off;
  CHECK(on.parse({"--fast=true"}).empty());
  CHECK(on.fields.fast);
  CHECK(off.parse({"--fast=false"}).empty());
  CHECK_FALSE(off.fields.fast);
  CHECK_FALSE(off.table.given("--fast"));
  CHECK(errors_of({"--fast", "--fast=false"}) == Words{"--fast is switched on and off"});
  CHECK(errors_of({"--fast=false", "--fast"}) == Words{"--fast is switched on and off"});
}

TEST_CASE("Words behind -- are no options") {
  Command command;
  CHECK(command.parse({"--fast", "--", "-x"}).empty());
  CHECK(command.fields.fast);
  CHECK(command.fields.operation == "-x");
  CHECK(Command().parse({"--"}).empty());
  CHECK(errors_of({"--", "sum", "--fast"}) ==
        Words{"unexpected word \"--fast\"; tool --help lists all options"});
}

TEST_CASE("The value of a misspelled option is no other word") {
  CHECK(errors_of({"--file-nam", "x", "sum"}) ==
        Words{"unknown option --file-nam; did you mean --file-name?"});
}

TEST_CASE("--help lists the options by group, with defaults and choices") {
  CHECK(Command().table.help() ==
        "usage: tool [options]\n"
        "\n"
        "First:\n"
        "  -f, --fast                  be fast\n"
        "  -b, --count N               how often (default: 1)\n"
        "  --file-name FILE            input\n"
        "  --label TEXT                prefix\n"
        "  Example: tool --fast\n"
        "\n"
        "Second:\n"
        "  --host LIST                 hosts\n"
        "  --color red|blue            of the lines\n"
        "  --listen [PORT]             wait\n"
        "  OPERATION                   what to do\n");
}

TEST_CASE("A table that shows fields has their values as defaults, unless an option names one") {
  Fields fields;
  double rate = 0.10;
  std::size_t size = 3u << 20;
  std::chrono::milliseconds time{1500};
  OptionTable table("usage: tool\n", true);
  table.group("All");
  table.flag({.names = "--fast"}, fields.fast);
  table.value({.names = "--count", .value = "N", .default_text = "one"}, number_into(fields.count, 1, 8));
  table.value({.names = "--rate", .value = "R"}, number_into(rate, 0, 1));
  table.value({.names = "--size", .value = "BYTES"}, size_into(size, 1));
  table.value({.names = "--file", .value = "FILE"}, text_into(fields.file));
  table.choice<Color>({.names = "-c,--color,--colour"}, fields.color,
                      {{"red", Color::kRed}, {"blue", Color::kBlue}});
  table.value({.names = "TIME"}, time_into(time, std::chrono::milliseconds(1)));
  const auto texts = [&] {
    Words all;
    for (const Option& option : table.groups().front().options)
      all.push_back(table.text(option));
    return all;
  };
  Words defaults;
  for (const Option& option : table.groups().front().options)
    defaults.push_back(option.default_text);
  CHECK(defaults == Words{"", "one", "0.1", "3M", "", "red", "1500ms"});
  CHECK(texts() == Words{"", "1", "0.1", "3M", "", "red", "1500ms"});
  CHECK(parse_arguments("tool", {"2m", "--fast", "--rate=1e-5", "--size=1025", "-c", "blue", "--file", "f"},
                        table)
            .empty());
  CHECK(texts() == Words{"given", "1", "1e-05", "1025", "f", "blue", "120s"});
  OptionTable silent("usage: tool\n");
  silent.group("All");
  silent.value({.names = "-T,--timeout,--time", .value = "TIME"},
               time_into(time, std::chrono::milliseconds(1)));
  CHECK(silent.groups().front().options.front().default_text.empty());
  CHECK(parse_arguments("tool", {"-T", "x"}, silent) ==
        Words{"--timeout x: give a time like 500ms, 15s, 2m or 1h"});
}

TEST_CASE("An option is found by any of its names") {
  const Command command;
  REQUIRE(command.table.find("-b") != nullptr);
  CHECK(command.table.find("-b")->names == "-b,--count");
  CHECK(command.table.find("--count") == command.table.find("-b"));
  CHECK(command.table.find("--coun") == nullptr);
}
