#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "apps/train/bench_report.h"
#include "apps/train/comm_kind.h"

namespace ddp::train {

/// Names and defaults as nccl-tests has them, where it has them.
struct BenchOptions {
  BenchOperation operation = BenchOperation::kAllReduce;
  std::size_t min_bytes = 8;
  std::size_t max_bytes = 32u << 20;
  double step_factor = 2;
  int iterations = 20;
  int warmup = 5;
  bool check = true;
  bool pairs = false;
  double min_busbw = 0;  ///< GB/s; 0: none
  std::string json;      ///< a file that rank 0 writes; empty: none
  CommKind comm = CommKind::kAuto;
  std::chrono::milliseconds comm_timeout{60'000};
};

struct ParsedBenchOptions {
  std::optional<BenchOptions> options;  ///< empty: help or mistakes were printed
  int exit_code = 0;                    ///< 0 after --help, 2 after mistakes
};

/// Whether the command line asks for a measurement instead of a training.
bool wants_bench(int argc, const char* const* argv);
ParsedBenchOptions parse_bench_options(int argc, const char* const* argv);

/// "8", "64K", "32M", "1G" (powers of 1024).
std::optional<std::size_t> parse_bytes(std::string_view text);

}  // namespace ddp::train
