#include "launcher/lines/live_board.h"

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
