#include "apps/train/bench/bench_report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/training/run_output.h"
#include "tests/support/catch.h"

using namespace ddp::train;

TEST_CASE("every two ranks form a pair once, and each rank is in at most one pair per round") {
  std::vector<std::vector<int>> worlds{{0, 0, 1, 1, 1}, {0, 1, 0, 1, 2}, {0, 0, 0, 1}};
  for (const int nodes : {1, 2, 3, 4})
    for (int size = 1; size <= 5; ++size) {
      worlds.emplace_back();
      for (int rank = 0; rank < nodes * size; ++rank)
        worlds.back().push_back(rank / size);
    }
  for (const auto& node_of : worlds) {
    const int world = static_cast<int>(node_of.size());
    std::set<std::pair<int, int>> met;
    for (const auto& round : pair_rounds(node_of)) {
      std::set<int> busy;
      for (const auto& pair : round) {
        CHECK(pair.first < pair.second);
        CHECK(pair.second < world);
        CHECK(busy.insert(pair.first).second);
        CHECK(busy.insert(pair.second).second);
        CHECK(met.insert(pair).second);
      }
    }
    CHECK(static_cast<int>(met.size()) == world * (world - 1) / 2);
  }
}

TEST_CASE("the pairs of a round are all in nodes, or all between two nodes each") {
  const auto rounds = pair_rounds({0, 0, 1, 1, 2, 2, 3, 3});
  REQUIRE(rounds.size() == 7);
  CHECK(rounds[0] == PairRound{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  CHECK(rounds[1] == PairRound{{0, 6}, {1, 7}, {2, 4}, {3, 5}});  // rails
  CHECK(rounds[2] == PairRound{{0, 7}, {1, 6}, {2, 5}, {3, 4}});
}

TEST_CASE("the rank with most of the bad pairs is blamed, not its peers") {
  using Ranks = std::vector<int>;
  // Each rank has the letter of its node. `bad` says which pairs are; `more` are bad, too.
  const auto blamed = [](const std::string& nodes, const std::function<bool(int, int)>& bad,
                         const std::vector<PairResult>& more = {}) {
    std::vector<PairResult> all, found = more;
    for (int a = 0; a < std::ssize(nodes); ++a) {
      for (int b = a + 1; b < std::ssize(nodes); ++b) {
        all.push_back({a, b, nodes[static_cast<std::size_t>(a)] == nodes[static_cast<std::size_t>(b)]});
        if (bad(a, b)) found.push_back(all.back());
      }
    }
    return blame_by_majority(all, found);
  };
  const auto with = [](const std::set<int>& ranks) {
    return [ranks](int a, int b) { return ranks.contains(a) || ranks.contains(b); };
  };
  const auto none = [](int, int) { return false; };
  for (const std::string nodes : {"aaaa", "abcd"}) {
    CHECK(blamed(nodes, with({2})) == Ranks{2});
    CHECK(blamed(nodes, [](int a, int b) { return b == 2 || (a == 2 && b == 4); }) == Ranks{2});
  }
  CHECK(blamed("aabb", with({3})) == Ranks{3});
  CHECK(blamed("aab", with({0})) == Ranks{0});
  CHECK(blamed("abcd", none, {{0, 2}, {2, 0}}).empty());  // one pair: both ends alike
  CHECK(blamed("ab", with({1})).empty());
  CHECK(blamed("abc", with({0, 1, 2})).empty());  // everything
  CHECK(blamed("abc", with({}), {{0, 1}, {2, 2}}) == Ranks{2});
  CHECK(blamed("abc", none).empty());
  CHECK(blamed("aaaaaa", with({2, 4})) == Ranks{2, 4});

  // NVLink of one GPU, or of one in each node: pairs between nodes are right.
  const std::string two_nodes = "aaaaaaaabbbbbbbb";
  const auto in_nodes = [&](const std::set<int>& ranks) {
    return [ranks](int a, int b) { return a / 8 == b / 8 && (ranks.contains(a) || ranks.contains(b)); };
  };
  CHECK(blamed(two_nodes, in_nodes({11})) == Ranks{11});
  CHECK(blamed(two_nodes, in_nodes({3, 11})) == Ranks{3, 11});
  // The network adapter of one GPU, of a node, and a link between nodes.
  CHECK(blamed(two_nodes, [](int a, int b) { return a / 8 != b / 8 && b == 11; }) == Ranks{11});
  CHECK(blamed("aabbcc", [](int a, int b) { return a < 4 && b > 3; }) == Ranks{4, 5});
  CHECK(blamed(two_nodes, [](int a, int b) { return a / 8 != b / 8; }).empty());
  CHECK(blamed("aaaab", [](int, int b) { return b == 4; }) == Ranks{4});
  CHECK(blamed("aaabb", [](int a, int b) { return a < 3 && b > 2; }).empty());
}

TEST_CASE("a value is judged by the median of the others") {
  CHECK(median_of_others({}, 1) == 0);
  CHECK(median_of_others({1}, 1) == 0);
  CHECK(median_of_others({1, 5}, 1) == 5);
  CHECK(median_of_others({1, 5}, 5) == 1);
  CHECK(median_of_others({1, 1, 5}, 1) == 5);
  CHECK(median_of_others({1, 5, 5}, 5) == 5);
  CHECK(median_of_others({1, 2, 3, 4}, 1) == 3);
  CHECK(median_of_others({1, 2, 3, 4}, 4) == 2);
}

TEST_CASE("the pairs of one slow rank are slow, with two, three and four ranks on a node") {
  for (const int world : {2, 3, 4}) {
    BenchReport report;
    report.world = world;
    for (int a = 0; a < world; ++a)
      for (int b = a + 1; b < world; ++b)
        report.pairs.push_back({a, b, true, 1, b == world - 1 ? 2.0 + a : 10.0});
    const auto slow = outliers(report.pairs);
    if (world == 2) {  // one pair: there are no others
      CHECK(slow.empty());
      continue;
    }
    CHECK(std::ssize(slow) == world - 1);
    CHECK(blame_by_majority(report.pairs, slow) == std::vector<int>{world - 1});
    CHECK_THAT(pairs_text(report),
               Catch::Matchers::ContainsSubstring("# slow: rank " + std::to_string(world - 1) +
                                                  ": more than 20 % under the median of the others in "));
  }
}

TEST_CASE("groups are the ranks of each node, and of each local rank") {
  const auto text = [](const std::vector<int>& node_of, const std::vector<int>& local_of) {
    std::string all;
    for (const GroupResult& group : groups_of(node_of, local_of))
      all += group_name(group) + ": " + ranks_text(group.ranks) + "; ";
    return all;
  };
  CHECK(text({0, 0, 1, 1}, {0, 1, 0, 1}) ==
        "node 0: rank 0, rank 1; node 1: rank 2, rank 3; rail 0: rank 0, rank 2; rail 1: rank 1, rank 3; ");
  CHECK(text({0, 0, 0}, {0, 1, 2}) == "node 0: rank 0, rank 1, rank 2; ");
  CHECK(text({0, 1, 2, 2}, {0, 0, 0, 1}) == "node 2: rank 2, rank 3; rail 0: rank 0, rank 1, rank 2; ");
}

TEST_CASE("the rank in a bad node and on a bad rail is blamed, or the few that see a wrong sum") {
  // Three nodes of three ranks.
  const auto all = groups_of({0, 0, 0, 1, 1, 1, 2, 2, 2}, {0, 1, 2, 0, 1, 2, 0, 1, 2});
  REQUIRE(all.size() == 6);
  const auto text = [&](const std::vector<std::size_t>& numbers, const std::vector<int>& known = {}) {
    std::vector<GroupResult> bad;
    for (const std::size_t number : numbers)
      bad.push_back(all[number]);
    const GroupBlame blame = blame_groups(bad, known);
    std::string rest;
    for (const GroupResult& group : blame.rest)
      rest += "; " + group_name(group);
    return ranks_text(blame.ranks) + rest;
  };
  CHECK(text({1, 5}) == "rank 5");
  CHECK(text({1, 3, 5}) == "rank 3, rank 5");
  CHECK(text({0, 1, 3}) == "rank 0, rank 3");
  CHECK(text({1}) == "; node 1");
  CHECK(text({3}) == "; rail 0");
  CHECK(text({0, 1, 3, 4}) == "; node 0; node 1; rail 0; rail 1");  // several ranks would explain it
  CHECK(text({1, 5}, {5}) == "");
  CHECK(text({0, 1, 5}, {5}) == "; node 0");
  GroupResult group = all[0];
  group.witnesses = {2};
  CHECK(blame_groups({group}, {}).ranks == std::vector<int>{2});
  group.witnesses = {0, 2};
  CHECK(blame_groups({group}, {}).rest.size() == 1);
}

TEST_CASE("slow and wrong groups are reported with the rank that explains them") {
  BenchReport report;
  report.operation = BenchOperation::kPairs;
  report.world = 4;
  report.pair_bytes = 4096;
  report.groups = groups_of({0, 0, 1, 1}, {0, 1, 0, 1});
  for (GroupResult& group : report.groups)
    group.bandwidth = 10;
  CHECK_THAT(pairs_text(report), Catch::Matchers::EndsWith("#  node 0, 2 ranks: 10.00 GB/s\n"
                                                           "#  node 1, 2 ranks: 10.00 GB/s\n"
                                                           "#  rail 0, 2 ranks: 10.00 GB/s\n"
                                                           "#  rail 1, 2 ranks: 10.00 GB/s\n"));
  report.groups[1].bandwidth = report.groups[2].bandwidth = 3;
  CHECK_THAT(pairs_text(report),
             Catch::Matchers::EndsWith(
                 "# slow: rank 2: node 1 and rail 0 are more than 20 % under the median of the others\n"));
  report.groups[2].bandwidth = 10;
  report.groups[1].late = 3;
  CHECK_THAT(
      pairs_text(report),
      Catch::Matchers::EndsWith("# slow: node 1 (rank 2, rank 3): more than 20 % under the median of the "
                                "others; rank 3 comes late\n"));
  CHECK(verdict(report).empty());
  report.groups[1].wrong = 2;
  report.groups[1].witnesses = {2, 3};
  CHECK(verdict(report) == "wrong sums in node 1 (rank 2, rank 3)");
  report.groups[3].wrong = 2;
  report.groups[3].witnesses = {1, 3};
  CHECK(verdict(report) == "rank 3: wrong sums in node 1 and rail 1");
  report.pairs = {{0, 1, true, 1, 10}, {0, 3, false, 1, 10, 4}, {1, 3, false, 1, 10, 4}};
  CHECK(verdict(report) == "rank 3: wrong bytes or no connection in 2 of 3 pairs");
  CHECK_THAT(report_json(report),
             Catch::Matchers::ContainsSubstring(
                 "\"groups\":[{\"kind\":\"node\",\"number\":0,\"ranks\":[0,1],\"busbw_gbps\":10.0,"
                 "\"wrong\":0,\"wrong_ranks\":[],\"late_rank\":null,\"outlier\":false}"));
}

TEST_CASE("the rank with most pairs under --min-busbw is named") {
  BenchReport report;
  report.operation = BenchOperation::kPairs;
  report.world = 4;
  report.min_busbw = 4;
  for (int a = 0; a < 4; ++a)
    for (int b = a + 1; b < 4; ++b)
      report.pairs.push_back({a, b, true, 1, b == 3 ? 2.0 : 10.0});
  CHECK(verdict(report) == "rank 3: under --min-busbw 4 in 3 of 3 pairs");
  report.pairs.front().bandwidth = 1;
  CHECK(verdict(report) ==
        "rank 3: under --min-busbw 4 in 3 of 3 pairs, rank 0 - rank 1: 1.00 GB/s is under --min-busbw 4");
}

TEST_CASE("a rank is late if its own time is less than half of all others'") {
  double late_us = 0;
  CHECK(late_rank({100, 30, 101}, late_us) == 1);
  CHECK(late_us == 70);
  CHECK(late_rank({100, 30, 40}, late_us) == -1);
  CHECK(late_rank({100, 60, 101}, late_us) == -1);
  CHECK(late_rank({100}, late_us) == -1);
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
  report.rows = {{1000, 250, 1.0, 1.0, 2.0, 0}, {2000, 500, 1.0, 0.9, 1.5, 0, 3, 1.2}};  // 1 and 2 GB/s
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
  CHECK(table_foot(report) ==
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 2.25\n"
        "# slowest at 2000 bytes: rank 3, 1.20 us, 20 % over the mean\n");
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
  wrong.rows[0].witnesses = {3};
  CHECK(verdict(wrong) ==
        "7 wrong elements at 1000 bytes, only on rank 3: its memory or its links are faulty");
  wrong.rows[0].witnesses = {0, 1, 2, 3};
  CHECK(verdict(wrong) ==
        "7 wrong elements at 1000 bytes, on 4 of 4 ranks, which only see it; find the faulty rank with train "
        "bench pairs and train health");
  wrong.rows[0].culprits = {1};
  CHECK(verdict(wrong) ==
        "7 wrong elements at 1000 bytes, on 4 of 4 ranks; most wrong exchanges of two ranks are with rank 1: "
        "its memory or its links are faulty");
  BenchReport pairs = pairs_of(2);
  pairs.min_busbw = 4;
  CHECK(verdict(pairs) == "rank 1 - rank 2: 2.00 GB/s is under --min-busbw 4");
}

TEST_CASE("pairs are compared with other pairs of their kind") {
  CHECK(outliers(pairs_of(5.0).pairs).empty());
  CHECK_THAT(pairs_text(pairs_of(5.0)), Catch::Matchers::ContainsSubstring(
                                            "# no pair is more than 20 % under the median of the others\n"));
  BenchReport report = pairs_of(5.0);
  report.world = 4;
  report.pairs.push_back({1, 3, false, 30, 3.9});
  REQUIRE(outliers(report.pairs).size() == 1);
  const std::string text = pairs_text(report);
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring(
                       "# slow: rank 1 - rank 3: 3.90 GB/s, 22 % under the median of the others\n"));
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring("      1   20.00       -    5.00    3.90\n"));
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring(
                       "# median between nodes: 5.00 GB/s\n# median in a node: 20.00 GB/s\n"));
}

TEST_CASE("the JSON report has rows, pairs and verdict") {
  const std::string rows = report_json(report_of(3.5));
  CHECK_THAT(rows, Catch::Matchers::StartsWith(
                       "{\"schema\":\"ddp-train-record/1\",\"kind\":\"bench\",\"time\":\"20"));
  CHECK_THAT(rows, Catch::Matchers::ContainsSubstring("\"rank\":0,\"world_size\":4,\"version\":"));
  CHECK_THAT(rows, Catch::Matchers::ContainsSubstring(
                       "{\"bytes\":2000,\"count\":500,\"type\":\"float32\",\"mean_us\":1.0,\"p50_us\":0.9,"
                       "\"p99_us\":1.5,\"slowest_rank\":3,\"algbw_gbps\":2.0,\"busbw_gbps\":3.0,\"wrong\":0,"
                       "\"wrong_ranks\":[],"
                       "\"culprits\":[],\"late_rank\":null}]"));
  CHECK_THAT(rows, Catch::Matchers::ContainsSubstring("\"passed\":false"));
  CHECK(rows.find('\n') == rows.size() - 1);
  const std::string pairs = report_json(pairs_of(5.0));
  CHECK_THAT(pairs, Catch::Matchers::ContainsSubstring("\"kind\":\"pairs\""));
  CHECK_THAT(pairs,
             Catch::Matchers::ContainsSubstring(
                 "{\"ranks\":[0,1],\"same_node\":true,\"same_rail\":false,\"at_once\":1,\"failed\":false,"
                 "\"wrong\":0,\"bytes\":4096,\"latency_us\":1.5,"
                 "\"bandwidth_gbps\":20.0,\"outlier\":false}"));
  CHECK_THAT(pairs, !Catch::Matchers::ContainsSubstring("\"rows\""));
  BenchReport bad = pairs_of(5.0);
  bad.pairs[1].wrong = 3;
  CHECK(verdict(bad) == "rank 0 - rank 2: 3 wrong bytes");
  bad.pairs[2].failed = true;
  CHECK(verdict(bad) == "rank 2: wrong bytes or no connection in 2 of 2 pairs");
}

TEST_CASE("a record is one line of JSON with measured values of a few digits") {
  auto record = begin_record("step", 0, 1);
  CHECK(
      record_line(record).starts_with("{\"schema\":\"ddp-train-record/1\",\"kind\":\"step\",\"time\":\"20"));
  record = {{"host", "a \"b\" \\ c\n\xc3"}, {"loss", std::nan("")}, {"seconds", rounded(2.0 / 3, 3)}};
  CHECK(record_line(record) ==
        "{\"host\":\"a \\\"b\\\" \\\\ c\\n\xef\xbf\xbd\",\"loss\":null,\"seconds\":0.667}\n");
}
