#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ddp::train {

/// kPairs: every two ranks exchange messages.
enum class BenchOperation : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kPairs };
const char* operation_name(BenchOperation operation);

/// What a byte of the message costs the busiest link, as nccl-tests defines "bus bandwidth".
double bus_factor(BenchOperation operation, int world);

/// One message size, over all ranks.
struct BenchRow {
  std::size_t bytes = 0;
  std::size_t count = 0;  ///< elements of float32
  double mean_us = 0;     ///< mean of the ranks' means
  double p50_us = 0;      ///< of the slowest rank, each operation timed alone
  double p99_us = 0;
  std::int64_t wrong = -1;  ///< wrong elements over all ranks; -1: not checked

  double algbw(double factor = 1) const { return factor * static_cast<double>(bytes) / (mean_us * 1e3); }
};

/// Two ranks that exchanged messages while others did the same; gigabytes per second and direction.
struct PairResult {
  int first = 0;
  int second = 0;
  bool same_node = false;
  double latency_us = 0;  ///< p50 of exchanging 8 bytes
  double bandwidth = 0;
};

struct BenchReport {
  BenchOperation operation = BenchOperation::kAllReduce;
  int world = 1;
  int nodes = 0;        ///< 0: not known
  std::string backend;  ///< "shm", "tcp", "shm+tcp"
  std::vector<BenchRow> rows;
  std::vector<PairResult> pairs;
  std::size_t pair_bytes = 0;
  double min_busbw = 0;  ///< 0: no limit
};

/// Rounds in which every rank is in one pair at most and after which every two have met.
std::vector<std::vector<std::pair<int, int>>> pair_rounds(int world);

/// Lines as nccl-tests prints them, in place only, with percentiles behind.
std::string table_head(const BenchReport& report);
std::string table_line(const BenchReport& report, const BenchRow& row);
std::string table_foot(const BenchReport& report);
/// The matrix of bandwidths, the latencies, and those more than 20 % under the median of their kind (pairs in
/// a node, pairs between nodes) by name.
std::string pairs_text(const BenchReport& report);
std::vector<PairResult> outliers(const std::vector<PairResult>& pairs);

/// Empty when nothing is wrong; else what fails the run.
std::string verdict(const BenchReport& report);
/// A record on one line; docs/train.md has the schema.
std::string report_json(const BenchReport& report);

}  // namespace ddp::train
