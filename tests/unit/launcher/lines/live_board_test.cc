#include "launcher/lines/live_board.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A board with its driver, in steps of time.
struct Driver {
  explicit Driver(Bars bars = Bars::kRank0, bool view = true) : board(bars, {view, view}) {}

  void add(LiveBoard::Entry& entry, std::string_view bytes) {
    entry.lines.add(bytes, lines);
    board.changed(entry);
  }
  // Runs everything that becomes due in the next `later`.
  void pass(LiveBoard::Time later) {
    for (const LiveBoard::Time end = now + later;;) {
      const auto due = board.due();
      if (!due || *due > end) {
        now = end;
        return;
      }
      now = std::max(now, *due);
      std::array<std::string, 2> out;
      board.tick(now, out);
      lines += out[0] + out[1];
    }
  }
  std::string rows(int stream = 1) {
    std::string all;
    for (const LiveRow& row : board.rows(stream))
      all += row.text + row.suffix + "\n";
    return all;
  }

  LiveBoard board;
  LiveBoard::Time now = seconds(1000);
  std::string lines;
};

LiveBoard::Entry entry_of(std::uint32_t rank, int stream = 1) {
  return {Label("[" + std::to_string(rank) + "] "), rank, 0, stream};
}

TEST_CASE("a bar is shown in the next frame and removed by its line") {
  Driver d;
  LiveBoard::Entry a = entry_of(0);
  CHECK_FALSE(d.board.due().has_value());
  d.add(a, "\r10%");
  d.pass(LiveBoard::kFrame);
  CHECK(d.board.take_change(1));
  CHECK(d.rows() == "[0] 10%\n");
  d.add(a, "\n");
  d.add(a, "done\n");
  CHECK(d.board.take_change(1));  // at once, together with its line
  CHECK(d.rows().empty());
  CHECK(d.lines == "[0] 10%\n[0] done\n");
}

TEST_CASE("the footer is below the bars, and gone with them") {
  Driver d;
  LiveBoard::Entry out = entry_of(0);
  LiveBoard::Entry err = entry_of(0, 2);
  d.board.set_footer("CPU 3.0 of 8 cores");
  d.add(err, "Password: ");
  d.pass(seconds(1));
  CHECK(d.rows(2) == "[0] Password:\n");  // no bar
  d.add(err, "\n");
  d.add(out, "\r10%");
  d.pass(LiveBoard::kFrame);
  CHECK(d.rows(1) == "[0] 10%\nCPU 3.0 of 8 cores\n");
  d.add(err, "\r20%");
  CHECK(d.board.take_change(1));
  d.pass(LiveBoard::kFrame);
  CHECK(d.board.take_change(1));  // the footer moves
  CHECK(d.rows(1) + d.rows(2) == "[0] 10%\n[0] 20%\nCPU 3.0 of 8 cores\n");
  d.board.set_footer("CPU 4.0 of 8 cores");
  CHECK(d.board.take_change(2));
  CHECK(d.rows(2) == "[0] 20%\nCPU 4.0 of 8 cores\n");
  d.board.set_footer("CPU 4.0 of 8 cores");
  CHECK_FALSE(d.board.take_change(2));
  d.add(err, "\ndone\n");
  CHECK(d.board.take_change(1));
  CHECK(d.rows(1) == "[0] 10%\nCPU 4.0 of 8 cores\n");
}

TEST_CASE("a finished bar leaves the board as a line after a pause") {
  Driver d;
  LiveBoard::Entry a = entry_of(0);
  d.add(a, "\r100%\n");
  d.pass(milliseconds(150));
  CHECK(d.lines.empty());
  CHECK(d.rows() == "[0] 100%\n");
  d.pass(milliseconds(150));
  CHECK(d.lines == "[0] 100%\n");
  CHECK(d.rows().empty());
}

TEST_CASE("a pause of exactly the quiet time is long enough") {
  Driver d;
  LiveBoard::Entry a = entry_of(0);
  d.add(a, "\r100%\n");
  std::array<std::string, 2> out;
  d.board.tick(d.now, out);
  d.board.tick(d.now + LiveBoard::kQuiet - std::chrono::nanoseconds(1), out);
  CHECK(out[0].empty());
  d.board.tick(d.now + LiveBoard::kQuiet, out);
  CHECK(out[0] == "[0] 100%\n");
}

TEST_CASE("an unfinished line is shown once it is stable, not while it is being written") {
  Driver d;
  LiveBoard::Entry a = entry_of(0);
  d.add(a, "loading");
  d.pass(milliseconds(130));
  CHECK(d.rows().empty());
  d.pass(milliseconds(200));
  CHECK(d.rows() == "[0] loading\n");
  d.add(a, " done\n");
  CHECK(d.rows().empty());
  CHECK(d.lines == "[0] loading done\n");
}

TEST_CASE("a slowly growing line is shown while it grows") {
  Driver d;
  LiveBoard::Entry a = entry_of(0);
  for (int i = 0; i < 10; ++i) {
    d.add(a, "one more line\npart");  // each time another line: none stays
    d.pass(milliseconds(100));
    CHECK(d.rows().empty());
  }
  d.add(a, "\nloading");
  for (int i = 0; i < 10; ++i) {
    d.add(a, ".");
    d.pass(milliseconds(100));
  }
  CHECK(d.rows() == "[0] loading..........\n");
}

TEST_CASE("no frame is due without a change") {
  Driver d;
  LiveBoard::Entry a = entry_of(0);
  d.add(a, "\r10%");
  d.pass(seconds(5));
  CHECK(d.rows() == "[0] 10%\n");
  CHECK_FALSE(d.board.due().has_value());
  d.add(a, "\r20%");
  CHECK(d.board.due().has_value());
}

TEST_CASE("without rows a bar is a line every 30 s and at its end") {
  Driver d(Bars::kRank0, false);
  LiveBoard::Entry a = entry_of(0);
  LiveBoard::Entry b = entry_of(1);
  for (int i = 0; i < 65; ++i) {
    d.add(a, "\r" + std::to_string(i) + "%");
    d.add(b, "\r" + std::to_string(i / 2) + "%");
    d.pass(seconds(1));
  }
  CHECK(d.lines == "[0] 30%  [2 ranks: 15-30%]\n[0] 60%  [2 ranks: 30-60%]\n");
  d.add(a, "\r100%\n");
  d.pass(seconds(1));
  CHECK(d.lines == "[0] 30%  [2 ranks: 15-30%]\n[0] 60%  [2 ranks: 30-60%]\n[0] 100%\n");
}

TEST_CASE("an unchanged bar is written once, an unfinished line never") {
  Driver d(Bars::kAll, false);
  LiveBoard::Entry a = entry_of(0);
  LiveBoard::Entry b = entry_of(1, 2);
  d.add(a, "\r10%");
  d.add(b, "prompt> ");
  d.pass(seconds(200));
  CHECK(d.lines == "[0] 10%\n");
}

TEST_CASE("with bars off rows still become lines") {
  Driver d(Bars::kOff);
  LiveBoard::Entry a = entry_of(0);
  d.add(a, "\r10%\r100%\n");
  d.pass(seconds(1));
  CHECK(d.rows().empty());
  CHECK(d.lines == "[0] 100%\n");
}

TEST_CASE("a cleared board shows nothing") {
  Driver d;
  LiveBoard::Entry a = entry_of(0, 2);
  d.add(a, "\r10%");
  d.pass(seconds(1));
  CHECK(d.board.take_change(2));
  d.board.clear();
  CHECK(d.board.take_change(2));
  CHECK(d.rows(2).empty());
  CHECK_FALSE(d.board.due().has_value());
}

std::string shown(const BarFold& fold) {
  std::string all;
  for (const LiveRow& row : fold.rows())
    all += row.text + "|" + row.suffix + "\n";
  return all;
}

TEST_CASE("the progress of a bar is parsed") {
  CHECK(progress_of(" 45%|####     | 45/100 [00:01<00:02]") == 45.0);
  CHECK(progress_of("Epoch 3: 12.5% done") == 12.5);
  CHECK(progress_of("12/48 [===>....] - loss: 0.1") == 25.0);
  CHECK(progress_of("0/1") == 0.0);
  CHECK(progress_of("1/1") == 100.0);
  CHECK(progress_of("\x1b[35m 50%\x1b[0m \x1b[36m-:--:--\x1b[0m") == 50.0);
  CHECK(progress_of("on 2024/11/21: 7 %") == std::nullopt);
  CHECK(progress_of("300% more, 9/0, a/b") == std::nullopt);
  CHECK(progress_of("") == std::nullopt);
}

TEST_CASE("one row represents all ranks, with their spread") {
  BarFold fold(Bars::kRank0);
  CHECK(fold.rows().empty());
  fold.set(0, 0, "[a:0] ", "epoch 1\n 45%|##|");
  CHECK(shown(fold) == "[a:0] epoch 1|\n[a:0]  45%|##||\n");
  fold.set(1, 0, "[a:1] ", "epoch 1\n 40%|##|");
  fold.set(2, 1, "[b:2] ", "epoch 1\n 47%|##|");
  CHECK(shown(fold) == "[a:0] epoch 1|  [3 ranks]\n[a:0]  45%|##||  [3 ranks: 40-47%]\n");
  fold.set(1, 0, "[a:1] ", "epoch 1\n 45%");
  fold.set(2, 1, "[b:2] ", "epoch 1\n 45.9%");
  CHECK(shown(fold) == "[a:0] epoch 1|  [3 ranks]\n[a:0]  45%|##||  [3 ranks: 45%]\n");
}

TEST_CASE("without rank 0 the first rank with a bar represents the others") {
  BarFold fold(Bars::kRank0);
  fold.set(5, 1, "[b:5] ", "9%");
  fold.set(3, 0, "[a:3] ", "7%");
  CHECK(shown(fold) == "[a:3] 7%|  [2 ranks: 7-9%]\n");
  fold.set(3, 0, "[a:3] ", "");
  CHECK(shown(fold) == "[b:5] 9%|\n");
  fold.set(5, 1, "[b:5] ", "");
  CHECK(fold.empty());
}

TEST_CASE("--bars shows a row per node, per rank, or none") {
  for (const Bars bars : {Bars::kNode, Bars::kAll, Bars::kOff}) {
    BarFold fold(bars);
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      fold.set(rank, static_cast<int>(rank / 2), std::to_string(rank) + ": ",
               std::to_string(10 * rank) + "%");
    if (bars == Bars::kNode) CHECK(shown(fold) == "0: 0%|  [2 ranks: 0-10%]\n2: 20%|  [2 ranks: 20-30%]\n");
    if (bars == Bars::kAll) CHECK(shown(fold) == "0: 0%|\n1: 10%|\n2: 20%|\n3: 30%|\n");
    if (bars == Bars::kOff) CHECK(shown(fold).empty());
  }
}

}  // namespace
}  // namespace ddp::launcher

using namespace ddp::launcher;

namespace {

// The terminal features that the view may use: printing with wrap at the last column, CR, LF, cursor up and
// down, erase to the end of the row. Any other sequence fails the test. One column per byte: the tests are
// ASCII.
class Terminal {
 public:
  explicit Terminal(TerminalView::Size size) : size_(size), cells_(1) {}

  void write(std::string_view bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      if (bytes[at] == '\x1b') {
        at = escape(bytes, at);
      } else if (bytes[at] == '\r') {
        column_ = 0, ++at;
      } else if (bytes[at] == '\n') {
        column_ = 0, down(), ++at;
      } else {
        put(bytes[at++]);
      }
    }
  }
  std::string screen() const {
    std::string all;
    for (const std::string& row : cells_)
      all += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
    while (all.size() > 1 && all[all.size() - 2] == '\n')
      all.pop_back();
    return all == "\n" ? "" : all;
  }
  std::size_t column() const { return column_; }
  std::size_t row() const { return row_; }

 private:
  std::size_t escape(std::string_view bytes, std::size_t at) {
    REQUIRE(bytes.substr(at, 2) == "\x1b[");
    const std::size_t end = bytes.find_first_of("ABKm", at);
    REQUIRE(end != std::string_view::npos);
    const std::string count(bytes.substr(at + 2, end - at - 2));
    if (bytes[end] == 'A') {
      row_ -= std::min<std::size_t>(row_, std::stoul(count));
    } else if (bytes[end] == 'B') {
      REQUIRE(count.empty());
      row_ = std::min(row_ + 1, cells_.size() - 1);
    } else if (bytes[end] == 'K') {
      REQUIRE(count.empty());
      cells_[row_].resize(std::min(cells_[row_].size(), column_));
    }
    return end + 1;
  }
  void put(char c) {
    if (column_ == size_.columns) column_ = 0, down();
    std::string& row = cells_[row_];
    row.resize(std::max(row.size(), column_ + 1), ' ');
    row[column_++] = c;
  }
  void down() {
    if (++row_ == cells_.size()) cells_.emplace_back();
  }

  TerminalView::Size size_;
  std::vector<std::string> cells_;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
};

const TerminalView::Size kSize{40, 12};

}  // namespace

TEST_CASE("without live rows lines pass unchanged") {
  TerminalView view(true);
  CHECK(view.draw("a\nb\n", {}, kSize) == "a\nb\n");
  CHECK(view.draw("", {}, kSize).empty());
  CHECK_FALSE(view.shows_rows());
}

TEST_CASE("lines are printed above the rows, which stay at the bottom") {
  TerminalView view(true);
  Terminal terminal(kSize);
  terminal.write(view.draw("one\n", {{"bar 1%", ""}}, kSize));
  CHECK(terminal.screen() == "one\nbar 1%\n");
  CHECK(view.shows_rows());
  terminal.write(view.draw("two\nthree\n", {{"bar 2%", ""}}, kSize));
  CHECK(terminal.screen() == "one\ntwo\nthree\nbar 2%\n");
  terminal.write(view.draw("", {{"bar", ""}, {"second", ""}}, kSize));
  CHECK(terminal.screen() == "one\ntwo\nthree\nbar\nsecond\n");
  CHECK(terminal.column() == 0);
  CHECK(terminal.row() == 5);
  terminal.write(view.draw("done\n", {}, kSize));
  CHECK(terminal.screen() == "one\ntwo\nthree\ndone\n");
  CHECK_FALSE(view.shows_rows());
}

TEST_CASE("an unchanged row is not drawn again, a new frame is drawn in place") {
  TerminalView view(true);
  view.draw("", {{"bar 10%", ""}}, kSize);
  CHECK(view.draw("", {{"bar 10%", ""}}, kSize).empty());
  CHECK(view.draw("", {{"bar 11%", ""}}, kSize) == "\r\x1b[K\x1b[1Abar 11%\x1b[K\r\n");
}

TEST_CASE("typed characters are erased by the next frame") {
  TerminalView view(true);
  Terminal terminal(kSize);
  terminal.write(view.draw("", {{"bar 1%", ""}}, kSize));
  terminal.write("^C");
  terminal.write(view.draw("x\n", {{"bar 2%", ""}}, kSize));
  CHECK(terminal.screen() == "x\nbar 2%\n");
}

TEST_CASE("rows are cut so that they never wrap, and their suffix stays") {
  TerminalView view(true);
  Terminal terminal(kSize);
  terminal.write(view.draw("", {{std::string(100, 'x'), " [8 ranks: 1-3%]"}}, kSize));
  CHECK(terminal.screen() == std::string(23, 'x') + " [8 ranks: 1-3%]\n");
  terminal.write(view.draw("", {{"short", std::string(100, 's')}}, kSize));
  CHECK(terminal.screen() == "short\n");  // no room for the suffix
}

TEST_CASE("a line as wide as the terminal, and one wider") {
  TerminalView view(true);
  Terminal terminal({10, 12});
  const TerminalView::Size size{10, 12};
  terminal.write(view.draw("", {{"bar", ""}}, size));
  terminal.write(view.draw("0123456789\n", {{"bar", ""}}, size));
  terminal.write(view.draw("0123456789abc\n", {{"bar", ""}}, size));
  CHECK(terminal.screen() == "0123456789\n0123456789\nabc\nbar\n");
}

TEST_CASE("more rows than half the screen") {
  TerminalView view(true);
  Terminal terminal({40, 8});
  std::vector<LiveRow> rows;
  for (int i = 0; i < 10; ++i)
    rows.push_back({"bar " + std::to_string(i), ""});
  terminal.write(view.draw("line\n", rows, {40, 8}));
  CHECK(terminal.screen() == "line\nbar 0\nbar 1\nbar 2\n… and 7 more\n");
}

TEST_CASE("a very small terminal gets lines only") {
  TerminalView view(true);
  CHECK(view.draw("x\n", {{"bar", ""}}, {9, 24}) == "x\n");
  CHECK(view.draw("x\n", {{"bar", ""}}, {80, 3}) == "x\n");
  CHECK_FALSE(view.shows_rows());
}

TEST_CASE("a terminal that became narrower, with and without wrapped rows") {
  const std::vector<LiveRow> rows = {{std::string(30, 'a'), ""}, {"b", ""}};
  TerminalView reflowing(true);
  reflowing.draw("", rows, kSize);
  CHECK(reflowing.draw("", {}, {16, 12}) == "\r\x1b[K\x1b[3A\x1b[K\x1b[B\x1b[K\x1b[B\x1b[K\x1b[B\x1b[3A");
  TerminalView cutting(false);
  cutting.draw("", rows, kSize);
  CHECK(cutting.draw("", {}, {16, 12}) == "\r\x1b[K\x1b[2A\x1b[K\x1b[B\x1b[K\x1b[B\x1b[2A");
  TerminalView wider(true);
  wider.draw("", rows, kSize);
  CHECK(wider.draw("", {}, {90, 12}) == "\r\x1b[K\x1b[2A\x1b[K\x1b[B\x1b[K\x1b[B\x1b[2A");
}

TEST_CASE("abandoned rows stay on the screen") {
  TerminalView view(true);
  view.draw("", {{"bar", ""}}, kSize);
  view.forget();
  CHECK(view.draw("x\n", {}, kSize) == "x\n");
}

TEST_CASE("lines keep colors, but no cursor movement and no character set change") {
  std::string out;
  append_visible(std::string("a\tb\x0e\x07\0\x7f\x1b[31mred\nplain\n\x1b[5Aup\x1b", 29), out);
  append_visible("\n\x1b[1mbold\x1b[0m.\n", out);
  CHECK(out == "a\tb^N^G^@^?\x1b[31mred\x1b[0m\nplain\n^[[5Aup^[\n\x1b[1mbold\x1b[0m.\n");
  out.clear();
  append_visible(
      "\xc2\x9b"
      "2J \xc2\x85\xc2\xa0\xc3\xa4\xc2\n\xc2",
      out);
  CHECK(out == "^[[2J ^[E\xc2\xa0\xc3\xa4\xc2\n\xc2");
}

TEST_CASE("lines contain no 8-bit controls, no direction marks, and no invisible characters except joiners") {
  const auto shown = [](std::string_view text) {
    std::string out;
    append_visible(text, out);
    return out;
  };
  CHECK(shown("a\x9b"
              "2J\x85\n") == "a^[[2J^[E\n");  // single bytes, as for an 8-bit terminal
  CHECK(shown("\xe2\x80\xae"
              "a\xe2\x81\xa6"
              "b\xef\xbb\xbf"
              "c\xf3\xa0\x81\x81\xc2\xad\n") == "?a?b?c??\n");
  const std::string_view plain = "\xe2\x9b\xbb caf\xe9 日本 \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb\n";
  CHECK(shown(plain) == plain);
  std::string row;
  CHECK(append_row("a\xe2\x80\xae"
                   "b",
                   5, row) == 3);
  CHECK(row == "a b");
}

TEST_CASE("widths of characters") {
  CHECK(text_width("abc") == 3);
  CHECK(text_width("\x1b[1;31mabc\x1b[0m") == 3);
  CHECK(text_width("日本") == 4);
  CHECK(text_width("e\xcc\x81") == 1);  // with a combining accent
  CHECK(text_width("█▏━╸") == 4);       // characters of progress bars
  CHECK(text_width("🚀") == 2);
  CHECK(text_width("\xff\xc0\x80") == 3);  // no UTF-8
  CHECK(text_width("\xed\xa0\x80") == 3);  // a surrogate
}

TEST_CASE("rows are cut between whole characters, and colors are ended") {
  const auto cut = [](std::string_view row, std::size_t width) {
    std::string out;
    append_row(row, width, out);
    return out;
  };
  CHECK(cut("日本語", 5) == "日本");
  CHECK(cut("\x1b[31mabc\x1b[0m", 2) == "\x1b[31mab\x1b[0m");
  CHECK(cut("a\tb\x1b[2Kc", 20) == "a b [2Kc");
  CHECK(cut("a\xff", 5) == "a\xef\xbf\xbd");
  CHECK(cut("e\xcc\x81x", 1) == "e\xcc\x81");
}
