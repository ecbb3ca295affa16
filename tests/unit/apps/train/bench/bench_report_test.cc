#include "apps/train/bench/bench_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/training/run_output.h"
#include "tests/support/catch.h"

using namespace ddp::train;

TEST_CASE("every two ranks form a pair once, and each rank is in at most one pair per round") {
  for (int world = 2; world <= 17; ++world) {
    std::set<std::pair<int, int>> met;
    const auto rounds = pair_rounds(world);
    CHECK(rounds.size() == static_cast<std::size_t>(world - 1 + world % 2));
    for (const auto& round : rounds) {
      std::set<int> busy;
      for (const auto& pair : round) {
        CHECK(pair.first < pair.second);
        CHECK(pair.second < world);
        CHECK(busy.insert(pair.first).second);
        CHECK(busy.insert(pair.second).second);
        CHECK(met.insert(pair).second);
      }
      CHECK(static_cast<int>(busy.size()) == world - world % 2);
    }
    CHECK(static_cast<int>(met.size()) == world * (world - 1) / 2);
  }
}

TEST_CASE("bus bandwidth is defined as in nccl-tests") {
  CHECK(bus_factor(BenchOperation::kAllReduce, 4) == 1.5);
  CHECK(bus_factor(BenchOperation::kAllGather, 4) == 0.75);
  CHECK(bus_factor(BenchOperation::kReduceScatter, 2) == 0.5);
  CHECK(bus_factor(BenchOperation::kBroadcast, 8) == 1);
}

namespace {

BenchReport report_of(double min_busbw) {
  BenchReport report;
  report.world = 4;
  report.nodes = 2;
  report.backend = "shm+tcp";
  report.min_busbw = min_busbw;
  report.rows = {{1000, 250, 1.0, 1.0, 2.0, 0}, {2000, 500, 1.0, 0.9, 1.5, 0}};  // 1 and 2 GB/s
  return report;
}

BenchReport pairs_of(double slow) {
  BenchReport report;
  report.operation = BenchOperation::kPairs;
  report.world = 3;
  report.pair_bytes = 4096;
  report.pairs = {{0, 1, true, 1.5, 20.0}, {0, 2, false, 30.0, 5.0}, {1, 2, false, 31.0, slow}};
  return report;
}

}  // namespace

TEST_CASE("the table has the columns of nccl-tests, followed by percentiles") {
  const BenchReport report = report_of(0);
  CHECK_THAT(table_head(report),
             Catch::Matchers::ContainsSubstring("bench allreduce, 4 ranks on 2 nodes, shm+tcp, in place\n"));
  CHECK(table_line(report, report.rows[1]) ==
        "         2000           500    float     sum      -1     1.00    2.00    3.00       0     0.90     "
        "1.50\n");
  CHECK(table_foot(report) == "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 2.25\n");
  BenchReport unchecked = report;
  unchecked.rows[0].wrong = -1;
  CHECK_THAT(table_line(unchecked, unchecked.rows[0]), Catch::Matchers::ContainsSubstring(" N/A "));
}

TEST_CASE("a verdict names each result that is wrong or too slow") {
  CHECK(verdict(report_of(0)).empty());
  CHECK(verdict(report_of(3)).empty());
  CHECK(verdict(report_of(3.5)) == "bus bandwidth 3.00 GB/s at 2000 bytes is under --min-busbw 3.5");
  BenchReport wrong = report_of(0);
  wrong.rows[0].wrong = 7;
  CHECK(verdict(wrong) == "7 wrong elements at 1000 bytes: memory or network of a node is faulty");
  BenchReport pairs = pairs_of(2);
  pairs.min_busbw = 4;
  CHECK(verdict(pairs) == "rank 1 - rank 2: 2.00 GB/s is under --min-busbw 4");
}

TEST_CASE("pairs are compared with other pairs of their kind") {
  CHECK(outliers(pairs_of(5.0).pairs).empty());
  CHECK_THAT(pairs_text(pairs_of(5.0)),
             Catch::Matchers::ContainsSubstring("# no pair is more than 20 % under the median\n"));
  BenchReport report = pairs_of(5.0);
  report.world = 4;
  report.pairs.push_back({1, 3, false, 30, 3.9});
  REQUIRE(outliers(report.pairs).size() == 1);
  const std::string text = pairs_text(report);
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring(
                       "# slow: rank 1 - rank 3: 3.90 GB/s, 22 % under the median\n"));
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring("      1   20.00       -    5.00    3.90\n"));
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring(
                       "# median in a node: 20.00 GB/s\n# median over tcp: 5.00 GB/s\n"));
}

TEST_CASE("the JSON report has rows, pairs and verdict") {
  const std::string rows = report_json(report_of(3.5));
  CHECK_THAT(rows, Catch::Matchers::StartsWith(
                       "{\"schema\":\"ddp-train-record/1\",\"kind\":\"bench\",\"time\":\"20"));
  CHECK_THAT(rows, Catch::Matchers::ContainsSubstring("\"rank\":0,\"world_size\":4,\"version\":"));
  CHECK_THAT(rows, Catch::Matchers::ContainsSubstring(
                       "{\"bytes\":2000,\"count\":500,\"type\":\"float32\",\"mean_us\":1.0,\"p50_us\":0.9,"
                       "\"p99_us\":1.5,\"algbw_gbps\":2.0,\"busbw_gbps\":3.0,\"wrong\":0}]"));
  CHECK_THAT(rows, Catch::Matchers::ContainsSubstring("\"passed\":false"));
  CHECK(rows.find('\n') == rows.size() - 1);
  const std::string pairs = report_json(pairs_of(5.0));
  CHECK_THAT(pairs, Catch::Matchers::ContainsSubstring("\"kind\":\"pairs\""));
  CHECK_THAT(pairs, Catch::Matchers::ContainsSubstring(
                        "{\"ranks\":[0,1],\"same_node\":true,\"bytes\":4096,\"latency_us\":1.5,"
                        "\"bandwidth_gbps\":20.0,\"outlier\":false}"));
  CHECK_THAT(pairs, !Catch::Matchers::ContainsSubstring("\"rows\""));
}

TEST_CASE("a record is one line of JSON with measured values of a few digits") {
  auto record = begin_record("step", 0, 1);
  CHECK(
      record_line(record).starts_with("{\"schema\":\"ddp-train-record/1\",\"kind\":\"step\",\"time\":\"20"));
  record = {{"host", "a \"b\" \\ c\n\xc3"}, {"loss", std::nan("")}, {"seconds", rounded(2.0 / 3, 3)}};
  CHECK(record_line(record) ==
        "{\"host\":\"a \\\"b\\\" \\\\ c\\n\xef\xbf\xbd\",\"loss\":null,\"seconds\":0.667}\n");
}
