#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

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
  std::uint64_t wrong = 0;  ///< bytes, of both ranks; 0 also where nothing was compared
  bool failed = false;      ///< the ranks could not connect, or lost the connection
  bool same_rail = false;   ///< GPUs of different nodes with the same local rank
  int at_once = 1;          ///< pairs of the round at its nodes, which may share links
};

/// An all-reduce of a part of the ranks, while the other parts of its kind did the same.
struct GroupResult {
  bool is_rail = false;  ///< the ranks of all nodes with one local rank; else the ranks of one node
  int number = 0;        ///< of the node, or the local rank
  std::vector<int> ranks;
  double bandwidth = 0;             ///< GB/s, with bus_factor()
  std::uint64_t wrong = 0;          ///< elements, of all its ranks
  std::vector<int> witnesses = {};  ///< its ranks with wrong elements
  int late = -1;                    ///< late_rank(); -1: none
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
  std::vector<GroupResult> groups;  ///< of GPUs, with the pairs
  std::size_t pair_bytes = 0;
  bool compared = true;  ///< -c 0: no result was compared with what it must be
  double min_busbw = 0;  ///< 0: no limit
  std::string tested;    ///< tested_line()
};

/// Returns the upper median; 0 if there are no values.
double median_of(std::vector<double> values);
/// Returns the upper median of the values without one that is `own`; 0 if there are no others. So a slow rank
/// among three is not the median that it is compared with.
double median_of_others(const std::vector<double>& sorted, double own);

using PairRound = std::vector<std::pair<int, int>>;
/// Returns rounds of disjoint pairs; after all rounds every two ranks have met once. `node_of`: by rank.
/// First the pairs in nodes meet, then all ranks of two nodes at a time, those of one rail in one round. So
/// equal links are loaded alike.
std::vector<PairRound> pair_rounds(const std::vector<int>& node_of);

/// Returns the ranks that the bad ones of `all` pairs have in common, sorted: of the pairs of a rank in its
/// node, or of those with other nodes, more than half are bad, and most of its peers in these have a smaller
/// share of bad ones; or else the one that is in all bad pairs, if more than half of its pairs are bad.
/// Empty: a fault is at both ends of a pair alike, or everywhere. A rank that is bad with itself, {2, 2}, is
/// one of them. Pairs may be there in both orders.
std::vector<int> blame_by_majority(const std::vector<PairResult>& all, const std::vector<PairResult>& bad);

/// Returns the groups of at least two ranks: those of each node, and the rails if there are several nodes.
/// `node_of` and `local_of`: by rank.
std::vector<GroupResult> groups_of(const std::vector<int>& node_of, const std::vector<int>& local_of);

/// The ranks that explain bad groups, and the groups that none explains.
struct GroupBlame {
  std::vector<int> ranks = {};
  std::vector<GroupResult> rest = {};
};
/// Returns the ranks that are in a bad node and on a bad rail, if only one node or one rail is bad; and the
/// few ranks of a group that see its sum wrong. A group with one of the ranks `known` needs no other.
GroupBlame blame_groups(const std::vector<GroupResult>& bad, const std::vector<int>& known);
/// Returns "node 1", "rail 0".
std::string group_name(const GroupResult& group);
/// Returns the groups more than 20 % below the median of the others of their kind and size.
std::vector<GroupResult> slow_groups(const std::vector<GroupResult>& groups);
std::vector<GroupResult> wrong_groups(const std::vector<GroupResult>& groups);
/// Returns "node 1 and rail 1": the groups among `bad` that a rank is in.
std::string groups_with(const std::vector<GroupResult>& bad, int rank);
/// Returns "rank 0, rank 1 and 6 more".
std::string ranks_text(const std::vector<int>& ranks);

/// Returns the rank that the others wait for, since its own time of an operation is less than half of any
/// other's; -1: none. `late_us`: less than the median.
int late_rank(const std::vector<double>& times, double& late_us);

/// Lines in the format of nccl-tests, with percentiles as last columns.
std::string table_head(const BenchReport& report);
std::string table_line(const BenchReport& report, const BenchRow& row);
std::string table_foot(const BenchReport& report);
/// Returns the matrix of bandwidths, the latencies, the groups, and what is slow. An outlier is more than
/// 20 % below the median of the others of its kind (pairs in a node, between nodes; of GPUs, on one rail). A
/// rank with most of the outliers stands for them.
std::string pairs_text(const BenchReport& report);
std::vector<PairResult> outliers(const std::vector<PairResult>& pairs);

/// Parts of a record. `bytes`: of the pairs' messages.
nlohmann::ordered_json pairs_json(const std::vector<PairResult>& all, std::size_t bytes, bool compared);
nlohmann::ordered_json groups_json(const std::vector<GroupResult>& groups, bool compared);
/// Returns why the run fails; empty: it passed.
std::string verdict(const BenchReport& report);
/// Returns a record on one line; docs/users/train.md has the schema.
std::string report_json(const BenchReport& report);

}  // namespace ddp::train
