#include "launcher/lines/open_rows.h"

#include <algorithm>
#include <random>
#include <string>

#include "launcher/lines/live_board.h"
#include "launcher/lines/output_lines.h"
#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::launcher;

namespace {

// One stream of a program. Finished lines collect in `lines`; open() returns the open rows below them.
struct Screen {
  LineAssembler assembler{std::string()};
  std::string lines;

  Screen& add(std::string_view bytes) {
    assembler.add(bytes, lines);
    return *this;
  }
  std::string open() const {
    std::string rows;
    assembler.live(rows);
    return rows;
  }
  bool bar() const {
    std::string rows;
    return assembler.live(rows);
  }
  std::string finish() {
    assembler.finish(lines);
    return lines;
  }
};

}  // namespace

TEST_CASE("a bar is live until its line ends and another row follows") {
  Screen s;
  s.add("epoch 1\n\r 10%|#  |");
  CHECK(s.lines == "epoch 1\n");
  CHECK(s.open() == " 10%|#  |");
  CHECK(s.bar());
  s.add("\r100%|###|\n");
  CHECK(s.lines == "epoch 1\n");  // it may belong to nested bars
  s.add("done\n");
  CHECK(s.lines == "epoch 1\n100%|###|\ndone\n");
  CHECK(s.open().empty());
}

TEST_CASE("a lower bar that is redrawn without moving up shows that the upper one has ended") {
  Screen s;
  s.add("\rfirst 100%\n\rsecond 0%");
  CHECK(s.lines.empty());
  s.add("\rsecond 1%");
  CHECK(s.lines == "first 100%\n");
  CHECK(s.open() == "second 1%");
}

TEST_CASE("a finished bar becomes a line after a pause") {
  Screen s;
  s.add("\r100%\n");
  s.assembler.finish_idle(false, s.lines);
  CHECK(s.lines == "100%\n");
  s.add("\r 50%");
  s.assembler.finish_idle(true, s.lines);
  CHECK(s.lines == "100%\n");
  CHECK(s.open() == " 50%");
}

TEST_CASE("the end of a bar's frame is not a message behind it") {
  Screen padded;  // rich, with an indeterminate task in its last row
  for (const char* frame : {"\r5/12   \x1b[36m       \x1b[0m", "\r6/12   \x1b[36m       \x1b[0m"})
    padded.add(frame);
  CHECK(padded.add("\nnext\n").finish() == "\x1b[0m6/12   \x1b[36m       \x1b[0m\nnext\n");
  Screen words;
  words.add("\rProgress: 10%\rProgress: 90%\rProgress: 100% complete. Wrote 12 files\nnext\n");
  CHECK(words.finish() == "Progress: 100% complete. Wrote 12 files\nnext\n");
}

TEST_CASE("an unfinished line is an open row, but no bar") {
  Screen s;
  s.add("Password: ");
  CHECK(s.open() == "Password:");
  CHECK_FALSE(s.bar());
}

TEST_CASE("nested bars of tqdm") {
  Screen s;
  s.add("\router 0%\n\rinner 0%\x1b[A");
  CHECK(s.open() == "outer 0%\ninner 0%");
  s.add("\n\rinner 50%\x1b[A\router 20%\n\rinner 0% \x1b[A");
  CHECK(s.open() == "outer 20%\ninner 0%");
  CHECK(s.lines.empty());
  // tqdm.write: both bars are erased, the line is written, and both are drawn again one row below.
  s.add("\r         \r\n\r         \r\x1b[Alog\n\router 20%\n\rinner 0%\x1b[A");
  CHECK(s.lines == "log\n");
  CHECK(s.open() == "outer 20%\ninner 0%");
  // leave=False: the inner bar is erased, and the outer one ends.
  s.add("\n\r         \r\x1b[A\router 100%\n");
  CHECK(s.open() == "outer 100%");
  CHECK(s.finish() == "log\nouter 100%\n");
}

TEST_CASE("the third bar of tqdm, two rows down, in the first frame") {
  Screen s;
  s.add("\rone 0%\n\rtwo 0%\x1b[A\n\n\rthree 0%\x1b[A\x1b[A\rone 1%");
  CHECK(s.lines.empty());
  CHECK(s.open() == "one 1%\ntwo 0%\nthree 0%");
}

TEST_CASE("rich: rows are erased from below, lines are printed above, the cursor is hidden meanwhile") {
  Screen s;
  s.add("\x1b[?25lone 0%\ntwo 0%");
  CHECK(s.lines.empty());
  CHECK(s.open() == "one 0%\ntwo 0%");
  CHECK(s.bar());  // in its first frame, too
  s.add("\r\x1b[2K\x1b[1A\x1b[2Kone 10%\ntwo 5%");
  CHECK(s.open() == "one 10%\ntwo 5%");
  s.add("\r\x1b[2K\x1b[1A\x1b[2Klog\none 10%\ntwo 5%");
  s.add("\r\x1b[2K\x1b[1A\x1b[2Kone 20%\ntwo 5%");
  CHECK(s.lines == "log\n");
  CHECK(s.open() == "one 20%\ntwo 5%");
  s.add("\n\x1b[?25h");
  CHECK(s.lines == "log\none 20%\ntwo 5%\n");
  CHECK(s.finish() == "log\none 20%\ntwo 5%\n");
}

TEST_CASE("a spinner of rich with one row lets lines pass") {
  Screen s;
  s.add("\x1b[?25l- work\r\x1b[2Klog 1\n- work\r\x1b[2K/ work");
  CHECK(s.lines == "log 1\n");
  CHECK(s.open() == "/ work");
  s.add("\r\x1b[2K\x1b[?25h");
  CHECK(s.finish() == "log 1\n");
}

TEST_CASE("rows may be redrawn by cursor up without a hidden cursor") {
  Screen s;
  s.add("a 0%\nb 0%\n");
  CHECK(s.lines == "a 0%\nb 0%\n");  // so far these may be ordinary lines
  for (int i = 1; i <= 3; ++i) {
    const std::string n = std::to_string(i);
    s.add("\x1b[2A\x1b[Ka " + n + "%\n\x1b[Kb " + n + "%\n");
    CHECK(s.lines == "a 0%\nb 0%\n");
    CHECK(s.open() == "a " + n + "%\nb " + n + "%");
  }
  s.assembler.finish_idle(true, s.lines);
  CHECK(s.lines == "a 0%\nb 0%\n");
  s.add("done\n");
  CHECK(s.lines == "a 0%\nb 0%\na 3%\nb 3%\ndone\n");
}

TEST_CASE("rows of different height, up and down again") {
  Screen s;
  s.add("\x1b[?25lx\ny\nz\n");
  s.add("\x1b[1A\rz1\x1b[1B\x1b[3A\rx1\x1b[3B");
  CHECK(s.open() == "x1\ny\nz1");
  s.add("\x1b[2A\ry1\x1b[2B");
  CHECK(s.open() == "x1\ny1\nz1");
  CHECK(s.finish() == "x1\ny1\nz1\n");
}

TEST_CASE("a log line directly behind a bar is a line of its own") {
  Screen s;
  const std::string bar = "\r 10%|#  | 1/10 [00:00<00:09, 1.00it/s]";
  s.add(bar).add("\r 20%|##  | 2/10 [00:02<00:08, 1.00it/s]");
  s.add("WARNING:root:loss is nan\n");
  CHECK(s.lines == "WARNING:root:loss is nan\n");
  CHECK(s.open() == " 20%|##  | 2/10 [00:02<00:08, 1.00it/s]");
  s.add("\r 30%|### | 3/10 [00:03<00:07, 1.00it/s]");
  CHECK(s.open() == " 30%|### | 3/10 [00:03<00:07, 1.00it/s]");
  s.add("Traceback (most recent call last):\n  File \"a.py\"\n\nValueError: 7\n");
  CHECK(s.lines ==
        "WARNING:root:loss is nan\nTraceback (most recent call last):\n  File \"a.py\"\n\nValueError: 7\n");
  CHECK(s.open() == " 30%|### | 3/10 [00:03<00:07, 1.00it/s]");
  s.add("\r 40%|### | 4/10 [00:04<00:06, 1.00it/s]");
  CHECK(s.open() == " 40%|### | 4/10 [00:04<00:06, 1.00it/s]");
}

TEST_CASE("a log line behind a lower bar comes after the bars above it") {
  Screen s;
  s.add("\rA 1%]\n\rB 1%]\x1b[A\rA 2%]\n\rB 2%]log\n");
  CHECK(s.lines == "A 2%]\nlog\n");
  CHECK(s.open() == "B 2%]");
}

TEST_CASE("a hidden cursor moves to the start of a row above, and erases what is below") {
  Screen s;
  s.add("\x1b[?25la 0%\nb 0%\x1b[Fa 1%");
  CHECK(s.open() == "a 1%\nb 0%");
  s.add("\nb 1%\nc 1%\x1b[2A\r\x1b[Jx");
  CHECK(s.open() == "x");
}

TEST_CASE("the end of a frame is found") {
  CHECK(frame_length("9%| 1/9 [x]", "10%|# 2/9 [x]error") == 13);
  CHECK(frame_length("100 of 200 files", "101 of 200 filesoops") == 16);
  CHECK(frame_length("step 5/9", "step 6/9 done") == 0);  // its end is ambiguous
  CHECK(frame_length("Loading", "Loading done") == 0);    // no number, so no bar
  CHECK(is_same_bar("96% ###", "100% ####"));
  CHECK(is_same_bar("a:   0%|   | 0/9 [00:00<?, ?it/s]", "a: 100%|###| 9/9 [00:01<00:00, 9.5it/s]  "));
  CHECK(is_same_bar("a \x1b[31m━╸\x1b[0m━ \x1b[35m96%\x1b[0m 0:00:01",
                    "a \x1b[32m━━━\x1b[0m \x1b[35m100%\x1b[0m 0:00:00"));
  CHECK_FALSE(is_same_bar("96% ###", "96% of the data are used"));
  CHECK_FALSE(is_same_bar("Loading", "Loading"));
  CHECK_FALSE(is_same_bar("", "5"));
  CHECK_FALSE(is_same_bar("5/9", ""));
  CHECK(frame_length("a 5%", "b 5%x") == 0);
  CHECK(frame_length("a 5% ]", "a 6% ]") == 6);
  CHECK(frame_length("[10.5s]    ", "[9s]  log") == 6);  // padded to the width of the previous frame
  CHECK(frame_length("[10s]", "[9s]   log") == 5);
  CHECK(frame_length("", "x") == 0);
}

TEST_CASE("colors pass, other sequences do not") {
  Screen s;
  s.add(
      "\x1b[1;31mred\x1b[0m\x1b]0;title\a \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ "
      "\x1b(B\x1b[?2004h\x1b=end\n");
  CHECK(s.lines == "\x1b[1;31mred\x1b[0m link end\n");
  CHECK(Screen().add("\x1b[1m\x1b[38;5;1mtwo\n").lines == "\x1b[1m\x1b[38;5;1mtwo\n");
  Screen many;
  for (int i = 0; i < 1000; ++i)
    many.add("\x1b[31m");
  many.add("x\n");
  CHECK(many.lines.size() <= 258);  // the oldest colors are dropped
  CHECK(many.lines.ends_with("\x1b[31mx\n"));
  Screen bar;
  bar.add("\r\x1b[32m 5%\x1b[0m\r\x1b[0m\n");  // a color is no text: it does not replace the row
  CHECK(bar.finish() == "\x1b[32m 5%\x1b[0m\x1b[0m\n");
}

TEST_CASE("unterminated sequences do not swallow the output") {
  Screen s;
  s.add("\x1b]no end\nline\n");
  CHECK(s.lines == "\nline\n");
  s.add("\x1b[12\nline\n");
  CHECK(s.lines == "\nline\n\nline\n");
  s.add("\x1b[" + std::string(1000, '1') + "mx\n");
  CHECK(s.lines == "\nline\n\nline\nx\n");
  s.add("cut off \x1b[3");
  CHECK(s.finish() == "\nline\n\nline\nx\ncut off \n");
}

TEST_CASE("backspaces animate spinners") {
  Screen s;
  s.add("work |\b/\b-");
  CHECK(s.open() == "work -");
  CHECK(s.bar());
  s.add("\b\b\xc3\xa9\b\xc3\xa8\n");
  CHECK(s.lines == "work\xc3\xa8\n");
  s.add("ends\b\n\b\bx\n");
  CHECK(s.lines == "work\xc3\xa8\nends\nx\n");
  CHECK(Screen().add("ab\x1b[31mc\x1b[0m\b\bX\n").lines == "a\x1b[0mX\n");  // a color has no width
}

TEST_CASE("only the first column is the start of a row") {
  CHECK(Screen().add("abc\x1b[1Gx\x1b[Gy\n").finish() == "y\n");
  CHECK(Screen().add("abc\x1b[2Gx\n").lines == "abcx\n");
}

TEST_CASE("a cleared screen loses nothing") {
  Screen s;
  s.add("text\x1b[H\x1b[2J\x1b[3Jmore\n");
  CHECK(s.finish() == "text\nmore\n");
}

TEST_CASE("the revision and the number of the line grow also at the end of a stream") {
  Screen s;
  s.add("1%\r2%\nend");
  const auto revision = s.assembler.revision();
  const auto line_feeds = s.assembler.line_feeds();
  s.finish();
  CHECK(s.assembler.revision() > revision);
  CHECK(s.assembler.line_feeds() > line_feeds);
}

TEST_CASE("memory stays bounded") {
  Screen s;
  s.add("\x1b[?25l");
  for (int i = 0; i < 10'000; ++i)
    s.add("row " + std::to_string(i) + "\n");
  CHECK(std::count(s.lines.begin(), s.lines.end(), '\n') >= 10'000 - static_cast<int>(OpenRows::kMaxRows));
  s.add("\x1b[99999B\x1b[99999A\x1b[5000Bx");
  for (int i = 0; i < 40; ++i)
    s.add("\n" + std::string(100'000, 'x'));
  CHECK(s.assembler.held() <= kMaxLine + 100'000);
  CHECK(s.finish().find("row 9999\n") != std::string::npos);
}

TEST_CASE("property: lines and open rows do not depend on the chunks") {
  std::mt19937 random(21);
  const std::vector<std::string_view> words = {
      "a",         "bc 5%]",     "\n",      "\r",         "\r\n",           "\b",           "\x1b[A",
      "\x1b[2A",   "\x1b[B",     "\x1b[3B", "\x1b[K",     "\x1b[2K",        "\x1b[J",       "\x1b[?25l",
      "\x1b[?25h", "\x1b[1;31m", "\x1b[m",  "\x1b]0;t\a", "\x1b]8;;\x1b\\", "\xe2\x96\x88", "   ",
      "\x1b",      "\x1b[",      "\x1b]",   "\x1b[2J",    "\x1b[F",         "\x1b[E",       "\x1bM",
      "7%]",       "\t",         "\x9b",    {"\0", 1}};
  for (int round = 0; round < 1500; ++round) {
    std::string bytes;
    const std::size_t count = random() % 60;
    for (std::size_t i = 0; i < count; ++i)
      bytes += words[random() % words.size()];
    Screen whole;
    whole.add(bytes);
    Screen cut;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t step = 1 + random() % 5;
      cut.add(std::string_view(bytes).substr(at, step));
      at += step;
    }
    REQUIRE(cut.lines == whole.lines);
    REQUIRE(cut.open() == whole.open());
    REQUIRE(cut.finish() == whole.finish());
    REQUIRE(whole.lines.find_first_of("\r\b") == std::string::npos);
  }
}
