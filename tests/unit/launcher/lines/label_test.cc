#include "launcher/lines/output_lines.h"

#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::launcher;

TEST_CASE("labels") {
  const LineSource source{"gpu02", 13, 5, 1, "stderr"};
  CHECK(Label("[{host}:{rank}] ", source).text() == "[gpu02:13] ");
  CHECK(Label("{{{node_rank}/{local_rank}}} {stream}|", source).text() == "{1/5} stderr|");
  CHECK(Label("", source).text() == "");
  CHECK(check_label_template("[{host}:{rank}] {local_rank} {node_rank} {stream} {time} {{}} é").has_value());
}

TEST_CASE("errors in a label, with the column") {
  auto text = [](std::string_view label) {
    const auto checked = check_label_template(label);
    REQUIRE_FALSE(checked.has_value());
    CHECK(checked.error().code == ErrorCode::kUsage);
    return checked.error().text;
  };
  CHECK(text("[{hots}] ") ==
        "--label, column 2: unknown {hots}; known: {host} {rank} {local_rank} {node_rank} {stream} "
        "{time}");
  CHECK(text("a {") == "--label, column 3: a lone '{'; write '{{' for the character itself");
  CHECK(text("a } b") == "--label, column 3: a lone '}'; write '}}' for the character itself");
  CHECK(text("a\nb") == "--label, column 2: a label cannot contain a line break");
}

TEST_CASE("the time of a label is filled in later, in each place") {
  const LineSource source{"gpu02", 13, 5, 1, "stderr"};
  Label label("{time} {rank} {time}|", source);
  CHECK(label.has_time());
  CHECK(label.text() == "--:--:--.--- 13 --:--:--.---|");
  label.stamp("07:18:13.250");
  CHECK(label.text() == "07:18:13.250 13 07:18:13.250|");
  label.stamp("07:18:13.251");
  CHECK(label.text() == "07:18:13.251 13 07:18:13.251|");

  Label plain("{rank}|", source);
  CHECK_FALSE(plain.has_time());
  plain.stamp("07:18:13.250");
  CHECK(plain.text() == "13|");
}

TEST_CASE("a color covers the label but not the blanks behind it") {
  const LineSource source{"gpu02", 13, 5, 1, "stderr"};
  CHECK(Label("[{host}] ", source, 36).text() == "\x1b[36m[gpu02]\x1b[0m ");
  CHECK(Label("{rank}", source, 36).text() == "\x1b[36m13\x1b[0m");
  CHECK(Label("  ", source, 36).text() == "  ");
  CHECK(Label("", source, 36).text() == "");
  Label timed("{time}> ", source, 32);
  timed.stamp("07:18:13.250");
  CHECK(timed.text() == "\x1b[32m07:18:13.250>\x1b[0m ");
}

TEST_CASE("consecutive nodes have different colors") {
  for (int node = 0; node < 30; ++node) {
    CHECK(label_colour(node) != label_colour(node + 1));
    CHECK(label_colour(node) != 31);
  }
  CHECK(label_colour(-1) == label_colour(0));
}

TEST_CASE("only terminals with colors get colors") {
  CHECK(colours_wanted(true, nullptr, "xterm-256color"));
  CHECK(colours_wanted(true, "", "xterm"));
  CHECK_FALSE(colours_wanted(false, nullptr, "xterm"));
  CHECK_FALSE(colours_wanted(true, "1", "xterm"));
  CHECK_FALSE(colours_wanted(true, nullptr, "dumb"));
  CHECK_FALSE(colours_wanted(true, nullptr, ""));
  CHECK_FALSE(colours_wanted(true, nullptr, nullptr));
}

TEST_CASE("labels of several ranks") {
  const Label::LabelGroup group{"*", "0-7", "0-3", "0-1", "stdout"};
  CHECK(Label("[{host}:{rank}] ", group).text() == "[*:0-7] ");
  CHECK(Label("{node_rank}/{local_rank} {stream}", group).text() == "0-1/0-3 stdout");
}
