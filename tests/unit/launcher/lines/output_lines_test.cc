#include "launcher/lines/output_lines.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

std::string shown(const std::vector<std::string_view>& chunks, const std::string& label = "> ") {
  LineAssembler lines(label);
  std::string out;
  for (const std::string_view chunk : chunks)
    lines.add(chunk, out);
  lines.finish(out);
  return out;
}

// As `shown`, for a rank whose bars are left out.
std::string shown_without_bars(std::string_view bytes) {
  LineAssembler lines(std::string("> "));
  lines.drop_bar_ends();
  std::string out;
  lines.add(bytes, out);
  lines.finish(out);
  return out;
}

// A reference implementation of the header's contract: one byte at a time, without regard to speed.
std::string by_the_book(std::string_view bytes, const std::string& label) {
  std::string out;
  std::string line;
  bool cr = false;
  auto end_line = [&] {
    out += label + line + "\n";
    line.clear();
    cr = false;
  };
  for (const char c : bytes) {
    if (c == '\n') {
      end_line();
    } else if (c == '\r') {
      cr = true;
    } else {
      if (cr) line.clear();
      cr = false;
      if (line.size() == kMaxLine) {
        line += kSplitMark;
        end_line();
      }
      line += c;
    }
  }
  if (!line.empty()) end_line();
  return out;
}

std::string cut_at_random(std::string_view bytes, std::mt19937& random, std::size_t largest,
                          const std::string& label) {
  LineAssembler lines(label);
  std::string out;
  while (!bytes.empty()) {
    const std::size_t take = std::min<std::size_t>(1 + random() % largest, bytes.size());
    lines.add(bytes.substr(0, take), out);
    bytes.remove_prefix(take);
  }
  lines.finish(out);
  return out;
}

TEST_CASE("each line gets the label, the last one a newline") {
  CHECK(shown({"a\nb\n"}) == "> a\n> b\n");
  CHECK(shown({"a", "b", "\n", "c"}) == "> ab\n> c\n");
  CHECK(shown({"\n\n"}) == "> \n> \n");
  CHECK(shown({}) == "");
  CHECK(shown({std::string_view("a\0b\xff\n", 5)}) == std::string("> a\0b\xff\n", 7));
  CHECK(shown({"x\n"}, "") == "x\n");
}

TEST_CASE("carriage returns leave what a terminal would show") {
  CHECK(shown({"dos\r\nunix\n"}) == "> dos\n> unix\n");
  CHECK(shown({"\r 10%", "\r 50%", "\r100%\n"}) == "> 100%\n");
  CHECK(shown({"10%\r", "20%\r", "30%\r\n"}) == "> 30%\n");
  CHECK(shown({"dos\r", "\n"}) == "> dos\n");
  CHECK(shown({"abc\r\r\n"}) == "> abc\n");
  CHECK(shown({"abc\r\rd\n"}) == "> d\n");
  CHECK(shown({"at the end 50%\r"}) == "> at the end 50%\n");
  CHECK(shown({"\r"}) == "");
  CHECK(shown({"\r", "x\n"}) == "> x\n");
}

TEST_CASE("an endless progress bar occupies one row") {
  LineAssembler lines("");
  std::string out;
  for (int i = 0; i < 20'000; ++i)
    lines.add("\r step " + std::to_string(i), out);
  CHECK(out.empty());
  CHECK(lines.held() == 2 * std::string(" step 19999").size());  // this frame and the one before
}

TEST_CASE("a line over 1 MiB is split with a mark, one of 1 MiB is not") {
  const std::string whole(kMaxLine, 'x');
  CHECK(shown({whole, "\n"}) == "> " + whole + "\n");
  CHECK(shown({whole + "\n"}) == "> " + whole + "\n");
  const std::string split = "> " + whole + std::string(kSplitMark) + "\n> y\n";
  CHECK(shown({whole + "y\n"}) == split);
  CHECK(shown({whole, "y", "\n"}) == split);
  CHECK(shown({whole + whole + "y"}) == "> " + whole + std::string(kSplitMark) + "\n" + split);
  CHECK(shown({whole, "\r", "y\n"}) == "> y\n");  // discarded before the line was too long
}

TEST_CASE("a redrawn row keeps no text that is too long for a bar") {
  LineAssembler lines("");
  std::string out;
  for (int i = 0; i < 10; ++i)
    lines.add("\r" + std::string(kMaxLine / 2, 'x') + "\n", out);
  lines.add("\r", out);
  CHECK(lines.held() < 2 * kMaxLine);
}

TEST_CASE("the unfinished lines of many streams have one bound, and short ones are never ended") {
  HeldLines held;
  std::vector<LineAssembler> streams;
  std::string out;
  const std::string piece(512u << 10, 'x');
  for (std::size_t i = 0; i < 100; ++i) {
    held.add(streams.emplace_back(""), piece, out);
    REQUIRE(held.bytes() <= HeldLines::kMost);
  }
  CHECK(out.size() == 68 * (piece.size() + 1));  // 32 streams fill the bound
  out.clear();
  held.add(streams.emplace_back(""), "short", out);
  CHECK(out.empty());
  for (LineAssembler& lines : streams)
    held.finish(lines, out);
  CHECK(held.bytes() == 0);
}

TEST_CASE("the assembler is reusable after finish") {
  LineAssembler lines("");
  std::string out;
  lines.add("a\r", out);
  lines.finish(out);
  lines.add("b\n", out);
  CHECK(out == "a\nb\n");
}

TEST_CASE("property: the output does not depend on the chunks") {
  std::mt19937 random(11);
  const std::string alphabet = std::string("ab\n\r\n\r", 6) + std::string(1, '\0') + "\xc3\xa9";
  for (int round = 0; round < 1000; ++round) {
    std::string bytes;
    const std::size_t size = random() % 200;
    for (std::size_t i = 0; i < size; ++i)
      bytes += alphabet[random() % alphabet.size()];
    const std::string expected = by_the_book(bytes, "[h:1] ");
    REQUIRE(shown({bytes}, "[h:1] ") == expected);
    REQUIRE(cut_at_random(bytes, random, 7, "[h:1] ") == expected);
  }
}

TEST_CASE("property: the same holds around the line limit") {
  std::mt19937 random(12);
  for (int round = 0; round < 8; ++round) {
    std::string bytes;
    for (int part = 0; part < 2; ++part) {
      bytes += std::string(kMaxLine - 2 + random() % 5, 'x');
      const char* const ends[] = {"\n", "\r", "\r\n", "", "y"};
      bytes += ends[random() % 5];
    }
    const std::string expected = by_the_book(bytes, "");
    REQUIRE((shown({bytes}, "") == expected));
    REQUIRE((cut_at_random(bytes, random, 300'000, "") == expected));
  }
}

TEST_CASE("the tail keeps the last lines in bounded memory") {
  StderrTail tail;
  CHECK(tail.lines().empty());
  tail.add("one\ntw");
  tail.add("o\r\nthree");
  CHECK(tail.lines() == std::vector<std::string>{"one", "two", "three"});

  StderrTail many;
  for (int i = 0; i < 1000; ++i)
    many.add("line " + std::to_string(i) + "\n");
  REQUIRE(many.lines().size() == StderrTail::kMaxLines);
  CHECK(many.lines().front() == "line 980");
  CHECK(many.lines().back() == "line 999");

  StderrTail long_line;
  long_line.add(std::string(StderrTail::kMaxBytes, 'x'));
  CHECK(long_line.lines().front().substr(0, 1) == "x");
  long_line.add("end");
  CHECK(long_line.lines() ==
        std::vector<std::string>{"…" + std::string(StderrTail::kMaxBytes - 3, 'x') + "end"});
  long_line.add("\nnext");
  CHECK(long_line.lines() == std::vector<std::string>{"next"});
}

TEST_CASE("property: the tail equals the end of the input") {
  std::mt19937 random(13);
  for (int round = 0; round < 60; ++round) {
    StderrTail tail;
    std::string all;
    const int adds = 1 + static_cast<int>(random() % 30);
    for (int i = 0; i < adds; ++i) {
      std::string bytes;
      const std::size_t size = random() % (random() % 8 == 0 ? 20'000 : 600);
      for (std::size_t k = 0; k < size; ++k)
        bytes += random() % 300 == 0 ? '\n' : static_cast<char>('a' + random() % 26);
      all += bytes;
      tail.add(bytes);
    }
    const std::vector<std::string> lines = tail.lines();
    std::size_t at = all.size();
    if (at > 0 && all.back() == '\n') --at;
    REQUIRE(lines.size() <= StderrTail::kMaxLines);
    for (std::size_t i = lines.size(); i-- > 0;) {
      const std::string line = lines[i].rfind("…", 0) == 0 ? lines[i].substr(3) : lines[i];
      REQUIRE(at >= line.size());
      REQUIRE(all.substr(at - line.size(), line.size()) == line);
      at -= line.size() + 1;
    }
  }
}

TEST_CASE("a tail that is exactly full has all its bytes, and one more byte overwrites the first") {
  const std::size_t size = StderrTail::kMaxBytes;
  StderrTail tail;
  tail.add("first\n");
  tail.add(std::string(size - 6, 'x'));
  CHECK(tail.lines() == std::vector<std::string>{"first", std::string(size - 6, 'x')});
  tail.add("y");  // of "first", "irst" is left, which is omitted
  CHECK(tail.lines() == std::vector<std::string>{std::string(size - 6, 'x') + "y"});

  // The write ends at the end of the ring, and the next one begins at its start.
  tail.add(std::string(size - 1, 'z'));
  tail.add("end");
  CHECK(tail.lines() == std::vector<std::string>{"…" + std::string(size - 3, 'z') + "end"});

  // A write of the ring's size replaces all bytes.
  tail.add("a\n" + std::string(size - 2, 'b'));
  CHECK(tail.lines() == std::vector<std::string>{std::string(size - 2, 'b')});
  StderrTail short_line;
  short_line.add("a");
  short_line.add(std::string(size, 'b'));
  CHECK(short_line.lines() == std::vector<std::string>{"…" + std::string(size, 'b')});
}

TEST_CASE("the last frames of bars are left out on request, and nothing else") {
  CHECK(shown_without_bars("\r 50%|# | 1/2 [x]\r100%|##| 2/2 [x]\n") == "");
  CHECK(shown_without_bars("\r 50%|# | 1/2 [x]\r100%|##| 2/2 [x]") == "");  // its program ended in between
  CHECK(shown_without_bars("\r 50%|# | 1/2 [x]\r100%|##| 2/2 [x]error\n") == "> error\n");
  CHECK(shown_without_bars("\r 50%|# | 1/2 [x]\r                \rlog 7\n\r100%|##| 2/2 [x]\n") ==
        "> log 7\n> 100%|##| 2/2 [x]\n");
  CHECK(shown_without_bars("\r 50%|# | 1/2 [x]\rfailed at 7\n") == "> failed at 7\n");
  CHECK(shown_without_bars("step 1\nstep 2\r\n\rstep 3\n") == "> step 1\n> step 2\n> step 3\n");
  CHECK(shown_without_bars("loading...\rloading...\n") == "> loading...\n");
}

using namespace std::string_literals;

std::string json_of(std::string_view bytes) {
  std::string out;
  append_json_string(bytes, out);
  return out;
}

// Decodes a string of append_json_string like Python's surrogateescape.
std::string bytes_of(const std::string& json) {
  std::string out;
  for (std::size_t at = 1; at + 1 < json.size();) {
    if (json[at] != '\\') {
      out += json[at++];
      continue;
    }
    const char kind = json[at + 1];
    if (kind != 'u') {
      out += kind == 't' ? '\t' : kind == 'r' ? '\r' : kind == 'n' ? '\n' : kind;
      at += 2;
      continue;
    }
    const auto value = static_cast<unsigned>(std::stoul(json.substr(at + 2, 4), nullptr, 16));
    REQUIRE((value < 0x80 || (value >= 0xdc80 && value <= 0xdcff)));
    out += static_cast<char>(value & 0xff);
    at += 6;
  }
  return out;
}

TEST_CASE("strings of JSON") {
  CHECK(json_of("") == R"("")");
  CHECK(json_of("plain") == R"("plain")");
  CHECK(json_of("a\"b\\c\td\re") == R"("a\"b\\c\td\re")");
  CHECK(json_of("\x1b[1m\0\x7f"s) == R"("\u001b[1m\u0000\u007f")");
  CHECK(json_of("é 漢 🚀") == "\"é 漢 🚀\"");
  CHECK(json_of("\xc2\x80 \xdf\xbf") == "\"\xc2\x80 \xdf\xbf\"");  // the lowest and the highest of two bytes
}

TEST_CASE("bytes that are not UTF-8 can be recovered") {
  CHECK(json_of("a\xff"
                "b") == R"("a\udcffb")");
  CHECK(json_of("\xc3") == R"("\udcc3")");
  CHECK(json_of("\xc0\xaf") == R"("\udcc0\udcaf")");                      // overlong
  CHECK(json_of("\xe0\x80\x80") == R"("\udce0\udc80\udc80")");            // overlong
  CHECK(json_of("\xed\xb2\x80") == R"("\udced\udcb2\udc80")");            // a surrogate
  CHECK(json_of("\xf4\x90\x80\x80") == R"("\udcf4\udc90\udc80\udc80")");  // above U+10FFFF
  CHECK(json_of("\xf5\x80\x80\x80") == R"("\udcf5\udc80\udc80\udc80")");
  CHECK(json_of("\xf0\x9f\x9a") == R"("\udcf0\udc9f\udc9a")");  // truncated
  std::mt19937 random(11);
  for (int round = 0; round < 1000; ++round) {
    std::string bytes;
    for (std::size_t size = random() % 12; bytes.size() < size;) {
      const char* const parts[] = {"é", "漢", "🚀", "\xed\xa0", "\xf4\x8f\xbf\xbf", "\"", "\\", "\n", "x"};
      bytes += random() % 2 == 0 ? std::string(parts[random() % 9])
                                 : std::string(1, static_cast<char>(random() & 0xff));
    }
    CHECK(bytes_of(json_of(bytes)) == bytes);
  }
}

TEST_CASE("lines as JSON objects") {
  JsonLines lines;
  std::string out;
  const LineSource source{"gpu \"02\"", 13, 5, 1, "stdout"};
  lines.add(source, 1, "one\ntw", "T1", out);
  CHECK(out == R"({"time":"T1","host":"gpu \"02\"","rank":13,"local_rank":5,"stream":"stdout","line":"one"})"
               "\n");
  out.clear();
  lines.add(source, 2, "err\n", "T2", out);
  lines.add(source, 1, "o\n10%\r20%\r30%\nlast", "T3", out);
  lines.add({"gpu \"02\"", 14, 6, 1, ""}, 1, "other\n", "T3", out);
  lines.add(source, 1, "", "T4", out);
  struct Row {
    const char *time, *stream, *line;
    int rank = 13;
  };
  const Row expected[] = {{"T2", "stderr", "err"},
                          {"T3", "stdout", "two"},
                          {"T3", "stdout", "other", 14},
                          {"T4", "stdout", "30%"},
                          {"T4", "stdout", "last"}};
  std::string_view rest = out;
  for (const auto& want : expected) {
    const std::size_t end = rest.find('\n');
    REQUIRE(end != std::string_view::npos);
    const auto object = nlohmann::json::parse(rest.substr(0, end));
    CHECK(object["time"] == want.time);
    CHECK(object["stream"] == want.stream);
    CHECK(object["line"] == want.line);
    CHECK(object["host"] == "gpu \"02\"");
    CHECK(object["rank"] == want.rank);
    CHECK(object["local_rank"] == want.rank - 8);
    CHECK(object.size() == 6);
    rest.remove_prefix(end + 1);
  }
  CHECK(rest.empty());
}

}  // namespace
}  // namespace ddp::launcher

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
