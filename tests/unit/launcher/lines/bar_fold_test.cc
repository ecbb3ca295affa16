#include "launcher/lines/live_board.h"

#include "tests/support/catch.h"

using namespace ddp::launcher;

namespace {

std::string shown(const BarFold& fold) {
  std::string all;
  for (const LiveRow& row : fold.rows())
    all += row.text + "|" + row.suffix + "\n";
  return all;
}

}  // namespace

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
