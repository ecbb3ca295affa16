#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ddp::train {

/// kPairs: every two ranks exchange messages.
enum class BenchOperation : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kPairs };
const std::vector<std::pair<std::string, BenchOperation>>& bench_operations();
const char* operation_name(BenchOperation operation);

/// Bytes on the busiest link per byte of the message, as nccl-tests defines "bus bandwidth".
double bus_factor(BenchOperation operation, int world);

/// One message size, over all ranks.
struct BenchRow {
  std::size_t bytes = 0;
  std::size_t count = 0;  ///< elements of float32; for allgather and reducescatter those of one rank
  double mean_us = 0;     ///< mean of the ranks' means
  double p50_us = 0;      ///< slowest rank, each operation timed alone
  double p99_us = 0;
  std::int64_t wrong = -1;  ///< wrong elements over all ranks; -1: not checked

  double algbw(double factor = 1) const { return factor * static_cast<double>(bytes) / (mean_us * 1e3); }
};

/// Two ranks that exchanged messages while other pairs did the same.
struct PairResult {
  int first = 0;
  int second = 0;
  bool same_node = false;
  double latency_us = 0;  ///< p50 of exchanging 8 bytes
  double bandwidth = 0;   ///< GB/s in each direction
};

struct BenchReport {
  BenchOperation operation = BenchOperation::kAllReduce;
  int world = 1;
  int nodes = 0;        ///< 0: unknown
  std::string backend;  ///< as CommWorld::backend
  std::string buffers;  ///< how NCCL reaches the GPU's memory; empty: host memory
  std::vector<BenchRow> rows;
  std::vector<PairResult> pairs;
  std::size_t pair_bytes = 0;
  double min_busbw = 0;  ///< 0: no limit
};

/// Returns the upper median; 0 if there are no values.
double median_of(std::vector<double> values);

/// Returns rounds of disjoint pairs; after all rounds every two ranks have met once.
std::vector<std::vector<std::pair<int, int>>> pair_rounds(int world);

/// Lines in the format of nccl-tests, in place only, with percentiles as last columns.
std::string table_head(const BenchReport& report);
std::string table_line(const BenchReport& report, const BenchRow& row);
std::string table_foot(const BenchReport& report);
/// Returns the matrix of bandwidths, the latencies, and the names of outliers(). An outlier is more than 20 %
/// below the median of its kind (pairs in a node, pairs between nodes).
std::string pairs_text(const BenchReport& report);
std::vector<PairResult> outliers(const std::vector<PairResult>& pairs);

/// Returns why the run fails; empty: it passed.
std::string verdict(const BenchReport& report);
/// Returns a record on one line; docs/users/train.md has the schema.
std::string report_json(const BenchReport& report);

}  // namespace ddp::train
