#include "apps/train/training/training_run.h"

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/training/run_output.h"
#include "apps/train/world/node_data.h"
#include "base/text.h"
#include "rendezvous/worker_client/worker_client.h"

namespace ddp::train {

namespace {

/// Classifies errors of joining and of the communicators. Errors with other codes are not caused by a peer.
bool is_loss(const Error& error) {
  switch (error.code) {
    case ErrorCode::kLinkLost:
    case ErrorCode::kTimeout:
    case ErrorCode::kProtocol:
    case ErrorCode::kCancelled:
    case ErrorCode::kUnreachable: return true;
    default: return false;
  }
}

class RejoiningRank {
 public:
  RejoiningRank(const TrainOptions& options, const WorkerEnvironment& environment,
                rendezvous::WorkerClient& link)
      : given_(options),
        options_(options),
        environment_(environment),
        link_(link),
        data_(options.data, options.limit) {}

  Result<> live() {
    // At the job's start this rank must read the data anyway. The link answers a revoke that arrives
    // meanwhile.
    if (environment_.attempt == 0 && NodeData::reads_first(environment_)) {
      link_.at(0, "load");
      DDP_TRY(data_.load());
    }
    for (;;) {
      const auto order = DDP_TRY(within("no order for an attempt", link_.next_attempt()));
      const Result<> done = attempt(order);
      if (done) return done;
      if (!is_loss(done.error()) && !is_revoked(link_.interrupt())) return done;
      DDP_TRY(leave_attempt(done.error()));
    }
  }

 private:
  Result<> attempt(const rendezvous::AttemptOrder& order) {
    environment_ = DDP_TRY(ordered(environment_, order));
    if (!order.from) {
      // No rank holds a state: the work of a previous attempt does not count.
      training_.reset();
      choice_.reset();
      options_ = given_;
      if (NodeData::reads_first(environment_)) DDP_TRY(data_.load());
    }
    // The model opens the GPU of LOCAL_RANK and stays there, and NCCL would open that of the new local rank.
    const int gpu = given_.device == DeviceKind::kCpu ? -1 : gpu_of(environment_.local_rank);
    if (!training_) {
      ::setenv("LOCAL_RANK", std::to_string(environment_.local_rank).c_str(), 1);
      gpu_ = gpu;
    } else if (gpu != gpu_ && choice_->device == DeviceKind::kGpu) {
      return usage_error("rank ", environment_.rank, " holds its model on GPU ", gpu_, ", but has GPU ", gpu,
                         " in attempt ", order.attempt, "; a new process must take its place");
    }
    link_.at(training_ ? training_->held_step().value_or(0) : 0, "join");
    const int reference_rank = order.from ? static_cast<int>(*order.from) : 0;
    WorldOptions wanted;
    wanted.interrupt = link_.interrupt();
    wanted.reference_rank = reference_rank;
    auto world = DDP_TRY(join_world(environment_, given_, wanted, choice_));
    world_.emplace(std::move(world));
    choice_ = world_->choice;
    const std::string model_line = take_device(choice_->device, options_);
    if (!world_->choice_line.empty()) print_out("%s\n", world_->choice_line.c_str());
    if (environment_.rank == 0 && !order.from && !model_line.empty()) print_out("%s\n", model_line.c_str());
    DDP_TRY(data_.share(*world_->communicator, environment_));
    if (environment_.rank == 0 && !order.from && !data_.line().empty())
      print_out("%s\n", data_.line().c_str());
    DDP_TRY(agree_on_epochs(*world_->communicator, reference_rank, data_.split().training.size(),
                            training_ != nullptr, options_));
    if (!training_) {
      training_ = make_training_run(
          options_, data_.split(), [this](std::uint64_t step, const char* phase, double loss, double waited) {
            link_.at(step, phase, loss, waited);
          });
    }
    TrainingAttempt attempt;
    attempt.communicators = {world_->communicator.get(), world_->node.get(), world_->between.get(),
                             link_.interrupt(), order.attempt};
    if (order.from) attempt.from = static_cast<int>(*order.from);
    attempt.on_ready = [this] { link_.ready(); };
    attempt.last_line = [this] {
      return tested_line(environment_, *world_->communicator, choice_->device, world_->backend);
    };
    return training_->run_attempt(attempt);
  }

  /// Returns when the agent knows that nothing of the attempt runs here; else why this rank ends.
  Result<> leave_attempt(const Error& why) {
    // Its GPU may never be free again, so a new process must replace this one.
    if (gpus_are_given_up()) return why;
    if (!is_revoked(link_.interrupt())) link_.failed(why.text, lost_ranks());
    const auto revoke = link_.await_revoke();
    // If the link's end has ended the wait, the link's error says more.
    if (!revoke) return why.code == ErrorCode::kCancelled ? revoke.error() : why;
    if (training_) training_->leave_attempt();
    world_.reset();
    link_.revoked(training_ ? training_->held_step() : std::nullopt);
    return {};
  }

  std::vector<std::uint32_t> lost_ranks() const {
    const int lost = world_ ? world_->communicator->lost_rank() : -1;
    if (lost < 0 || lost == environment_.rank) return {};
    return {static_cast<std::uint32_t>(lost)};
  }

  const TrainOptions& given_;
  TrainOptions options_;  ///< with what the ranks have chosen
  WorkerEnvironment environment_;
  rendezvous::WorkerClient& link_;
  NodeData data_;
  std::optional<RunChoice> choice_;  ///< of the attempt whose state this rank holds
  int gpu_ = -1;                     ///< of the model
  std::optional<CommWorld> world_;
  std::unique_ptr<TrainingRun> training_;  ///< declared behind world_, so that it is destroyed first
};

}  // namespace

Result<WorkerEnvironment> ordered(WorkerEnvironment before, const rendezvous::AttemptOrder& order) {
  HostPort store = split_endpoint(order.store).value_or(HostPort{});
  const std::uint16_t port = parse_number<std::uint16_t>(store.port.value_or("")).value_or(0);
  if ((store.host.empty() || port == 0) && order.world > 1) {
    return error_of(ErrorCode::kProtocol, "the launcher ordered an attempt with the store \"", order.store,
                    "\"");
  }
  before.rank = static_cast<int>(order.rank);
  before.world_size = static_cast<int>(order.world);
  before.local_rank = static_cast<int>(order.local_rank);
  before.local_world_size = static_cast<int>(order.local_world);
  before.node = static_cast<int>(order.node_rank);
  before.master_addr = std::move(store.host);
  before.master_port = port;
  before.agent_store = order.agent_store;
  before.attempt = order.attempt;
  return before;
}

Result<> run_rejoining(const TrainOptions& options, const WorkerEnvironment& environment) {
  const bool sharded = options.zero;
  auto link = DDP_TRY(
      within("DDPLAUNCH_CONTROL", rendezvous::WorkerClient::connect(environment.control, true, sharded)));
  return RejoiningRank(options, environment, *link).live();
}

}  // namespace ddp::train
