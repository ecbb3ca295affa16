#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "apps/train/bench/bench.h"
#include "apps/train/collectives/nccl/nccl_world.h"
#include "apps/train/flight_recorder/recorded_communicator.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/health/health.h"
#include "apps/train/model/model.h"
#include "apps/train/options/options.h"
#include "apps/train/training/run_output.h"
#include "apps/train/training/training_run.h"
#include "apps/train/world/node_data.h"
#include "apps/train/world/world.h"
#include "base/program.h"

namespace {

using ddp::train::fail;
constexpr int kUsageExit = 2;

/// Returns why this host has no room for the weights, the gradients and the optimizer's state of its ranks;
/// empty: there is room.
std::string lacking_room(const ddp::train::TrainOptions& options, int ranks_of_host) {
  using namespace ddp::train;
  if (options.model != ModelKind::kMlp) return "";
  const std::size_t states = options.update.kind == OptimizerKind::kAdamw ? 2 : 1;
  const std::size_t copies = 2 + (options.zero ? 0 : states);
  const std::size_t size = options.dtype == Dtype::kFloat64 ? sizeof(double) : sizeof(float);
  const std::size_t parameters = size_of(mlp_layout(options.mlp_width, options.mlp_depth).parameters);
  const std::string lacks = lacking_memory(copies * size * parameters, ranks_of_host);
  return lacks.empty() ? "" : "the MLP needs " + lacks + "; make --mlp-width or --mlp-depth smaller";
}

/// Returns the first error that is visible before anything starts; empty: none.
std::string error_of(const ddp::train::TrainOptions& options,
                     const ddp::train::WorkerEnvironment& environment) {
  const std::string problem = contradiction(options, environment.world_size);
  if (!problem.empty()) return problem;
  // The other ranks of a host that a new one rejoins have their memory.
  const bool is_rejoining = options.rejoin && environment.attempt > 0;
  const int ranks_of_host = is_rejoining ? 1 : environment.local_world_size;
  if (std::string lacks = lacking_room(options, ranks_of_host); !lacks.empty()) return lacks;
  if (options.rejoin && environment.control.empty()) {
    return "--on-peer-loss rejoin needs a launcher that starts new attempts, but "
           "DDPLAUNCH_CONTROL is not set; start train with ddplaunch";
  }
  const auto possible = can_join(environment, options);
  return possible ? "" : possible.error().text;
}

int diagnose_logs(const std::string& directory) {
  const auto text = ddp::train::read_flight_recorders(directory);
  if (!text) return fail(text.error().text, kUsageExit);
  std::printf("%s\n", text->empty() ? "all ranks have finished all recorded operations" : text->c_str());
  return 0;
}

int run(int argc, char** argv) {
  using namespace ddp::train;
  // The dashed spellings of earlier versions are accepted until 0.2.
  const std::string_view use = argc > 1 ? argv[1] : "";
  if (use == "bench" || use == "--bench") return run_bench(argc - 1, argv + 1);
  if (use == "health" || use == "--health") return run_health(argc - 1, argv + 1);
  const auto parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  if (!parsed.options->read_flight_recorder.empty())
    return diagnose_logs(parsed.options->read_flight_recorder);
  const auto environment = read_worker_environment(::getenv);
  if (!environment) return fail(environment.error().text);
  TrainOptions options = *parsed.options;
  const std::string problem = error_of(options, *environment);
  if (!problem.empty()) return fail(problem, kUsageExit);
  if (options.rejoin) {
    if (environment->rank == 0 && environment->max_restarts == 0) {
      std::fputs(
          "train: the first lost rank will end the job, although --on-peer-loss rejoin is given: "
          "--max-restarts is 0; give ddplaunch --max-restarts N\n",
          stderr);
    }
    const auto trained = run_rejoining(options, *environment);
    const bool usage =
        environment->world_size == 1 && trained.has_error() && trained.error().code == ddp::ErrorCode::kUsage;
    return trained ? 0 : fail(trained.error().text, usage ? kUsageExit : kFailed);
  }
  NodeData data(options.data, options.limit);
  const ddp::Result<> loaded = NodeData::reads_first(*environment) ? data.load() : ddp::Result<>();
  if (!loaded && environment->world_size == 1) return fail(loaded.error().text);
  auto world = join_world(*environment, options);
  if (!world) {
    const bool alone = environment->world_size == 1;  // nothing was joined
    const bool usage = alone && world.error().code == ddp::ErrorCode::kUsage;
    return fail(loaded ? world.error().text : loaded.error().text, usage ? kUsageExit : kFailed);
  }
  const std::string model_line = take_device(world->choice.device, options);
  if (!world->choice_line.empty()) print_out("%s\n", world->choice_line.c_str());
  if (environment->rank == 0 && !model_line.empty()) print_out("%s\n", model_line.c_str());
  // A rank that could not read the data reports it together with the others, which cannot read it either.
  if (auto shared = data.share(*world->communicator, *environment); !shared) return fail(shared.error().text);
  if (environment->rank == 0 && !data.line().empty()) print_out("%s\n", data.line().c_str());
  Communicator& ranks = *world->communicator;
  if (auto agreed = agree_on_epochs(ranks, 0, data.split().training.size(), false, options); !agreed)
    return fail(agreed.error().text);
  if (environment->rank == 0 && options.epochs > 1 && options.keeps_steps)
    print_out("%d epochs, so that each rank makes at least 150 steps\n", options.epochs);
  const auto last_line = [&] { return tested_line(*environment, ranks, options.device, world->backend); };
  const TrainingAttempt attempt{
      {&ranks, world->node.get(), world->between.get()}, std::nullopt, {}, last_line};
  const auto trained = run_training(options, attempt, data.split(), environment->control);
  return trained ? 0 : fail(trained.error().text);
}

}  // namespace

int main(int argc, char** argv) try {
  ddp::fill_standard_descriptors();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a pipe must show each line when it is written
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond a file's size limit must fail, not end the program,
  std::signal(SIGPIPE, SIG_IGN);  // and so must a write into a pipe without a reader
  const int exit_code = ddp::train::exit_code_after_printing(run(argc, argv));
  ddp::train::report_nccl_warnings();
  if (ddp::train::gpus_are_given_up()) std::_Exit(exit_code);
  return exit_code;
} catch (const std::exception& error) {
  const bool is_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const int exit_code =
      fail(is_memory ? "this process cannot get the memory that its options need; make sizes smaller, or "
                       "raise the limit of its memory (ulimit -v)"
                     : error.what());
  if (ddp::train::gpus_are_given_up()) std::_Exit(exit_code);
  return exit_code;
}
