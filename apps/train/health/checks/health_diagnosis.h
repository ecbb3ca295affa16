#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/train/bench/bench_report.h"
#include "apps/train/health/checks/health_kernels.h"

namespace ddp::train {

/// Results of one rank's tests of its own device. Unknown numbers are 0.
struct HealthFigures {
  std::string host;
  std::string device;         ///< "CPU", "GPU 0 (NVIDIA H100)"
  std::string trouble;        ///< why a test could not run; empty: all ran
  std::string left_out = {};  ///< what was not tested though the others passed, and why
  bool gpu = false;           ///< the fields of a GPU below are valid
  std::uint64_t threads = 1;
  // Matrix products
  std::uint64_t products = 0;
  std::uint64_t wrong_products = 0;        ///< not within the bound of the exact values
  std::uint64_t other_products = 0;        ///< bits differ from the first product
  double gflops = 0;                       ///< float32; of several rounds the lowest, as all speeds
  double bf16_gflops = 0, fp8_gflops = 0;  ///< of a GPU's tensor cores
  // Equal training steps of all ranks (EqualSteps)
  std::uint64_t steps = 0;
  std::uint64_t other_steps =
      0;  ///< gradients are not those of most steps with the same batch, or not finite
  std::uint64_t unclear_steps = 0;  ///< gradients differ, and no majority says which are right
  double step_p50 = 0, step_p99 = 0, step_lost = 0;  ///< TimeSummary
  // Memory
  std::uint64_t memory = 0;  ///< bytes tested
  std::uint64_t wrong_words = 0;
  std::uint64_t first_wrong = 0;  ///< offset in bytes
  std::uint64_t wrong_bits = 0;   ///< mask of the bits that were ever wrong
  double memory_gbps = 0;         ///< GB/s: of a GPU its writes, of a CPU one thread's writes and reads
  double to_gpu_gbps = 0, from_gpu_gbps = 0;  ///< GB/s over PCIe, from and to pinned memory
  std::uint64_t throttled = 0;                ///< thermal events of this machine's cores during the test
  // The sum over all ranks
  std::uint64_t wrong_sums = 0;
  std::string products_by;  ///< of a GPU: the library that multiplied, or the own kernels and the reason
  // A GPU, by NVML
  std::uint64_t ecc_corrected = 0, ecc_uncorrected = 0;  ///< during the test
  std::uint64_t throttle_reasons = 0;                    ///< NVML's bits, over all samples
  std::uint64_t temperature = 0;                         ///< °C, maximum
  std::uint64_t clock = 0, most_clock = 0;               ///< MHz of the SMs: lowest sample, and limit
  std::uint64_t watts = 0;                               ///< largest sample
  std::uint64_t xids = 0, last_xid = 0;
  std::uint64_t pcie_replays = 0, nvlink_errors = 0;  ///< during the test
  std::uint64_t remapped_rows = 0;                    ///< rows of memory that were replaced during the test
  std::uint64_t remap_waits = 0;                      ///< 1: a row is replaced at the next reset of the GPU

  void set_memory_result(const PatternFaults& faults) {
    memory = faults.compared / kHealthPatterns * sizeof(std::uint64_t);
    wrong_words = faults.words;
    first_wrong = faults.words == 0 ? 0 : faults.first;
    wrong_bits = faults.bits;
  }
  /// Adds another round of the same tests on the same device: sums of counts, and the worst of each speed and
  /// sample.
  void add(const HealthFigures& round);
};

/// How the figures of several rounds become one.
enum class RoundRule : std::uint8_t { kSum, kMost, kLeast, kLast };

/// A number of HealthFigures with its key in a record; empty: it has none.
struct HealthCount {
  const char* key;
  std::uint64_t HealthFigures::*field;
  RoundRule rounds = RoundRule::kSum;
  bool of_gpu = false;  ///< only a GPU's record has it
};
inline constexpr HealthCount kHealthCounts[] = {
    {"threads", &HealthFigures::threads, RoundRule::kLast},
    {"products", &HealthFigures::products},
    {"wrong_products", &HealthFigures::wrong_products},
    {"other_products", &HealthFigures::other_products},
    {"memory_bytes", &HealthFigures::memory, RoundRule::kMost},
    {"wrong_words", &HealthFigures::wrong_words},
    {"", &HealthFigures::first_wrong, RoundRule::kLast},
    {"", &HealthFigures::wrong_bits},
    {"wrong_sums", &HealthFigures::wrong_sums},
    {"throttled", &HealthFigures::throttled},
    {"steps", &HealthFigures::steps},
    {"other_steps", &HealthFigures::other_steps},
    {"unclear_steps", &HealthFigures::unclear_steps},
    {"watts", &HealthFigures::watts, RoundRule::kMost, true},
    {"pcie_replays", &HealthFigures::pcie_replays, RoundRule::kSum, true},
    {"nvlink_errors", &HealthFigures::nvlink_errors, RoundRule::kSum, true},
    {"remapped_rows", &HealthFigures::remapped_rows, RoundRule::kSum, true},
    {"", &HealthFigures::remap_waits, RoundRule::kMost},
    {"ecc_corrected", &HealthFigures::ecc_corrected, RoundRule::kSum, true},
    {"ecc_uncorrected", &HealthFigures::ecc_uncorrected, RoundRule::kSum, true},
    {"throttle_reasons", &HealthFigures::throttle_reasons, RoundRule::kMost, true},
    {"temperature", &HealthFigures::temperature, RoundRule::kMost, true},
    {"clock_mhz", &HealthFigures::clock, RoundRule::kLeast, true},
    {"most_clock_mhz", &HealthFigures::most_clock, RoundRule::kMost, true},
    {"xids", &HealthFigures::xids, RoundRule::kSum, true},
    {"", &HealthFigures::last_xid, RoundRule::kLast}};

struct HealthSpeed {
  const char* key;
  double HealthFigures::*field;
  RoundRule rounds = RoundRule::kLeast;
  bool of_gpu = false;
  double factor = 1;  ///< in the record
};
inline constexpr HealthSpeed kHealthSpeeds[] = {
    {"gflops", &HealthFigures::gflops},
    {"memory_gbps", &HealthFigures::memory_gbps},
    {"step_ms", &HealthFigures::step_p50, RoundRule::kLast, false, 1e3},
    {"step_p99_ms", &HealthFigures::step_p99, RoundRule::kLast, false, 1e3},
    {"lost_part", &HealthFigures::step_lost, RoundRule::kLast},
    {"bf16_gflops", &HealthFigures::bf16_gflops, RoundRule::kLeast, true},
    {"fp8_gflops", &HealthFigures::fp8_gflops, RoundRule::kLeast, true},
    {"to_gpu_gbps", &HealthFigures::to_gpu_gbps, RoundRule::kLeast, true},
    {"from_gpu_gbps", &HealthFigures::from_gpu_gbps, RoundRule::kLeast, true}};

/// Packs the figures into kHealthFields numbers for all_gather(); texts are cut.
std::vector<std::uint64_t> pack_figures(const HealthFigures& figures);
HealthFigures unpack_figures(const std::uint64_t* words);
inline constexpr std::size_t kHealthFields = 124;

/// What a rank's equal steps show.
struct StepVerdict {
  std::uint64_t other = 0, unclear = 0;  ///< as in HealthFigures
};
/// Compares equal steps of all ranks (sans-IO). `words` has `stride` words for each rank: its kind, then the
/// hash of each of `steps` steps; 0: not finite. Steps that are `batches` apart had the same batch; only
/// equal kinds are compared. Kind 0: the rank made none.
std::vector<StepVerdict> compare_steps(std::span<const std::uint64_t> words, std::size_t stride,
                                       std::size_t steps, std::size_t batches);

struct HealthReport {
  std::vector<HealthFigures> ranks;
  std::vector<PairResult> pairs;
  std::vector<GroupResult> groups;  ///< of GPUs over NCCL
  int nodes = 0;                    ///< 0: unknown
  std::string backend;              ///< as CommWorld::backend
  std::string tested;               ///< tested_line()
};

struct HealthDiagnostic {
  static constexpr int kJob = -1;
  bool error = true;  ///< false: a warning
  int rank = 0;       ///< kJob: no rank is known as the cause
  /// "device", "gemm", "gradient", "memory", "ecc", "xid", "rows", "pair", "sum", "slow", "pause", "link",
  /// "throttle"
  std::string item;
  std::string text;
};

/// Returns the verdict (sans-IO), by rank. Wrong values and devices that cannot be tested are errors.
/// Slowness is a warning: ranks, pairs and groups more than 20 % below the median of the others of their
/// kind, pauses, and reduced clocks. An error that all see alike and no rank explains is one error of the
/// job.
std::vector<HealthDiagnostic> diagnose_health(const HealthReport& report);

/// Returns the table, with a line for each rank.
std::string health_text(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics);
/// Returns the table of speeds, samples and counters of each rank and of the median rank. A column without
/// any value is left out.
std::string speed_table(const HealthReport& report);
/// Returns one line for each error of the job, and for each rank that has errors: "rank 1 on gpu02, GPU 0
/// (…): …; …".
std::vector<std::string> failure_lines(const HealthReport& report,
                                       const std::vector<HealthDiagnostic>& diagnostics);
/// Returns whether the rank, or the job (kJob), has an error.
bool has_failed(const std::vector<HealthDiagnostic>& diagnostics, int rank);
/// Returns a record on one line; docs/users/acceptance.md has the keys.
std::string health_json(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics);

}  // namespace ddp::train
