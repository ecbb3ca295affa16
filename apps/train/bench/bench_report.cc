#include "apps/train/bench/bench_report.h"

#include <algorithm>
#include <cinttypes>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/train/training/run_output.h"
#include "base/program.h"
#include "base/text.h"

namespace ddp::train {

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double median_of_others(const std::vector<double>& sorted, double own) {
  if (sorted.size() < 2) return 0;
  const std::size_t middle = (sorted.size() - 1) / 2;
  const auto at = static_cast<std::size_t>(std::ranges::lower_bound(sorted, own) - sorted.begin());
  return sorted[middle < at ? middle : middle + 1];
}

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kOutlier = 0.8;        ///< part of the median
constexpr std::size_t kMostLines = 16;  ///< of the things that a message names

/// A kind of pairs that are alike.
const char* kind_of(const PairResult& pair) {
  return pair.same_node ? "in a node" : pair.same_rail ? "between nodes, same local rank" : "between nodes";
}

/// The bandwidths of each kind, sorted, of pairs that have one.
using Bandwidths = std::map<std::string, std::vector<double>>;
Bandwidths bandwidths_of(const std::vector<PairResult>& pairs) {
  Bandwidths values;
  for (const PairResult& pair : pairs)
    if (!pair.failed) values[kind_of(pair)].push_back(pair.bandwidth);
  for (auto& [kind, each] : values)
    std::ranges::sort(each);
  return values;
}

/// Returns "rank 0 - rank 2: " + text for each pair, but "rank 2: … in 3 of 3 pairs" for one with most of
/// them.
std::vector<std::string> blamed_lines(const BenchReport& report, const std::vector<PairResult>& bad,
                                      const std::string& what,
                                      const std::function<std::string(const PairResult&)>& text) {
  std::vector<std::string> lines;
  const auto culprits = blame_by_majority(report.pairs, bad);
  const auto is_of = [](const PairResult& pair, int rank) {
    return pair.first == rank || pair.second == rank;
  };
  for (const int rank : culprits) {
    const auto count = std::ranges::count_if(bad, [&](const PairResult& pair) { return is_of(pair, rank); });
    lines.push_back(
        format_text("rank %d: %s in %td of %d pairs", rank, what.c_str(), count, report.world - 1));
  }
  for (const PairResult& pair : bad)
    if (std::ranges::none_of(culprits, [&](int rank) { return is_of(pair, rank); }))
      lines.push_back(format_text("rank %d - rank %d: ", pair.first, pair.second) + text(pair));
  return lines;
}

const char* redop_of(BenchOperation operation) {
  return operation == BenchOperation::kAllReduce || operation == BenchOperation::kReduceScatter ? "sum"
                                                                                                : "none";
}

double busbw_of(const BenchReport& report, const BenchRow& row) {
  return row.algbw(bus_factor(report.operation, report.world));
}

template <class Value>
std::string matrix(const BenchReport& report, Value value) {
  std::vector<std::string> cells(
      static_cast<std::size_t>(report.world) * static_cast<std::size_t>(report.world),
      std::string(7, ' ') + "-");
  const auto cell = [&](int row, int column) -> std::string& {
    return cells[static_cast<std::size_t>(row) * static_cast<std::size_t>(report.world) +
                 static_cast<std::size_t>(column)];
  };
  for (const PairResult& pair : report.pairs)
    cell(pair.first, pair.second) = cell(pair.second, pair.first) =
        pair.failed ? "  failed" : format_text(" %7.2f", value(pair));
  std::string text = "#  rank";
  for (int column = 0; column < report.world; ++column)
    text += format_text(" %7d", column);
  text += "\n";
  for (int row = 0; row < report.world; ++row) {
    text += format_text("%7d", row);
    for (int column = 0; column < report.world; ++column)
      text += cell(row, column);
    text += "\n";
  }
  return text;
}

OrderedJson rows_json(const BenchReport& report) {
  OrderedJson rows = OrderedJson::array();
  for (const BenchRow& row : report.rows) {
    rows.push_back({{"bytes", row.bytes},
                    {"count", row.count},
                    {"type", report.type == "float"  ? "float32"
                             : report.type == "half" ? "float16"
                                                     : report.type},
                    {"mean_us", rounded(row.mean_us, 3)},
                    {"p50_us", rounded(row.p50_us, 3)},
                    {"p99_us", rounded(row.p99_us, 3)},
                    {"slowest_rank", row.slowest},
                    {"algbw_gbps", rounded(row.algbw(), 4)},
                    {"busbw_gbps", rounded(busbw_of(report, row), 4)},
                    {"wrong", row.wrong < 0 ? OrderedJson() : OrderedJson(row.wrong)},
                    {"wrong_ranks", row.witnesses},
                    {"culprits", row.culprits},
                    {"late_rank", row.late < 0 ? OrderedJson() : OrderedJson(row.late)}});
  }
  return rows;
}

}  // namespace

nlohmann::ordered_json pairs_json(const std::vector<PairResult>& all, std::size_t bytes, bool compared) {
  OrderedJson pairs = OrderedJson::array();
  const auto slow = outliers(all);
  for (const PairResult& pair : all) {
    const bool outlier = std::ranges::any_of(slow, [&pair](const PairResult& other) {
      return other.first == pair.first && other.second == pair.second;
    });
    pairs.push_back({{"ranks", {pair.first, pair.second}},
                     {"same_node", pair.same_node},
                     {"same_rail", pair.same_rail},
                     {"at_once", pair.at_once},
                     {"failed", pair.failed},
                     {"wrong", compared ? OrderedJson(pair.wrong) : OrderedJson()},
                     {"bytes", bytes},
                     {"latency_us", rounded(pair.latency_us, 3)},
                     {"bandwidth_gbps", rounded(pair.bandwidth, 4)},
                     {"outlier", outlier}});
  }
  return pairs;
}

nlohmann::ordered_json groups_json(const std::vector<GroupResult>& groups, bool compared) {
  OrderedJson list = OrderedJson::array();
  const auto slow = slow_groups(groups);
  for (const GroupResult& group : groups) {
    const bool outlier = std::ranges::any_of(slow, [&group](const GroupResult& other) {
      return other.is_rail == group.is_rail && other.number == group.number;
    });
    list.push_back({{"kind", group.is_rail ? "rail" : "node"},
                    {"number", group.number},
                    {"ranks", group.ranks},
                    {"busbw_gbps", rounded(group.bandwidth, 4)},
                    {"wrong", compared ? OrderedJson(group.wrong) : OrderedJson()},
                    {"wrong_ranks", group.witnesses},
                    {"late_rank", group.late < 0 ? OrderedJson() : OrderedJson(group.late)},
                    {"outlier", outlier}});
  }
  return list;
}

const std::vector<std::pair<std::string, BenchOperation>>& bench_operations() {
  using enum BenchOperation;
  static const std::vector<std::pair<std::string, BenchOperation>> operations{
      {"allreduce", kAllReduce}, {"allgather", kAllGather}, {"reducescatter", kReduceScatter},
      {"broadcast", kBroadcast}, {"alltoall", kAllToAll},   {"sendrecv", kSendReceive},
      {"pairs", kPairs}};
  return operations;
}

const char* operation_name(BenchOperation operation) {
  for (const auto& [name, kind] : bench_operations())
    if (kind == operation) return name.c_str();
  return "?";
}

bool is_out_of_place(BenchOperation operation) {
  using enum BenchOperation;
  return operation == kAllToAll || operation == kSendReceive || operation == kPairs;
}

std::size_t parts_of(BenchOperation operation, int world) {
  using enum BenchOperation;
  const bool in_parts = operation == kAllGather || operation == kReduceScatter || operation == kAllToAll;
  return in_parts ? static_cast<std::size_t>(world) : 1;
}

double bus_factor(BenchOperation operation, int world) {
  const double others = static_cast<double>(world - 1) / world;
  switch (operation) {
    case BenchOperation::kAllReduce: return 2 * others;
    case BenchOperation::kAllGather:
    case BenchOperation::kReduceScatter:
    case BenchOperation::kAllToAll: return others;
    case BenchOperation::kBroadcast:
    case BenchOperation::kSendReceive:
    case BenchOperation::kPairs: return 1;
  }
  return 1;
}

namespace {

/// Round-robin tournament, circle method: one entrant is fixed and the others rotate. For an odd number the
/// fixed place is empty.
std::vector<PairRound> tournament(int entrants) {
  std::vector<PairRound> rounds;
  const int places = entrants + entrants % 2, still = places - 1;
  for (int round = 0; round < still; ++round) {
    PairRound& pairs = rounds.emplace_back();
    if (still < entrants) pairs.emplace_back(round, still);
    for (int i = 1; i < places / 2; ++i)
      pairs.push_back(std::minmax((round + i) % still, (round + still - i) % still));
  }
  return rounds;
}

}  // namespace

std::vector<PairRound> pair_rounds(const std::vector<int>& node_of) {
  std::map<int, std::vector<int>> nodes;
  for (std::size_t rank = 0; rank < node_of.size(); ++rank)
    nodes[node_of[rank]].push_back(static_cast<int>(rank));
  std::vector<std::vector<int>> ranks;
  std::size_t most = 0;
  for (auto& [node, those] : nodes) {
    most = std::max(most, those.size());
    ranks.push_back(std::move(those));
  }
  std::vector<PairRound> rounds;
  const auto add = [](PairRound& round, const std::vector<int>& a, std::size_t i, const std::vector<int>& b,
                      std::size_t j) {
    if (i < a.size() && j < b.size()) round.push_back(std::minmax(a[i], b[j]));
  };
  for (const PairRound& places : tournament(static_cast<int>(most))) {
    PairRound& round = rounds.emplace_back();
    for (const auto& node : ranks)
      for (const auto& [i, j] : places)
        add(round, node, static_cast<std::size_t>(i), node, static_cast<std::size_t>(j));
  }
  for (const PairRound& meetings : tournament(static_cast<int>(ranks.size()))) {
    for (std::size_t shift = 0; shift < most; ++shift) {
      PairRound& round = rounds.emplace_back();
      for (const auto& [a, b] : meetings)
        for (std::size_t i = 0; i < most; ++i)
          add(round, ranks[static_cast<std::size_t>(a)], i, ranks[static_cast<std::size_t>(b)],
              (i + shift) % most);
    }
  }
  return rounds;
}

std::vector<int> blame_by_majority(const std::vector<PairResult>& all, const std::vector<PairResult>& bad) {
  std::set<int> blamed;
  for (const PairResult& pair : bad)
    if (pair.first == pair.second) blamed.insert(pair.first);
  if (!blamed.empty()) return {blamed.begin(), blamed.end()};
  using Peers = std::map<int, std::set<int>>;
  const auto add_peers = [](const PairResult& pair, Peers& peers) {
    peers[pair.first].insert(pair.second);
    peers[pair.second].insert(pair.first);
  };
  // By their kind: a fault of NVLink is in no pair between nodes.
  for (const bool same_node : {true, false}) {
    Peers possible, found;
    for (const PairResult& pair : all)
      if (pair.same_node == same_node && pair.first != pair.second) add_peers(pair, possible);
    for (const PairResult& pair : bad)
      if (pair.same_node == same_node) add_peers(pair, found);
    for (const auto& [rank, peers] : found) {
      // As shares, since nodes may have different numbers of ranks.
      const auto less = std::ranges::count_if(peers, [&](int peer) {
        return found[peer].size() * possible[rank].size() < peers.size() * possible[peer].size();
      });
      if (peers.size() > 1 && 2 * peers.size() > possible[rank].size() && 2 * less > std::ssize(peers))
        blamed.insert(rank);
    }
  }
  // Nodes of one rank, and other worlds in which both ends of all pairs of a kind look alike.
  Peers possible, found;
  for (const PairResult& pair : all)
    add_peers(pair, possible);
  for (const PairResult& pair : bad)
    add_peers(pair, found);
  for (const auto& [rank, peers] : found) {
    const bool is_common =
        std::ranges::all_of(bad, [&](const PairResult& p) { return p.first == rank || p.second == rank; });
    if (blamed.empty() && is_common && peers.size() > 1 && 2 * peers.size() > possible[rank].size())
      return {rank};
  }
  return {blamed.begin(), blamed.end()};
}

int late_rank(const std::vector<double>& times, double& late_us) {
  const auto first = std::ranges::min_element(times);
  const bool is_late =
      std::ranges::count_if(times, [&](double time) { return time > 2 * *first; }) + 1 == std::ssize(times);
  if (!is_late || times.size() < 2) return -1;
  late_us = median_of(times) - *first;
  return static_cast<int>(first - times.begin());
}

std::string table_head(const BenchReport& report) {
  std::string text =
      format_text("# train %s bench %s, %d rank%s", std::string(version()).c_str(),
                  operation_name(report.operation), report.world, report.world == 1 ? "" : "s");
  if (report.nodes > 0) text += " on " + counted(report.nodes, "node");
  text += ", " + report.backend + (report.buffers.empty() ? "" : ", buffers " + report.buffers) +
          (report.out_of_place || is_out_of_place(report.operation) ? ", out of place\n" : ", in place\n");
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
                     report.type.c_str(), redop_of(report.operation),
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
  std::string text = report.compared ? format_text("# Out of bounds values : %" PRId64 " %s\n", wrong,
                                                   wrong == 0 ? "OK" : "FAILED")
                                     : "# Out of bounds values : N/A, nothing was compared\n";
  text += format_text("# Avg bus bandwidth    : %g\n", mean);
  if (report.world > 1 && !report.rows.empty()) {
    const BenchRow& last = report.rows.back();
    text += format_text("# slowest at %zu bytes: rank %d, %.2f us, %.0f %% over the mean\n", last.bytes,
                        last.slowest, last.slowest_us, 100 * (last.slowest_us / last.mean_us - 1));
    if (last.late >= 0) {
      text += format_text("# late at %zu bytes: rank %d, the others wait %.2f us for it\n", last.bytes,
                          last.late, last.late_us);
    }
  }
  return text;
}

std::vector<PairResult> outliers(const std::vector<PairResult>& pairs) {
  const Bandwidths values = bandwidths_of(pairs);
  std::vector<PairResult> result;
  std::ranges::copy_if(pairs, std::back_inserter(result), [&](const PairResult& pair) {
    return !pair.failed &&
           pair.bandwidth < kOutlier * median_of_others(values.at(kind_of(pair)), pair.bandwidth);
  });
  return result;
}

std::vector<GroupResult> groups_of(const std::vector<int>& node_of, const std::vector<int>& local_of) {
  std::map<std::pair<bool, int>, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    ranks[{false, node_of[rank]}].push_back(static_cast<int>(rank));
    ranks[{true, local_of[rank]}].push_back(static_cast<int>(rank));
  }
  std::vector<GroupResult> groups;
  for (auto& [kind, those] : ranks)
    if (those.size() > 1) groups.push_back({kind.first, kind.second, std::move(those)});
  return groups;
}

GroupBlame blame_groups(const std::vector<GroupResult>& bad, const std::vector<int>& known) {
  GroupBlame blame;
  const auto has_one_of = [](const std::vector<int>& ranks) {
    return [&ranks](const GroupResult& group) {
      return std::ranges::any_of(ranks, [&](int rank) { return std::ranges::count(group.ranks, rank) != 0; });
    };
  };
  std::ranges::remove_copy_if(bad, std::back_inserter(blame.rest), has_one_of(known));
  const auto rails = std::ranges::count_if(blame.rest, &GroupResult::is_rail);
  const auto nodes = std::ssize(blame.rest) - rails;
  for (const GroupResult& group : blame.rest) {
    for (const int rank : group.ranks) {
      // What few ranks have wrong and the others right was right until the last step to those ranks.
      const bool alone =
          std::ranges::count(group.witnesses, rank) != 0 && 2 * group.witnesses.size() <= group.ranks.size();
      const bool in_both = (nodes == 1 || rails == 1) && !group.is_rail &&
                           std::ranges::any_of(blame.rest, [&](const GroupResult& other) {
                             return other.is_rail && std::ranges::count(other.ranks, rank) != 0;
                           });
      if ((alone || in_both) && std::ranges::count(blame.ranks, rank) == 0) blame.ranks.push_back(rank);
    }
  }
  std::ranges::sort(blame.ranks);
  std::erase_if(blame.rest, has_one_of(blame.ranks));
  return blame;
}

std::string group_name(const GroupResult& group) {
  return (group.is_rail ? "rail " : "node ") + std::to_string(group.number);
}

std::vector<GroupResult> slow_groups(const std::vector<GroupResult>& groups) {
  std::map<std::pair<bool, std::size_t>, std::vector<double>> values;
  for (const GroupResult& group : groups)
    values[{group.is_rail, group.ranks.size()}].push_back(group.bandwidth);
  for (auto& [kind, each] : values)
    std::ranges::sort(each);
  std::vector<GroupResult> slow;
  std::ranges::copy_if(groups, std::back_inserter(slow), [&](const GroupResult& group) {
    const auto& all = values[{group.is_rail, group.ranks.size()}];
    return group.bandwidth < kOutlier * median_of_others(all, group.bandwidth);
  });
  return slow;
}

std::vector<GroupResult> wrong_groups(const std::vector<GroupResult>& groups) {
  std::vector<GroupResult> wrong;
  std::ranges::copy_if(groups, std::back_inserter(wrong),
                       [](const GroupResult& group) { return group.wrong > 0; });
  return wrong;
}

std::string groups_with(const std::vector<GroupResult>& bad, int rank) {
  std::vector<std::string> names;
  for (const GroupResult& group : bad)
    if (std::ranges::count(group.ranks, rank) != 0) names.push_back(group_name(group));
  return join(names, " and ");
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (const int rank : ranks)
    words.push_back("rank " + std::to_string(rank));
  return join_some(words, kMostLines);
}

namespace {

/// Returns the groups' table, and a line for each slow rank or group that `known` ranks do not explain.
std::string groups_text(const BenchReport& report, const std::vector<int>& known) {
  if (report.groups.empty()) return "";
  std::string text = format_text(
      "# busbw of an all-reduce of %zu bytes in each node, and of the same local rank of all nodes (rail); "
      "groups of a kind at once\n",
      report.pair_bytes);
  for (const GroupResult& group : report.groups)
    text += format_text("#  %s, %zu ranks: %.2f GB/s\n", group_name(group).c_str(), group.ranks.size(),
                        group.bandwidth);
  const auto slow = slow_groups(report.groups);
  const GroupBlame blame = blame_groups(slow, known);
  for (const int rank : blame.ranks)
    text += format_text("# slow: rank %d: %s are more than 20 %% under the median of the others\n", rank,
                        groups_with(slow, rank).c_str());
  for (const GroupResult& group : blame.rest) {
    text += "# slow: " + group_name(group) + " (" + ranks_text(group.ranks) +
            "): more than 20 % under the median of the others";
    text += group.late < 0 ? "\n" : format_text("; rank %d comes late\n", group.late);
  }
  return text;
}

}  // namespace

std::string pairs_text(const BenchReport& report) {
  std::string text =
      format_text("# bandwidth of each pair, GB/s and direction, %zu bytes\n", report.pair_bytes);
  text += matrix(report, [](const PairResult& pair) { return pair.bandwidth; });
  text += "# latency of each pair, us, 8 bytes in both directions at once\n";
  text += matrix(report, [](const PairResult& pair) { return pair.latency_us; });
  const Bandwidths values = bandwidths_of(report.pairs);
  for (const auto& [kind, each] : values) {
    int at_once = 1;
    for (const PairResult& pair : report.pairs)
      if (kind_of(pair) == kind) at_once = std::max(at_once, pair.at_once);
    text += format_text("# median %s: %.2f GB/s", kind.c_str(), median_of(each));
    if (at_once > 1) text += format_text("; up to %d pairs at a node at once may share links", at_once);
    text += "\n";
  }
  const auto slow = outliers(report.pairs);
  const auto lines = blamed_lines(
      report, slow, "more than 20 % under the median of the others", [&](const PairResult& pair) {
        const double median = median_of_others(values.at(kind_of(pair)), pair.bandwidth);
        return format_text("%.2f GB/s, %.0f %% under the median of the others", pair.bandwidth,
                           100 * (1 - pair.bandwidth / median));
      });
  for (const std::string& line : lines)
    text += "# slow: " + line + "\n";
  if (lines.empty()) text += "# no pair is more than 20 % under the median of the others\n";
  return text + groups_text(report, blame_by_majority(report.pairs, slow));
}

namespace {

/// Returns where the wrong elements of a row come from.
std::string cause_of(const BenchRow& row, int world) {
  const std::string faulty = ": its memory or its links are faulty";
  // What few ranks have wrong and the others right was right until the last step to those ranks.
  const bool most_see_it = 2 * row.witnesses.size() > static_cast<std::size_t>(world);
  const std::string seen = most_see_it ? format_text("on %zu of %d ranks", row.witnesses.size(), world)
                                       : "only on " + ranks_text(row.witnesses);
  if (!row.culprits.empty())
    return seen + "; most wrong exchanges of two ranks are with " + ranks_text(row.culprits) + faulty;
  if (!most_see_it) return seen + faulty;
  return seen + ", which only see it; find the faulty rank with train bench pairs and train health";
}

}  // namespace

std::string verdict(const BenchReport& report) {
  for (const BenchRow& row : report.rows) {
    if (row.wrong > 0)
      return counted(row.wrong, "wrong element") + " at " + std::to_string(row.bytes) + " bytes, " +
             cause_of(row, report.world);
  }
  std::vector<PairResult> bad;
  std::ranges::copy_if(report.pairs, std::back_inserter(bad),
                       [](const PairResult& pair) { return pair.failed || pair.wrong > 0; });
  auto lines = blamed_lines(report, bad, "wrong bytes or no connection", [](const PairResult& pair) {
    return pair.failed ? "could not exchange messages" : counted(pair.wrong, "wrong byte");
  });
  const auto wrong = wrong_groups(report.groups);
  const GroupBlame blame = blame_groups(wrong, blame_by_majority(report.pairs, bad));
  for (const int rank : blame.ranks)
    lines.push_back(format_text("rank %d: wrong sums in ", rank) + groups_with(wrong, rank));
  for (const GroupResult& group : blame.rest)
    lines.push_back("wrong sums in " + group_name(group) + " (" + ranks_text(group.ranks) + ")");
  if (!lines.empty()) return join_some(lines, kMostLines);
  if (report.min_busbw <= 0) return "";
  if (!report.pairs.empty()) {
    std::vector<PairResult> below;
    std::ranges::copy_if(report.pairs, std::back_inserter(below),
                         [&](const PairResult& pair) { return pair.bandwidth < report.min_busbw; });
    const std::string limit = format_text("under --min-busbw %g", report.min_busbw);
    return join_some(blamed_lines(report, below, limit,
                                  [&](const PairResult& pair) {
                                    return format_text("%.2f GB/s is ", pair.bandwidth) + limit;
                                  }),
                     kMostLines);
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
                 {pairs ? "pairs" : "rows",
                  pairs ? pairs_json(report.pairs, report.pair_bytes, report.compared) : rows_json(report)},
                 {"min_busbw_gbps", report.min_busbw},
                 {"tested", report.tested},
                 {"passed", fault.empty()},
                 {"fault", fault}});
  if (pairs) record["groups"] = groups_json(report.groups, report.compared);
  return record_line(record);
}

}  // namespace ddp::train
