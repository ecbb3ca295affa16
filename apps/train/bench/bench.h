#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "apps/options/option_table.h"
#include "apps/train/bench/bench_report.h"
#include "apps/train/options/options.h"

namespace ddp::train {

/// Names and defaults are those of nccl-tests, if it has the option.
struct BenchOptions : BackendOptions {
  BenchOperation operation = BenchOperation::kAllReduce;
  std::size_t min_bytes = 8;
  std::size_t max_bytes = 32u << 20;
  double step_factor = 2;
  std::size_t step_bytes = 0;  ///< added from one size to the next; 0: step_factor applies
  int iterations = 20;
  int warmup = 5;
  int check = 1;                           ///< operations of each size whose result is checked
  NumberType type = NumberType::kFloat32;  ///< the others: only over NCCL
  bool out_of_place = false;               ///< only over NCCL
  double min_busbw = 0;                    ///< GB/s; 0: none
  std::string json;                        ///< file that rank 0 writes; empty: none
};

/// `argv[0]` is "bench".
ParsedCommand<BenchOptions> parse_bench_options(int argc, const char* const* argv);
/// Returns the options of --help, for the documents.
std::vector<OptionGroup> bench_option_groups();

/// Returns the options that must be equal on all ranks.
EqualOptions equal_options(BenchOptions options);

/// Returns the message sizes in bytes: multiples of `least`, without duplicates.
std::vector<std::size_t> message_sizes(const BenchOptions& options, std::size_t least);

/// Runs `train bench …`: joins the world that the environment names, measures, and prints rank 0's table on
/// stdout. Exit codes: 0; 1 if measuring failed, a result was wrong, or --min-busbw was not reached; 2 for
/// wrong options.
int run_bench(int argc, const char* const* argv);

}  // namespace ddp::train
