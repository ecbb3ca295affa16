#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "apps/train/bench_options.h"
#include "apps/train/bench_run.h"
#include "apps/train/dataset.h"
#include "apps/train/options.h"
#include "apps/train/rejoin.h"
#include "apps/train/standard_output.h"
#include "apps/train/training_run.h"
#include "apps/train/worker_environment.h"
#include "apps/train/world.h"
#include "base/standard_descriptors.h"

namespace {

constexpr int kFailed = 1;
constexpr int kUsageExit = 2;

int fail(const std::string& text, int exit_code = kFailed) {
  std::fprintf(stderr, "train: %s\n", text.c_str());
  return exit_code;
}

/// What can be seen to fail before anything starts; empty: nothing.
std::string mistake_of(const ddp::train::Options& options, const ddp::train::WorkerEnvironment& environment) {
  const std::string mistake = contradiction(options, environment.world_size);
  if (!mistake.empty()) return mistake;
  if (options.rejoin && environment.control.empty()) {
    return "--on-peer-loss rejoin needs somebody who tells this rank with whom to go on, and "
           "DDPLAUNCH_CONTROL "
           "is not set; start train with ddplaunch";
  }
  const auto possible = can_join(environment, options);
  return possible ? "" : possible.error().text;
}

int run(int argc, char** argv) {
  using namespace ddp::train;
  if (wants_bench(argc, argv)) return run_bench(argc, argv);
  const ParsedOptions parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const auto environment =
      read_worker_environment([](const char* name) -> const char* { return std::getenv(name); });
  if (!environment) return fail(environment.error().text);
  const std::string mistake = mistake_of(*parsed.options, *environment);
  if (!mistake.empty()) return fail(mistake, kUsageExit);
  if (parsed.options->rejoin) {
    const auto trained = run_rejoining(*parsed.options, *environment);
    return trained ? 0 : fail(trained.error().text);
  }
  const auto data = load_data(parsed.options->data, parsed.options->limit);
  if (!data) return fail(data.error().text);
  auto world = join_world(*environment, *parsed.options);
  if (!world) return fail(world.error().text);
  const auto trained = run_training(
      *parsed.options, {world->communicator.get(), world->node.get(), world->between.get()}, *data);
  return trained ? 0 : fail(trained.error().text);
}

}  // namespace

int main(int argc, char** argv) try {
  ddp::fill_standard_descriptors();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a pipe must show each line when it is written
  std::signal(SIGXFSZ, SIG_IGN);             // a file's size limit is an error of that write, not the end,
  std::signal(SIGPIPE, SIG_IGN);             // as is a pipe whose reader has gone
  return ddp::train::exit_code_after_printing(run(argc, argv));
} catch (const std::exception& error) {
  return fail(error.what());
}
