#include "launcher/output/merged_output.h"

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using Shown = std::vector<std::pair<int, std::string>>;

struct Bench {
  asio::io_context loop;
  Shown shown;
  FoldedOutput output;
  explicit Bench(std::string label)
      : output(loop.get_executor(), std::move(label), [this](int stream, std::string_view lines) {
          shown.emplace_back(stream, std::string(lines));
        }) {}
};

LineSource rank_on(std::string_view host, int rank, int local_rank, int node_rank) {
  return {host, rank, local_rank, node_rank, ""};
}

TEST_CASE("merged lines carry the set of ranks, lines of one rank its own label") {
  Bench bench("[{host}:{rank}] ");
  bench.output.begin(4);
  bench.output.add(rank_on("a", 0, 0, 0), 1, "\x1b[36m[a:0]\x1b[0m ", "",
                   "\x1b[36m[a:0]\x1b[0m x\n\x1b[36m[a:0]\x1b[0m own\n");
  bench.output.add(rank_on("a", 1, 1, 0), 1, "[a:1] ", "", "[a:1] x\n");
  bench.output.flush();
  CHECK(bench.shown == Shown{{1, "[a:0-1] x\n\x1b[36m[a:0]\x1b[0m own\n"}});
  bench.shown.clear();
  for (int rank = 0; rank < 4; ++rank) {
    const std::string label = "[" + std::string(rank < 2 ? "a" : "b") + ":" + std::to_string(rank) + "] ";
    bench.output.add(rank_on(rank < 2 ? "a" : "b", rank, rank % 2, rank / 2), 2, label, "", label + "all\n");
  }
  CHECK(bench.shown == Shown{{2, "[*:0-3] all\n"}});  // without a delay
}

TEST_CASE("the label of a set has the time of the first line") {
  Bench bench("{time} {node_rank}.{local_rank} {stream}|");
  bench.output.begin(9);
  bench.output.add(rank_on("a", 3, 0, 1), 1, "07:18:13.250 1.0 stdout|", "07:18:13.250",
                   "07:18:13.250 1.0 stdout|x\n");
  bench.output.add(rank_on("a", 4, 1, 1), 1, "07:18:13.300 1.1 stdout|", "07:18:13.300",
                   "07:18:13.300 1.1 stdout|x\n07:18:13.300 1.1 stdout|y\n");
  bench.output.flush();
  CHECK(bench.shown == Shown{{1, "07:18:13.250 1.0-1 stdout|x\n07:18:13.300 1.1 stdout|y\n"}});
}

TEST_CASE("both streams of a rank keep the rank's order") {
  Bench bench("");
  bench.output.begin(2);
  bench.output.add(rank_on("a", 0, 0, 0), 2, "", "", "1\n");
  bench.output.add(rank_on("a", 0, 0, 0), 1, "", "", "2\n");
  bench.output.add(rank_on("a", 0, 0, 0), 2, "", "", "3\n");
  bench.output.flush();
  CHECK(bench.shown == Shown{{2, "1\n"}, {1, "2\n"}, {2, "3\n"}});
}

TEST_CASE("the window ends by itself") {
  Bench bench("{rank}|");
  bench.output.begin(2);
  for (int window = 0; window < 2; ++window) {
    bench.shown.clear();
    bench.output.add(rank_on("a", 0, 0, 0), 1, "0|", "", "0|x\n");
    CHECK(bench.shown.empty());
    bench.loop.run_for(std::chrono::seconds(10));  // returns after the timer, its only work
    bench.loop.restart();
    CHECK(bench.shown == Shown{{1, "0|x\n"}});
  }
}

TEST_CASE("a new attempt starts with nothing held") {
  Bench bench("{rank}|");
  bench.output.begin(2);
  bench.output.add(rank_on("a", 0, 0, 0), 1, "0|", "", "0|x\n");
  bench.output.begin(2);
  CHECK(bench.shown == Shown{{1, "0|x\n"}});
  bench.output.add(rank_on("b", 1, 0, 0), 1, "1|", "", "1|x\n");
  bench.output.stop_timer();
  bench.output.flush();
  CHECK(bench.shown == Shown{{1, "0|x\n"}, {1, "1|x\n"}});
}

using std::chrono::milliseconds;

using Texts = std::vector<std::string>;

/// A fold and its output: "0-2 text", with "!" before a line of stderr.
struct FoldBench {
  explicit FoldBench(std::size_t everyone) : fold(everyone) {}
  LineFold fold;
  Texts out;
  LineFold::Sink sink = [this](const LineFold::Line& line) {
    out.push_back((line.stream == 2 ? "!" : "") + ddp::format_number_set(line.ranks) + ' ' +
                  std::string(line.text));
  };
  void add(int rank, const std::string& text, int ms, std::uint8_t stream = 1) {
    fold.add(rank, stream, text, "", milliseconds(ms), sink);
  }
  void tick(int ms) { fold.tick(milliseconds(ms), sink); }
  void flush() { fold.flush(sink); }
};

TEST_CASE("equal lines of several ranks are merged") {
  FoldBench bench(4);
  bench.add(1, "hello", 0);
  bench.add(0, "hello", 10);
  bench.add(3, "hello", 20);
  CHECK(bench.out.empty());
  CHECK(bench.fold.deadline() == LineFold::Time(milliseconds(100)));
  bench.tick(99);
  CHECK(bench.out.empty());
  bench.tick(100);
  CHECK(bench.out == Texts{"0-1,3 hello"});
  CHECK_FALSE(bench.fold.deadline());
  CHECK(bench.fold.held() == 0);
}

TEST_CASE("a line that all ranks have written is released at once") {
  FoldBench bench(2);
  bench.add(0, "hello", 0);
  bench.add(1, "hello", 1);
  CHECK(bench.out == Texts{"0-1 hello"});
  FoldBench alone(1);
  alone.add(0, "x", 0);
  CHECK(alone.out == Texts{"0 x"});
}

TEST_CASE("a folded line does not overtake lines of its ranks") {
  FoldBench bench(3);
  bench.add(0, "a", 0);
  bench.add(1, "b", 1);
  bench.add(1, "a", 2);  // joins nothing: the line a of rank 0 is printed before b
  bench.add(0, "b", 3);  // joins b, which is printed after a
  bench.flush();
  CHECK(bench.out == Texts{"0 a", "0-1 b", "1 a"});
}

TEST_CASE("different lines between equal ones do not prevent merging") {
  FoldBench bench(3);
  for (int rank = 0; rank < 3; ++rank) {
    for (const std::string text : {"begin", "own", "more", "end"})
      bench.add(rank, text == "own" || text == "more" ? text + std::to_string(rank) : text, rank);
  }
  bench.flush();
  CHECK(bench.out ==
        Texts{"0-2 begin", "0 own0", "1 own1", "2 own2", "0 more0", "1 more1", "2 more2", "0-2 end"});
}

TEST_CASE("a rank's own first line does not prevent later merging") {
  FoldBench bench(9);
  bench.add(0, "hello 0", 0);
  bench.add(0, "same", 1);
  bench.add(1, "hello 1", 2);
  bench.add(1, "same", 3);
  bench.tick(100);
  // A line that is old enough is printed together with the lines before it.
  CHECK(bench.out == Texts{"0 hello 0"});
  bench.tick(101);
  CHECK(bench.out == Texts{"0 hello 0", "1 hello 1", "0-1 same"});
}

TEST_CASE("a line that no rank can join is released at once") {
  FoldBench bench(2);
  bench.add(0, "a", 0);
  bench.add(1, "b", 1);
  CHECK(bench.out == Texts{"0 a"});
  bench.add(0, "c", 2);
  CHECK(bench.out == Texts{"0 a", "1 b"});
}

TEST_CASE("a line that one rank writes twice is shown twice") {
  FoldBench bench(2);
  bench.add(0, "x", 0);
  bench.add(0, "x", 1);
  bench.add(1, "x", 2);
  bench.add(1, "x", 3);
  bench.add(1, "x", 4);
  bench.flush();
  CHECK(bench.out == Texts{"0-1 x", "0-1 x", "1 x"});
}

TEST_CASE("streams are not mixed, and keep a rank's order") {
  FoldBench bench(4);
  bench.add(0, "x", 0, 1);
  bench.add(1, "x", 1, 2);
  bench.add(2, "x", 2, 2);
  bench.add(0, "y", 3, 2);
  bench.add(2, "x", 4, 1);
  bench.flush();
  CHECK(bench.out == Texts{"0 x", "!1-2 x", "!0 y", "2 x"});
}

TEST_CASE("a merged line has the time of the first") {
  LineFold fold(3);
  std::string stamp;
  const LineFold::Sink sink = [&](const LineFold::Line& line) { stamp = line.stamp; };
  fold.add(1, 1, "x", "07:18:13.250", milliseconds(0), sink);
  fold.add(0, 1, "x", "07:18:13.300", milliseconds(50), sink);
  fold.flush(sink);
  CHECK(stamp == "07:18:13.250");
}

TEST_CASE("the held memory is bounded for any input") {
  FoldBench bench(2);
  for (int i = 0; i < 30; ++i) {
    bench.add(0, std::to_string(i) + std::string(100'000, 'x'), 0);
    CHECK(bench.fold.held() <= LineFold::kMaxHeld);
  }
  bench.flush();
  CHECK(bench.out.size() == 30);
  CHECK(bench.fold.held() == 0);
}

TEST_CASE("no line is lost or late, and each rank keeps its order") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 9);
    const int words = 1 + static_cast<int>(random() % 6);
    std::map<int, Texts> went_in;
    std::map<int, Texts> came_out;
    LineFold fold(static_cast<std::size_t>(ranks));
    bool is_lost = false;  // checked at the end: an assertion for each line would take most of the time
    const LineFold::Sink sink = [&](const LineFold::Line& line) {
      is_lost = is_lost || line.ranks.empty();
      for (const int rank : line.ranks)
        came_out[rank].push_back(std::to_string(line.stream) + std::string(line.text));
    };
    int now = 0;
    std::size_t in = 0;
    for (int i = 0; i < 3000; ++i) {
      now += static_cast<int>(random() % 20) / 10;
      const int rank = static_cast<int>(random()) & 0xff;
      const auto stream = static_cast<std::uint8_t>(random() % 8 == 0 ? 2 : 1);
      const std::string text = "w" + std::to_string(random() % static_cast<unsigned>(words));
      went_in[rank % ranks].push_back(std::to_string(stream) + text);
      fold.add(rank % ranks, stream, text, "", milliseconds(now), sink);
      ++in;
      if (random() % 50 == 0) {
        fold.tick(milliseconds(now), sink);
        if (const auto deadline = fold.deadline()) CHECK(*deadline > milliseconds(now));
      }
      if (random() % 500 == 0) {
        fold.flush(sink);
        CHECK(came_out == went_in);
      }
    }
    fold.flush(sink);
    CHECK_FALSE(is_lost);
    CHECK(came_out == went_in);
    CHECK(fold.held() == 0);
    CHECK_FALSE(fold.deadline());
  }
}

}  // namespace
}  // namespace ddp::launcher
