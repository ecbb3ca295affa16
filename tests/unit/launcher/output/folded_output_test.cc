#include "launcher/output/folded_output.h"

#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::launcher;

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

}  // namespace

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
  bench.output.rest();
  bench.output.flush();
  CHECK(bench.shown == Shown{{1, "0|x\n"}, {1, "1|x\n"}});
}
