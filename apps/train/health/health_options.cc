#include "apps/train/health/health_options.h"

#include <charconv>
#include <string_view>

#include "apps/options/option_table.h"

namespace ddp::train {

namespace {

constexpr double kMostMemory = 16u << 20;  // MB, that is 16 TB
constexpr std::chrono::milliseconds kLeastTime{1};
constexpr const char* kHealthUsage =
    "usage: train health [TIME] [OPTION…]\n"
    "Tests the device of each rank, each pair of ranks and all ranks together: matrix products and memory\n"
    "with known results, messages and all-reduces. Exit code 1 if a test fails.\n";

/// Parses "RANK:gemm", "RANK:memory" or "RANK:sum".
std::optional<InjectedFault> parse_fault(std::string_view text) {
  InjectedFault inject;
  const char* end = text.data() + text.size();
  const auto rank = std::from_chars(text.data(), end, inject.rank);
  if (rank.ec != std::errc() || rank.ptr == end || *rank.ptr != ':' || inject.rank < 0) return std::nullopt;
  const std::string_view word(rank.ptr + 1, end);
  if (word == "gemm") {
    inject.fault = HealthFault::kGemm;
  } else if (word == "memory") {
    inject.fault = HealthFault::kMemory;
  } else if (word == "sum") {
    inject.fault = HealthFault::kSum;
  } else {
    return std::nullopt;
  }
  return inject;
}

void declare_tests(OptionTable& table, HealthOptions& options) {
  table.group("Tests", "", "train health 1m --memory 4096");
  table.value({.names = "TIME", .help = "duration of the matrix products", .equal = true},
              time_into(options.time, kLeastTime));
  table.value(
      {.names = "--memory",
       .value = "MB",
       .default_text = "256; on a GPU 98 % of the free memory",
       .help = "MiB of memory that each rank tests",
       .details = "On a CPU more than the host has is refused. Ranks that share a GPU divide its free "
                  "memory.",
       .equal = true},
      number_into(options.memory_mb, 1, kMostMemory));
  table.choice<HealthDeviceKind>(
      {.names = "--device",
       .help = "auto: the GPU of LOCAL_RANK if it exists, else the CPU",
       .details = "LOCAL_RANK counts modulo the number of GPUs. `gpu` is an error without one.",
       .equal = true},
      options.device,
      {{"auto", HealthDeviceKind::kAuto}, {"cpu", HealthDeviceKind::kCpu}, {"gpu", HealthDeviceKind::kGpu}});
  table.value({.names = "--threads",
               .value = "N",
               .default_text = "its part of the cores",
               .help = "threads of a rank on a CPU"},
              number_into(options.threads, 1, 1'024));
  table.value({.names = "--inject-fault",
               .value = "RANK:TEST",
               .help = "fault injection: this rank's test finds a wrong value",
               .details = "TEST is `gemm`, `memory` or `sum`."},
              parsed_into(options.inject, parse_fault, ": give RANK:gemm, RANK:memory or RANK:sum"));
}

void declare_options(OptionTable& table, HealthOptions& options) {
  declare_tests(table, options);
  table.group("Communication");
  table.choice<CommKind>({.names = "--comm", .help = "auto: shared memory inside a node, TCP between nodes"},
                         options.comm,
                         {{"auto", CommKind::kAuto}, {"tcp", CommKind::kTcp}, {"shm", CommKind::kShm}});
  table.value(
      {.names = "--comm-timeout", .value = "TIME", .help = "give up when a peer moves no byte for this long"},
      time_into(options.comm_timeout, kLeastTime));
  table.group("Report");
  table.value({.names = "--json",
               .value = "FILE",
               .help = "file for the result, written by rank 0",
               .details = "[Records](acceptance.md#records) describes it.",
               .completion = Completion::kFile,
               .equal = true},
              text_into(options.json));
  declare_help(table);
}

}  // namespace

std::vector<OptionGroup> health_option_groups() {
  return option_groups<HealthOptions>(declare_options);
}

ParsedCommand<HealthOptions> parse_health_options(int argc, const char* const* argv) {
  return parse_command<HealthOptions>("train health", kHealthUsage, declare_options, nullptr, argc, argv);
}

EqualOptions equal_options(HealthOptions options) {
  OptionTable table("");
  declare_options(table, options);
  return equal_options(table);
}

}  // namespace ddp::train
