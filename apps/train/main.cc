#include <cstdio>
#include <cstdlib>
#include <exception>

#include "apps/train/bench_options.h"
#include "apps/train/bench_run.h"
#include "apps/train/dataset.h"
#include "apps/train/options.h"
#include "apps/train/training_run.h"
#include "apps/train/worker_environment.h"
#include "apps/train/world.h"

namespace {

constexpr int kFailed = 1;

int fail(const char* text) {
  std::fprintf(stderr, "train: %s\n", text);
  return kFailed;
}

}  // namespace

int main(int argc, char** argv) try {
  using namespace ddp::train;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a pipe must show each line when it is written

  if (wants_bench(argc, argv)) return run_bench(argc, argv);
  const ParsedOptions parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const auto environment =
      read_worker_environment([](const char* name) -> const char* { return std::getenv(name); });
  if (!environment) return fail(environment.error().text.c_str());
  const auto data = load_data(parsed.options->data, parsed.options->limit);
  if (!data) return fail(data.error().text.c_str());
  auto world = join_world(*environment, *parsed.options);
  if (!world) return fail(world.error().text.c_str());
  const auto trained = run_training(
      *parsed.options, {world->communicator.get(), world->node.get(), world->between.get()}, *data);
  if (!trained) return fail(trained.error().text.c_str());
  return 0;
} catch (const std::exception& error) {
  return fail(error.what());
}
