#include "apps/train/bench/bench_report.h"

#include <algorithm>
#include <cinttypes>
#include <nlohmann/json.hpp>

#include "apps/train/training/run_output.h"
#include "base/program.h"
#include "base/text.h"

namespace ddp::train {

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kOutlier = 0.8;  ///< part of the median

double median_bandwidth(const std::vector<PairResult>& pairs, bool same_node) {
  std::vector<double> values;
  for (const PairResult& pair : pairs) {
    if (pair.same_node == same_node) values.push_back(pair.bandwidth);
  }
  return median_of(std::move(values));
}

const char* redop_of(BenchOperation operation) {
  return operation == BenchOperation::kAllReduce || operation == BenchOperation::kReduceScatter ? "sum"
                                                                                                : "none";
}

double busbw_of(const BenchReport& report, const BenchRow& row) {
  return row.algbw(bus_factor(report.operation, report.world));
}

const PairResult* find_pair(const std::vector<PairResult>& pairs, int a, int b) {
  for (const PairResult& pair : pairs) {
    if (pair.first == std::min(a, b) && pair.second == std::max(a, b)) return &pair;
  }
  return nullptr;
}

template <class Value>
std::string matrix(const BenchReport& report, Value value) {
  std::string text = "#  rank";
  for (int column = 0; column < report.world; ++column)
    text += format_text(" %7d", column);
  text += "\n";
  for (int row = 0; row < report.world; ++row) {
    text += format_text("%7d", row);
    for (int column = 0; column < report.world; ++column) {
      const PairResult* pair = find_pair(report.pairs, row, column);
      text += pair ? format_text(" %7.2f", value(*pair)) : std::string(7, ' ') + "-";
    }
    text += "\n";
  }
  return text;
}

OrderedJson rows_json(const BenchReport& report) {
  OrderedJson rows = OrderedJson::array();
  for (const BenchRow& row : report.rows) {
    rows.push_back({{"bytes", row.bytes},
                    {"count", row.count},
                    {"type", "float32"},
                    {"mean_us", rounded(row.mean_us, 3)},
                    {"p50_us", rounded(row.p50_us, 3)},
                    {"p99_us", rounded(row.p99_us, 3)},
                    {"algbw_gbps", rounded(row.algbw(), 4)},
                    {"busbw_gbps", rounded(busbw_of(report, row), 4)},
                    {"wrong", row.wrong < 0 ? OrderedJson() : OrderedJson(row.wrong)}});
  }
  return rows;
}

OrderedJson pairs_json(const BenchReport& report) {
  OrderedJson pairs = OrderedJson::array();
  const auto slow = outliers(report.pairs);
  for (const PairResult& pair : report.pairs) {
    const bool outlier = std::any_of(slow.begin(), slow.end(), [&pair](const PairResult& other) {
      return other.first == pair.first && other.second == pair.second;
    });
    pairs.push_back({{"ranks", {pair.first, pair.second}},
                     {"same_node", pair.same_node},
                     {"bytes", report.pair_bytes},
                     {"latency_us", rounded(pair.latency_us, 3)},
                     {"bandwidth_gbps", rounded(pair.bandwidth, 4)},
                     {"outlier", outlier}});
  }
  return pairs;
}

}  // namespace

const std::vector<std::pair<std::string, BenchOperation>>& bench_operations() {
  using enum BenchOperation;
  static const std::vector<std::pair<std::string, BenchOperation>> operations{
      {"allreduce", kAllReduce},
      {"allgather", kAllGather},
      {"reducescatter", kReduceScatter},
      {"broadcast", kBroadcast},
      {"pairs", kPairs}};
  return operations;
}

const char* operation_name(BenchOperation operation) {
  for (const auto& [name, kind] : bench_operations())
    if (kind == operation) return name.c_str();
  return "?";
}

double bus_factor(BenchOperation operation, int world) {
  const double others = static_cast<double>(world - 1) / world;
  switch (operation) {
    case BenchOperation::kAllReduce:
      return 2 * others;
    case BenchOperation::kAllGather:
    case BenchOperation::kReduceScatter:
      return others;
    case BenchOperation::kBroadcast:
    case BenchOperation::kPairs:
      return 1;
  }
  return 1;
}

std::vector<std::vector<std::pair<int, int>>> pair_rounds(int world) {
  std::vector<std::vector<std::pair<int, int>>> rounds;
  // Round-robin tournament, circle method: one rank is fixed and the others rotate. For an odd number of
  // ranks the fixed place is empty.
  const int entrants = world + world % 2;
  for (int round = 0; round + 1 < entrants; ++round) {
    std::vector<std::pair<int, int>> pairs;
    const auto walker = [&](int number) { return (round + number) % (entrants - 1); };
    const int still = entrants - 1;
    if (still < world) pairs.emplace_back(walker(0), still);
    for (int i = 1; i < entrants / 2; ++i) {
      const int a = walker(i);
      const int b = walker(entrants - 1 - i);
      pairs.emplace_back(std::min(a, b), std::max(a, b));
    }
    rounds.push_back(std::move(pairs));
  }
  return rounds;
}

std::string table_head(const BenchReport& report) {
  std::string text =
      format_text("# train %s bench %s, %d rank%s", std::string(version()).c_str(),
                  operation_name(report.operation), report.world, report.world == 1 ? "" : "s");
  if (report.nodes > 0) text += " on " + counted(report.nodes, "node");
  text +=
      ", " + report.backend + (report.buffers.empty() ? "" : ", buffers " + report.buffers) + ", in place\n";
  text +=
      "#\n#        size         count     type   redop    root     time   algbw   busbw  #wrong      p50     "
      " p99\n";
  text +=
      "#         (B)    (elements)                             (us)  (GB/s)  (GB/s)             (us)     "
      "(us)\n";
  return text;
}

std::string table_line(const BenchReport& report, const BenchRow& row) {
  const std::string wrong = row.wrong < 0 ? "N/A" : std::to_string(row.wrong);
  return format_text("%13zu %13zu %8s %7s %7d %8.2f %7.2f %7.2f %7s %8.2f %8.2f\n", row.bytes, row.count,
                     "float", redop_of(report.operation),
                     report.operation == BenchOperation::kBroadcast ? 0 : -1, row.mean_us, row.algbw(),
                     busbw_of(report, row), wrong.c_str(), row.p50_us, row.p99_us);
}

std::string table_foot(const BenchReport& report) {
  double sum = 0;
  std::int64_t wrong = 0;
  for (const BenchRow& row : report.rows) {
    sum += busbw_of(report, row);
    wrong += std::max<std::int64_t>(row.wrong, 0);
  }
  const double mean = report.rows.empty() ? 0 : sum / static_cast<double>(report.rows.size());
  return format_text("# Out of bounds values : %" PRId64 " %s\n# Avg bus bandwidth    : %g\n", wrong,
                     wrong == 0 ? "OK" : "FAILED", mean);
}

std::vector<PairResult> outliers(const std::vector<PairResult>& pairs) {
  std::vector<PairResult> result;
  for (const PairResult& pair : pairs) {
    if (pair.bandwidth < kOutlier * median_bandwidth(pairs, pair.same_node)) result.push_back(pair);
  }
  return result;
}

std::string pairs_text(const BenchReport& report) {
  std::string text =
      format_text("# bandwidth of each pair, GB/s and direction, %zu bytes\n", report.pair_bytes);
  text += matrix(report, [](const PairResult& pair) { return pair.bandwidth; });
  text += "# latency of each pair, us, 8 bytes in both directions at once\n";
  text += matrix(report, [](const PairResult& pair) { return pair.latency_us; });
  for (const bool same_node : {true, false}) {
    const double median = median_bandwidth(report.pairs, same_node);
    if (median > 0)
      text += format_text("# median %s: %.2f GB/s\n", same_node ? "in a node" : "over tcp", median);
  }
  const auto slow = outliers(report.pairs);
  for (const PairResult& pair : slow) {
    const double median = median_bandwidth(report.pairs, pair.same_node);
    text += format_text("# slow: rank %d - rank %d: %.2f GB/s, %.0f %% under the median\n", pair.first,
                        pair.second, pair.bandwidth, 100 * (1 - pair.bandwidth / median));
  }
  if (slow.empty()) text += "# no pair is more than 20 % under the median\n";
  return text;
}

std::string verdict(const BenchReport& report) {
  for (const BenchRow& row : report.rows) {
    if (row.wrong > 0)
      return counted(row.wrong, "wrong element") + " at " + std::to_string(row.bytes) +
             " bytes: memory or network of a node is faulty";
  }
  if (report.min_busbw <= 0) return "";
  if (!report.pairs.empty()) {
    for (const PairResult& pair : report.pairs) {
      if (pair.bandwidth < report.min_busbw)
        return format_text("rank %d - rank %d: %.2f GB/s is under --min-busbw %g", pair.first, pair.second,
                           pair.bandwidth, report.min_busbw);
    }
    return "";
  }
  const auto largest =
      std::max_element(report.rows.begin(), report.rows.end(),
                       [](const BenchRow& a, const BenchRow& b) { return a.bytes < b.bytes; });
  if (largest == report.rows.end() || busbw_of(report, *largest) >= report.min_busbw) return "";
  return format_text("bus bandwidth %.2f GB/s at %zu bytes is under --min-busbw %g",
                     busbw_of(report, *largest), largest->bytes, report.min_busbw);
}

std::string report_json(const BenchReport& report) {
  const bool pairs = !report.pairs.empty();
  const std::string fault = verdict(report);
  OrderedJson record = begin_record(pairs ? "pairs" : "bench", 0, report.world);
  record.update({{"version", version()},
                 {"operation", operation_name(report.operation)},
                 {"nodes", report.nodes},
                 {"backend", report.backend},
                 {"buffers", report.buffers.empty() ? OrderedJson() : OrderedJson(report.buffers)},
                 {pairs ? "pairs" : "rows", pairs ? pairs_json(report) : rows_json(report)},
                 {"min_busbw_gbps", report.min_busbw},
                 {"passed", fault.empty()},
                 {"fault", fault}});
  return record_line(record);
}

}  // namespace ddp::train
