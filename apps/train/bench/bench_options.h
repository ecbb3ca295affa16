#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "apps/train/bench/bench_report.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/options/equal_options.h"

namespace ddp::train {

/// Names and defaults as nccl-tests has them, where it has them.
struct BenchOptions {
  BenchOperation operation = BenchOperation::kAllReduce;
  std::size_t min_bytes = 8;
  std::size_t max_bytes = 32u << 20;
  double step_factor = 2;
  std::size_t step_bytes = 0;  ///< from one size to the next; 0: by the factor
  int iterations = 20;
  int warmup = 5;
  int check = 1;         ///< 0: not
  double min_busbw = 0;  ///< GB/s; 0: none
  std::string json;      ///< a file that rank 0 writes; empty: none
  CommKind comm = CommKind::kAuto;
  bool share_gpu = false;  ///< with kNccl
  std::chrono::milliseconds comm_timeout{60'000};
};

struct ParsedBenchOptions {
  std::optional<BenchOptions> options;  ///< empty: help or mistakes were printed
  int exit_code = 0;                    ///< 0 after --help, 2 after mistakes
};

/// `argv[0]` is "bench".
ParsedBenchOptions parse_bench_options(int argc, const char* const* argv);

/// What all ranks must be given alike.
EqualOptions equal_options(const BenchOptions& options);

/// The messages' sizes in bytes, each a multiple of `least`, none twice.
std::vector<std::size_t> message_sizes(const BenchOptions& options, std::size_t least);

}  // namespace ddp::train
