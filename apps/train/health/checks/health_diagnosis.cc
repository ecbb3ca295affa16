#include "apps/train/health/checks/health_diagnosis.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace ddp::train {

namespace {

constexpr double kSlow = 0.8;  ///< part of the median
constexpr std::size_t kNameFields = 8, kTroubleFields = 24, kLibraryFields = 24;

void put_text(std::vector<std::uint64_t>& words, std::string_view text, std::size_t count) {
  const std::size_t begin = words.size();
  words.resize(begin + count);
  std::memcpy(words.data() + begin, text.data(), std::min(text.size(), count * 8 - 1));
}

std::string take_text(const std::uint64_t*& words, std::size_t count) {
  const char* text = reinterpret_cast<const char*>(words);
  words += count;
  return {text, ::strnlen(text, count * 8)};
}

/// Returns pointers to the numbers, in the order of pack_figures().
template <class Figures>
auto numbers_of(Figures& f) {
  return std::vector{&f.threads,          &f.products,      &f.wrong_products,
                     &f.other_products,   &f.memory,        &f.wrong_words,
                     &f.first_wrong,      &f.wrong_bits,    &f.throttled,
                     &f.wrong_sums,       &f.ecc_corrected, &f.ecc_uncorrected,
                     &f.throttle_reasons, &f.temperature,   &f.clock,
                     &f.most_clock,       &f.xids,          &f.last_xid};
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

class HealthEvaluator {
 public:
  explicit HealthEvaluator(const HealthReport& report) : report_(report) {}

  std::vector<HealthDiagnostic> evaluate() {
    for (std::size_t i = 0; i < report_.ranks.size(); ++i)
      diagnose_rank(static_cast<int>(i), report_.ranks[i]);
    diagnose_speed();
    diagnose_pairs();
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
    if (f.wrong_products > 0 || f.other_products > 0) {
      add(true, rank, "gemm",
          counted(f.products, "equal matrix product") + ": " + std::to_string(f.wrong_products) + " wrong, " +
              std::to_string(f.other_products) + " different from the first");
    }
    if (f.wrong_words > 0) {
      add(true, rank, "memory",
          counted(f.wrong_words, "wrong word") + format_text(" in %" PRIu64
                                                             " MiB of memory, the first at offset 0x%" PRIx64
                                                             ", wrong bits 0x%016" PRIx64,
                                                             f.memory >> 20, f.first_wrong, f.wrong_bits));
    }
    if (f.wrong_sums > 0)
      add(true, rank, "sum", counted(f.wrong_sums, "wrong element") + " in the sum over all ranks");
    if (f.ecc_uncorrected > 0) add(true, rank, "ecc", counted(f.ecc_uncorrected, "uncorrectable ECC error"));
    if (f.xids > 0)
      add(true, rank, "xid",
          "the driver reported " + counted(f.xids, "Xid error") + ", the last is Xid " +
              std::to_string(f.last_xid));
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
    std::map<std::string, std::vector<double>> speeds;
    for (const HealthFigures& f : report_.ranks) {
      if (f.products > 0) speeds[kind(f)].push_back(per_thread(f));
    }
    for (std::size_t i = 0; i < report_.ranks.size(); ++i) {
      const HealthFigures& f = report_.ranks[i];
      const double median = f.products > 0 ? median_of(speeds[kind(f)]) : 0;
      if (median <= 0 || per_thread(f) >= kSlow * median) continue;
      add(false, static_cast<int>(i), "slow",
          format_text("%.1f GFLOP/s%s, %.0f %% under the median", per_thread(f),
                      f.gpu ? "" : " for each thread", 100 * (1 - per_thread(f) / median)));
    }
  }

  void diagnose_pairs() {
    std::vector<PairResult> good;
    for (const HealthPair& pair : report_.pairs) {
      if (!pair.failed && pair.wrong == 0) {
        good.push_back(pair.result);
        continue;
      }
      const int ranks[] = {pair.result.first, pair.result.second};
      for (const int i : {0, 1}) {
        const std::string other = format_text("rank %d on ", ranks[1 - i]) +
                                  report_.ranks[static_cast<std::size_t>(ranks[1 - i])].host;
        add(true, ranks[i], "pair",
            pair.failed ? "could not exchange messages with " + other
                        : format_text("%" PRIu64 " wrong bytes in the exchange with ", pair.wrong) + other);
      }
    }
    for (const PairResult& pair : outliers(good)) {
      add(false, pair.first, "pair",
          format_text("%.2f GB/s with rank %d on ", pair.bandwidth, pair.second) +
              report_.ranks[static_cast<std::size_t>(pair.second)].host +
              ", more than 20 % under the median");
    }
  }

  const HealthReport& report_;
  std::vector<HealthDiagnostic> diagnostics_;
};

}  // namespace

std::vector<std::uint64_t> pack_figures(const HealthFigures& figures) {
  std::vector<std::uint64_t> words;
  words.push_back(figures.gpu ? 1 : 0);
  words.push_back(std::bit_cast<std::uint64_t>(figures.gflops));
  for (const std::uint64_t* number : numbers_of(figures))
    words.push_back(*number);
  put_text(words, figures.host, kNameFields);
  put_text(words, figures.device, kNameFields);
  put_text(words, figures.trouble, kTroubleFields);
  put_text(words, figures.products_by, kLibraryFields);
  words.resize(kHealthFields);
  return words;
}

HealthFigures unpack_figures(const std::uint64_t* words) {
  HealthFigures figures;
  figures.gpu = *words++ != 0;
  figures.gflops = std::bit_cast<double>(*words++);
  for (std::uint64_t* number : numbers_of(figures))
    *number = *words++;
  figures.host = take_text(words, kNameFields);
  figures.device = take_text(words, kNameFields);
  figures.trouble = take_text(words, kTroubleFields);
  figures.products_by = take_text(words, kLibraryFields);
  return figures;
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
