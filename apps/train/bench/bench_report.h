#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ddp::train {

/// kSendReceive: each rank sends to the next one. kPairs: every two ranks exchange messages.
enum class BenchOperation : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kSendReceive,
  kPairs
};
const std::vector<std::pair<std::string, BenchOperation>>& bench_operations();
const char* operation_name(BenchOperation operation);
/// Returns whether the operation cannot be in place.
bool is_out_of_place(BenchOperation operation);
/// Returns into how many parts the ranks divide a message. nccl-tests' "count" is that of one part.
std::size_t parts_of(BenchOperation operation, int world);

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
  int slowest = 0;          ///< rank with the largest mean
  double slowest_us = 0;    ///< its mean
  int late = -1;            ///< late_rank() of the p50 on GPUs; -1: none, or not known
  double late_us = 0;
  std::vector<int> witnesses = {};  ///< ranks with wrong elements
  std::vector<int> culprits =
      {};  ///< ranks with a part in most wrong exchanges, of those after a wrong result

  double algbw(double factor = 1) const { return factor * static_cast<double>(bytes) / (mean_us * 1e3); }
};

/// Two ranks that exchanged messages while other pairs of the round did the same.
struct PairResult {
  int first = 0;
  int second = 0;
  bool same_node = false;
  double latency_us = 0;    ///< p50 of exchanging 8 bytes
  double bandwidth = 0;     ///< GB/s in each direction
  std::uint64_t wrong = 0;  ///< bytes, of both ranks
  bool failed = false;      ///< the ranks could not connect, or lost the connection
  bool same_rail = false;   ///< GPUs of different nodes with the same local rank
  int at_once = 1;          ///< pairs of the round at its nodes, which may share links
};

struct BenchReport {
  BenchOperation operation = BenchOperation::kAllReduce;
  int world = 1;
  int nodes = 0;               ///< 0: unknown
  std::string backend;         ///< as CommWorld::backend
  std::string type = "float";  ///< as nccl-tests names it
  std::string buffers;         ///< how NCCL reaches the GPU's memory; empty: host memory
  bool out_of_place = false;
  std::vector<BenchRow> rows;
  std::vector<PairResult> pairs;
  std::size_t pair_bytes = 0;
  double min_busbw = 0;  ///< 0: no limit
  std::string tested;    ///< tested_line()
};

/// Returns the upper median; 0 if there are no values.
double median_of(std::vector<double> values);

using PairRound = std::vector<std::pair<int, int>>;
/// Returns rounds of disjoint pairs; after all rounds every two ranks have met once. `node_of`: by rank.
/// First the pairs in nodes meet, then all ranks of two nodes at a time, those of one rail in one round. So
/// equal links are loaded alike.
std::vector<PairRound> pair_rounds(const std::vector<int>& node_of);

/// Returns the ranks that have a part in most of the bad pairs: each in the most of all, and in more than
/// half of those that it could be in. Empty: a fault is at both ends of a pair alike, or everywhere. A rank
/// that is bad with itself, {2, 2}, is one of them. Pairs may be there in both orders.
std::vector<int> blame_by_majority(int world, const std::vector<PairResult>& bad);
/// Returns the rank that the others wait for, since its own time of an operation is less than half of any
/// other's; -1: none. `late_us`: less than the median.
int late_rank(const std::vector<double>& times, double& late_us);

/// Lines in the format of nccl-tests, with percentiles as last columns.
std::string table_head(const BenchReport& report);
std::string table_line(const BenchReport& report, const BenchRow& row);
std::string table_foot(const BenchReport& report);
/// Returns the matrix of bandwidths, the latencies, and the outliers(). An outlier is more than 20 % below
/// the median of its kind (pairs in a node, between nodes; of GPUs, on one rail). A rank with most of the
/// outliers stands for them.
std::string pairs_text(const BenchReport& report);
std::vector<PairResult> outliers(const std::vector<PairResult>& pairs);

/// Returns why the run fails; empty: it passed.
std::string verdict(const BenchReport& report);
/// Returns a record on one line; docs/users/train.md has the schema.
std::string report_json(const BenchReport& report);

}  // namespace ddp::train
