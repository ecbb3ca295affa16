#include "apps/train/health/checks/health_diagnosis.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace ddp::train {

namespace {

constexpr double kSlow = 0.8;  ///< part of the median
constexpr std::size_t kNameFields = 8, kTroubleFields = 24, kLibraryFields = 24;

/// A text that is cut ends in "...".
void put_text(std::vector<std::uint64_t>& words, std::string text, std::size_t count) {
  const std::size_t begin = words.size(), most = count * sizeof(std::uint64_t) - 1;
  words.resize(begin + count);
  if (text.size() > most) text = text.substr(0, most - 3) + "...";
  std::memcpy(words.data() + begin, text.data(), text.size());
}

std::string take_text(const std::uint64_t*& words, std::size_t count) {
  const char* text = reinterpret_cast<const char*>(words);
  words += count;
  return {text, ::strnlen(text, count * 8)};
}

double per_thread(const HealthFigures& figures) {
  return figures.gflops / static_cast<double>(std::max<std::uint64_t>(figures.threads, 1));
}

/// Returns NVML's reasons for reduced clocks, without reasons that a user's setting causes.
std::string throttle_text(std::uint64_t reasons) {
  constexpr std::pair<std::uint64_t, const char*> kReasons[] = {
      {0x08, "hardware slowdown"}, {0x20, "heat"}, {0x40, "heat (hardware)"}, {0x80, "power brake"}};
  std::string text;
  for (const auto& [bit, word] : kReasons) {
    if ((reasons & bit) != 0) text += std::string(text.empty() ? "" : ", ") + word;
  }
  return text;
}

/// A speed by which ranks with the same kind of device are compared; 0: unknown.
struct Speed {
  const char* unit;
  double (*of)(const HealthFigures&);
};
constexpr Speed kSpeeds[] = {
    {"GFLOP/s", per_thread},
    {"TFLOP/s in bf16", [](const HealthFigures& f) { return f.bf16_gflops / 1e3; }},
    {"TFLOP/s in fp8", [](const HealthFigures& f) { return f.fp8_gflops / 1e3; }},
    {"training steps/s", [](const HealthFigures& f) { return f.step_p50 > 0 ? 1 / f.step_p50 : 0; }},
    {"GB/s to its memory", [](const HealthFigures& f) { return f.memory_gbps; }},
    {"GB/s to the GPU", [](const HealthFigures& f) { return f.to_gpu_gbps; }},
    {"GB/s from the GPU", [](const HealthFigures& f) { return f.from_gpu_gbps; }}};

/// A column of speed_table().
struct Column {
  const char* title;
  int decimals;  ///< of values below 100
  double (*of)(const HealthFigures&);
};
template <std::uint64_t HealthFigures::*Field>
double number(const HealthFigures& figures) {
  return static_cast<double>(figures.*Field);
}
constexpr Column kColumns[] = {
    {"GFLOP/s", 2, [](const HealthFigures& f) { return f.gflops; }},
    {"bf16 TF/s", 2, kSpeeds[1].of},
    {"fp8 TF/s", 2, kSpeeds[2].of},
    {"step ms", 2, [](const HealthFigures& f) { return 1e3 * f.step_p50; }},
    {"p99 ms", 2, [](const HealthFigures& f) { return 1e3 * f.step_p99; }},
    {"mem GB/s", 2, kSpeeds[4].of},
    {"to GPU", 2, kSpeeds[5].of},
    {"from GPU", 2, kSpeeds[6].of},
    {"W", 0, number<&HealthFigures::watts>},
    {"deg C", 0, number<&HealthFigures::temperature>},
    {"MHz", 0, number<&HealthFigures::clock>},
    {"throttled", 0,
     [](const HealthFigures& f) { return throttle_text(f.throttle_reasons).empty() ? 0.0 : 1.0; }},
    {"replays", 0, number<&HealthFigures::pcie_replays>},
    {"NVLink err", 0, number<&HealthFigures::nvlink_errors>},
    {"rows", 0, number<&HealthFigures::remapped_rows>},
    {"ECC corr", 0, number<&HealthFigures::ecc_corrected>},
    {"ECC unc", 0, number<&HealthFigures::ecc_uncorrected>},
    {"Xids", 0, number<&HealthFigures::xids>}};

/// Pauses that cost less are usual on a busy machine.
constexpr double kMostLost = 0.05;
constexpr std::size_t kMostPlaces = 8;  ///< that a message names

class HealthEvaluator {
 public:
  explicit HealthEvaluator(const HealthReport& report) : report_(report) {}

  std::vector<HealthDiagnostic> evaluate() {
    for (std::size_t i = 0; i < report_.ranks.size(); ++i)
      diagnose_rank(static_cast<int>(i), report_.ranks[i]);
    diagnose_speed();
    diagnose_pauses();
    diagnose_exchanges();
    std::stable_sort(diagnostics_.begin(), diagnostics_.end(),
                     [](const HealthDiagnostic& a, const HealthDiagnostic& b) {
                       return std::pair(!a.error, a.rank) < std::pair(!b.error, b.rank);
                     });
    return std::move(diagnostics_);
  }

 private:
  void add(bool error, int rank, const char* item, std::string text) {
    diagnostics_.push_back({error, rank, item, std::move(text)});
  }

  void diagnose_rank(int rank, const HealthFigures& f) {
    if (!f.trouble.empty()) add(true, rank, "device", f.trouble);
    if (!f.left_out.empty()) add(false, rank, "left out", "not tested: " + f.left_out);
    if (f.wrong_products > 0 || f.other_products > 0) {
      add(true, rank, "gemm",
          counted(f.products, "equal matrix product") + ": " + std::to_string(f.wrong_products) + " wrong, " +
              std::to_string(f.other_products) + " different from the first");
    }
    if (f.other_steps > 0) {
      add(true, rank, "gradient",
          std::to_string(f.other_steps) + " of " + counted(f.steps, "equal training step") +
              " gave other gradients than most of them, or none that are finite");
    }
    if (f.unclear_steps > 0) {
      add(true, rank, "gradient",
          std::to_string(f.unclear_steps) + " of " + counted(f.steps, "equal training step") +
              " gave different gradients, and there is no majority for one of them");
    }
    if (f.wrong_words > 0) {
      add(true, rank, "memory",
          counted(f.wrong_words, "wrong word") + format_text(" in %" PRIu64
                                                             " MiB of memory, the first at offset 0x%" PRIx64
                                                             ", wrong bits 0x%016" PRIx64,
                                                             f.memory >> 20, f.first_wrong, f.wrong_bits));
    }
    if (f.ecc_uncorrected > 0) add(true, rank, "ecc", counted(f.ecc_uncorrected, "uncorrectable ECC error"));
    if (f.xids > 0)
      add(true, rank, "xid",
          "the driver reported " + counted(f.xids, "Xid error") + ", the last is Xid " +
              std::to_string(f.last_xid));
    if (f.remap_waits > 0)
      add(true, rank, "rows", "a row of the GPU's memory waits for its replacement; reset the GPU");
    if (f.remapped_rows > 0)
      add(true, rank, "rows", counted(f.remapped_rows, "row") + " of the GPU's memory had to be replaced");
    if (f.pcie_replays > 0) add(false, rank, "link", counted(f.pcie_replays, "replay") + " on PCIe");
    if (f.nvlink_errors > 0)
      add(false, rank, "link", counted(f.nvlink_errors, "error") + " on NVLink (replays, recoveries, CRC)");
    if (f.ecc_corrected > 0) add(false, rank, "ecc", counted(f.ecc_corrected, "corrected ECC error"));
    if (f.throttled > 0)
      add(false, rank, "throttle",
          "the machine's cores were throttled by heat " + counted(f.throttled, "time"));
    if (const std::string why = throttle_text(f.throttle_reasons); !why.empty()) {
      add(false, rank, "throttle",
          format_text("clocks were throttled by %s, down to %" PRIu64 " of %" PRIu64 " MHz at %" PRIu64
                      " degrees",
                      why.c_str(), f.clock, f.most_clock, f.temperature));
    }
  }

  /// Compares each rank with ranks on the same kind of device. CPUs are compared by GFLOP/s per thread, since
  /// nodes may differ in their number of threads.
  void diagnose_speed() {
    const auto kind = [](const HealthFigures& f) {
      return f.gpu ? f.device.substr(std::min(f.device.find('('), f.device.size())) : std::string("CPU");
    };
    for (const Speed& speed : kSpeeds) {
      std::map<std::string, std::vector<double>> known;
      for (const HealthFigures& f : report_.ranks) {
        if (speed.of(f) > 0) known[kind(f)].push_back(speed.of(f));
      }
      for (auto& [name, values] : known)
        std::ranges::sort(values);
      for (std::size_t i = 0; i < report_.ranks.size(); ++i) {
        const HealthFigures& f = report_.ranks[i];
        const double own = speed.of(f), median = own > 0 ? median_of_others(known[kind(f)], own) : 0;
        if (own >= kSlow * median) continue;
        const bool of_threads = speed.of == per_thread && !f.gpu;
        add(false, static_cast<int>(i), "slow",
            format_text("%.1f %s%s, %.0f %% under the median of the others", own, speed.unit,
                        of_threads ? " for each thread" : "", 100 * (1 - own / median)));
      }
    }
  }

  void diagnose_pauses() {
    std::vector<double> parts;
    for (const HealthFigures& f : report_.ranks)
      parts.push_back(f.step_lost);
    std::ranges::sort(parts);
    for (std::size_t i = 0; parts.size() > 1 && i < report_.ranks.size(); ++i) {
      const HealthFigures& f = report_.ranks[i];
      const double median = median_of_others(parts, f.step_lost);
      if (f.step_lost < kMostLost || f.step_lost < 2 * median) continue;
      add(false, static_cast<int>(i), "pause",
          format_text(
              "lost %.1f %% of its time in pauses: 1 %% of its training steps take %.1f ms or more, half "
              "of them %.1f ms; the median of the others is %.1f %%",
              100 * f.step_lost, 1e3 * f.step_p99, 1e3 * f.step_p50, 100 * median));
    }
  }

  /// A rank that exchanges with a faulty one, or sees a wrong sum, is a witness.
  void diagnose_exchanges() {
    std::vector<PairResult> good, bad;
    for (const PairResult& pair : report_.pairs)
      (pair.failed || pair.wrong > 0 ? bad : good).push_back(pair);
    std::vector<int> culprits = blame_by_majority(report_.pairs, bad);
    if (!diagnose_pairs_everywhere(bad, culprits)) {
      for (const PairResult& pair : bad) {
        for (const auto& [rank, other] : ends_of(pair, culprits))
          add(true, rank, "pair",
              pair.failed
                  ? "could not exchange messages with " + rank_on_host(other)
                  : counted(pair.wrong, "wrong byte") + " in the exchange with " + rank_on_host(other));
      }
    }
    const std::vector<PairResult> slow = outliers(good);
    const std::vector<int> slow_ranks = blame_by_majority(report_.pairs, slow);
    for (const PairResult& pair : slow) {
      const auto [rank, other] = ends_of(pair, slow_ranks).front();
      add(false, rank, "pair",
          format_text("%.2f GB/s with ", pair.bandwidth) + rank_on_host(other) +
              ", more than 20 % under the median of the others");
    }
    diagnose_groups(slow_groups(report_.groups), slow_ranks, false, "slow", "all-reduces in ",
                    " are more than 20 % under the median of the others");
    const std::vector<GroupResult> wrong = wrong_groups(report_.groups);
    const auto more = diagnose_groups(wrong, culprits, true, "sum", "sums in ", " are wrong");
    culprits.insert(culprits.end(), more.begin(), more.end());
    diagnose_sums(culprits, !bad.empty() || !wrong.empty());
  }

  /// If most ranks have a part in bad pairs and none stands out, the job has one error. Returns whether this
  /// is so.
  bool diagnose_pairs_everywhere(const std::vector<PairResult>& bad, const std::vector<int>& culprits) {
    std::map<int, std::size_t> ends;  // with the number of their bad pairs
    std::set<std::string> places;
    for (const PairResult& pair : bad) {
      ++ends[pair.first];
      ++ends[pair.second];
      const std::string &first = host_of(pair.first), &second = host_of(pair.second);
      places.insert(first == second ? "in " + first : "between " + first + " and " + second);
    }
    const bool has_common_end =
        std::ranges::any_of(ends, [&](const auto& end) { return end.second == bad.size(); });
    if (!culprits.empty() || has_common_end || 2 * ends.size() <= report_.ranks.size()) return false;
    add(true, HealthDiagnostic::kJob, "pair",
        "wrong bytes or no connection in " + std::to_string(bad.size()) + " of " +
            counted(report_.pairs.size(), "pair") + " of ranks, " +
            join_some({places.begin(), places.end()}, kMostPlaces) +
            ", and no single rank explains them; check the network of these hosts, and compare their "
            "versions "
            "of driver and NCCL");
    return true;
  }

  /// Reports bad groups by their ranks, or for the job where no rank explains them. Returns the ranks.
  std::vector<int> diagnose_groups(const std::vector<GroupResult>& bad, const std::vector<int>& known,
                                   bool error, const char* item, const std::string& before,
                                   const std::string& after) {
    const GroupBlame blame = blame_groups(bad, known);
    for (const int rank : blame.ranks)
      add(error, rank, item, before + groups_with(bad, rank) + after);
    std::vector<std::string> names;
    for (const GroupResult& group : blame.rest) {
      names.push_back(group_name(group) + " (" + ranks_text(group.ranks) + ")");
      if (group.late >= 0) names.back() += format_text(" where rank %d comes late", group.late);
    }
    if (!names.empty())
      add(error, HealthDiagnostic::kJob, item,
          before + join_some(names, kMostPlaces) + after +
              ", and no single rank explains it; test parts of these ranks by themselves");
    return blame.ranks;
  }

  /// A sum that few ranks have wrong was right until its last step to them. If most have it wrong, they are
  /// witnesses. `is_explained`: errors of pairs or groups are reported.
  void diagnose_sums(const std::vector<int>& culprits, bool is_explained) {
    const auto seen = std::ranges::count_if(
        report_.ranks, [](const HealthFigures& figures) { return figures.wrong_sums > 0; });
    const bool most_see_it = 2 * seen > std::ssize(report_.ranks) && report_.ranks.size() > 1;
    for (int rank = 0; rank < static_cast<int>(report_.ranks.size()); ++rank) {
      const std::uint64_t wrong = report_.ranks[static_cast<std::size_t>(rank)].wrong_sums;
      if (wrong > 0 && (!most_see_it || std::ranges::count(culprits, rank) != 0))
        add(true, rank, "sum", counted(wrong, "wrong element") + " in the sum over all ranks");
    }
    if (most_see_it && culprits.empty() && !is_explained)
      add(true, HealthDiagnostic::kJob, "sum",
          format_text(
              "sums are wrong on %td of %zu ranks, and no single rank or pair explains it; run train "
              "bench allreduce on halves of the hosts to find the fault, and compare their versions of "
              "driver and NCCL",
              seen, report_.ranks.size()));
  }

  /// Returns each end of a pair with the other end; only the culprits if there is one.
  static std::vector<std::pair<int, int>> ends_of(const PairResult& pair, const std::vector<int>& culprits) {
    std::vector<std::pair<int, int>> ends{{pair.first, pair.second}, {pair.second, pair.first}}, named;
    std::ranges::copy_if(ends, std::back_inserter(named), [&](const std::pair<int, int>& end) {
      return std::ranges::count(culprits, end.first) != 0;
    });
    return named.empty() ? ends : named;
  }

  const std::string& host_of(int rank) const { return report_.ranks[static_cast<std::size_t>(rank)].host; }
  std::string rank_on_host(int rank) const { return format_text("rank %d on ", rank) + host_of(rank); }

  const HealthReport& report_;
  std::vector<HealthDiagnostic> diagnostics_;
};

}  // namespace

std::vector<std::uint64_t> pack_figures(const HealthFigures& figures) {
  std::vector<std::uint64_t> words;
  words.push_back(figures.gpu ? 1 : 0);
  for (const HealthSpeed& speed : kHealthSpeeds)
    words.push_back(std::bit_cast<std::uint64_t>(figures.*speed.field));
  for (const HealthCount& count : kHealthCounts)
    words.push_back(figures.*count.field);
  put_text(words, figures.host, kNameFields);
  put_text(words, figures.device, kNameFields);
  put_text(words, figures.trouble, kTroubleFields);
  put_text(words, figures.left_out, kTroubleFields);
  put_text(words, figures.products_by, kLibraryFields);
  return words;
}

HealthFigures unpack_figures(const std::uint64_t* words) {
  HealthFigures figures;
  figures.gpu = *words++ != 0;
  for (const HealthSpeed& speed : kHealthSpeeds)
    figures.*speed.field = std::bit_cast<double>(*words++);
  for (const HealthCount& count : kHealthCounts)
    figures.*count.field = *words++;
  figures.host = take_text(words, kNameFields);
  figures.device = take_text(words, kNameFields);
  figures.trouble = take_text(words, kTroubleFields);
  figures.left_out = take_text(words, kTroubleFields);
  figures.products_by = take_text(words, kLibraryFields);
  return figures;
}

void HealthFigures::add(const HealthFigures& round) {
  const auto combine = [](RoundRule rule, auto& to, auto value) {
    switch (rule) {
      case RoundRule::kSum: to += value; return;
      case RoundRule::kMost: to = std::max(to, value); return;
      case RoundRule::kLeast:
        if (to == 0 || (value != 0 && value < to)) to = value;
        return;
      case RoundRule::kLast:
        if (value != 0) to = value;
        return;
    }
  };
  host = round.host.empty() ? host : round.host;
  device = round.device;
  if (trouble.empty()) trouble = round.trouble;
  if (left_out.empty()) left_out = round.left_out;
  if (!round.products_by.empty()) products_by = round.products_by;
  gpu = gpu || round.gpu;
  const std::uint64_t bits = wrong_bits | round.wrong_bits,
                      reasons = throttle_reasons | round.throttle_reasons;
  for (const HealthSpeed& speed : kHealthSpeeds)
    combine(speed.rounds, this->*speed.field, round.*speed.field);
  for (const HealthCount& count : kHealthCounts)
    combine(count.rounds, this->*count.field, round.*count.field);
  wrong_bits = bits;
  throttle_reasons = reasons;
}

std::vector<StepVerdict> compare_steps(std::span<const std::uint64_t> words, std::size_t stride,
                                       std::size_t steps, std::size_t batches) {
  const std::size_t ranks = words.size() / stride;
  struct Votes {
    std::size_t all = 0, most = 0;
    std::uint64_t winner = 0;
    std::map<std::uint64_t, std::size_t> of;
  };
  std::map<std::pair<std::uint64_t, std::size_t>, Votes> votes;  // by kind and batch
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t* const mine = words.data() + rank * stride;
    for (std::size_t step = 0; mine[0] != 0 && step < steps; ++step) {
      if (mine[1 + step] == 0) continue;
      Votes& batch = votes[{mine[0], step % batches}];
      const std::size_t count = ++batch.of[mine[1 + step]];
      ++batch.all;
      if (count > batch.most) batch.winner = mine[1 + step];
      batch.most = std::max(batch.most, count);
    }
  }
  std::vector<StepVerdict> verdicts(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t* const mine = words.data() + rank * stride;
    for (std::size_t step = 0; mine[0] != 0 && step < steps; ++step) {
      const Votes& batch = votes[{mine[0], step % batches}];
      if (mine[1 + step] != 0 && 2 * batch.most <= batch.all) {
        ++verdicts[rank].unclear;
      } else if (mine[1 + step] == 0 || mine[1 + step] != batch.winner) {
        ++verdicts[rank].other;
      }
    }
  }
  return verdicts;
}

std::string speed_table(const HealthReport& report) {
  std::vector<std::pair<const Column*, std::vector<double>>> columns;
  std::string text = "#\n#  rank";
  for (const Column& column : kColumns) {
    std::vector<double> values;
    for (const HealthFigures& f : report.ranks)
      values.push_back(column.of(f));
    if (std::ranges::all_of(values, [](double value) { return value == 0; })) continue;
    values.push_back(median_of(values));
    columns.emplace_back(&column, std::move(values));
    text += format_text(" %10s", column.title);
  }
  if (columns.empty()) return "";
  text += '\n';
  for (std::size_t row = 0; row <= report.ranks.size(); ++row) {
    text += row == report.ranks.size() ? "# median" : format_text("%8zu", row);
    for (const auto& [column, values] : columns) {
      const double value = values[row];
      text += value == 0 ? "          -" : format_text(" %10.*f", value < 100 ? column->decimals : 0, value);
    }
    text += '\n';
  }
  return text;
}

std::vector<HealthDiagnostic> diagnose_health(const HealthReport& report) {
  return HealthEvaluator(report).evaluate();
}

bool has_failed(const std::vector<HealthDiagnostic>& diagnostics, int rank) {
  return std::any_of(diagnostics.begin(), diagnostics.end(), [rank](const HealthDiagnostic& diagnostic) {
    return diagnostic.error && diagnostic.rank == rank;
  });
}

}  // namespace ddp::train
