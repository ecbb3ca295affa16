#include "apps/train/training/training_run.h"

#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <stdexcept>
#include <string>
#include <utility>

#include "apps/train/checkpoint/model_file.h"
#include "apps/train/data/hash.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/model/model.h"
#include "apps/train/training/checkpoint_run.h"
#include "apps/train/training/run_output.h"
#include "base/clock.h"
#include "base/program.h"
#include "base/text.h"
#include "rendezvous/worker_client/worker_client.h"

namespace ddp::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBarInterval{100};
constexpr int kBarCells = 20;

/// Returns " loss MEAN"; empty if no step counts.
std::string loss_text(double sum, int steps) {
  return steps == 0 ? "" : format_text(" loss %.4g", sum / steps);
}

/// Reports a training's progress on rank 0; other ranks report nothing. On stdout: a line per interval and
/// per epoch and, if requested, one bar that is redrawn in place. In the metrics file: a record per line
/// (docs/users/train.md).
class Progress {
 public:
  explicit Progress(const TrainOptions& options) : options_(options) {}

  /// Sets this rank's number and the number of ranks.
  void attach(int rank, int world_size) {
    clear_bar();
    restart();
    world_size_ = world_size;
    speaks_ = rank == 0;
    bar_ = speaks_ && (options_.bar == BarMode::kAlways ||
                       (options_.bar == BarMode::kAuto && ::isatty(STDOUT_FILENO) == 1));
  }

  /// Opens the metrics file for appending, unless it is open.
  Result<> open() {
    if (!speaks_ || options_.metrics_file.empty() || metrics_.is_open()) return {};
    auto opened = metrics_.open("--metrics-file", options_.metrics_file);
    if (opened || opened.error().sys != ENOENT) return opened;
    Error error = opened.error();
    error.text += "; give a file in a directory that exists on the node of rank 0";
    return error;
  }

  void step(const StepReport& report) {
    if (!speaks_) return;
    if (metrics_.is_open()) metrics_.append(step_record(report));

    images_ += report.images;
    if (report.dropped) {
      say(concat("step ", report.total,
                 " dropped on all ranks: the gradient is not finite; the weights are unchanged"));
    } else {
      loss_ += report.loss;
      ++steps_;
    }
    if (bar_) draw_bar(report);
    if (report.step % options_.log_interval != 0 && report.step != report.steps) return;
    end_interval(report);
  }

  /// `loss` is a sum over `steps`.
  void epoch(std::int64_t epoch, const Accuracy& accuracy, double loss, int steps, double seconds) {
    if (!speaks_) return;
    say(format_text("epoch %" PRId64 "/%d%s test accuracy %.2f %% in %.1f s", epoch + 1, options_.epochs,
                    loss_text(loss, steps).c_str(), accuracy.percent(), seconds));
    if (metrics_.is_open()) {
      auto record = begin_record("epoch", 0, world_size_);
      record.update({{"epoch", epoch + 1},
                     {"test_correct", accuracy.correct},
                     {"test_total", accuracy.total},
                     {"loss", loss / steps},
                     {"seconds", rounded(seconds, 3)}});
      metrics_.append(record_line(record));
    }
    restart();
  }

  /// Prints a line of its own.
  void say(const std::string& line) {
    if (!speaks_) return;
    clear_bar();
    print_out("%s\n", line.c_str());
  }

 private:
  std::string step_record(const StepReport& report) const {
    auto record = begin_record("step", 0, world_size_);
    record.update({{"step", report.total},
                   {"epoch", report.epoch + 1},
                   {"loss", report.loss},
                   {"lr", report.lr},
                   {"images", report.images}});
    if (report.norm > 0) record["norm"] = report.norm;
    record["dropped"] = report.dropped;
    for (std::size_t i = 0; i < kPhases; ++i)
      record["seconds"][std::string(kPhaseNames[i])] = rounded(report.times[i], 6);
    return record_line(record);
  }

  void end_interval(const StepReport& report) {
    const double rate = static_cast<double>(images_) / seconds_since(start_);
    say(format_text("epoch %d/%d step %d/%d%s %.0f images/s", report.epoch + 1, options_.epochs, report.step,
                    report.steps, loss_text(loss_, steps_).c_str(), rate));
    if (metrics_.is_open()) {
      auto record = begin_record("interval", 0, world_size_);
      record.update({{"step", report.total},
                     {"epoch", report.epoch + 1},
                     {"loss", loss_ / steps_},
                     {"images_per_second", rounded(rate, 1)}});
      metrics_.append(record_line(record));
    }
    restart();
  }

  void draw_bar(const StepReport& report) {
    const auto now = Clock::now();
    if (bar_shown_ && now - drawn_ < kBarInterval) return;
    drawn_ = now;
    bar_shown_ = true;
    const int full = report.step * kBarCells / report.steps;
    const std::string cells = std::string(static_cast<std::size_t>(full), '#') +
                              std::string(static_cast<std::size_t>(kBarCells - full), '.');
    print_out("\repoch %d/%d [%s] %d/%d loss %.4g", report.epoch + 1, options_.epochs, cells.c_str(),
              report.step, report.steps, report.loss);
  }

  void clear_bar() {
    if (bar_shown_) print_out("\r\033[K");
    bar_shown_ = false;
  }

  void restart() {
    start_ = Clock::now();
    images_ = 0;
    loss_ = 0;
    steps_ = 0;
  }

  const TrainOptions& options_;
  int world_size_ = 1;
  bool speaks_ = false;
  bool bar_ = false;
  LineFile metrics_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_{};
  bool bar_shown_ = false;
  std::size_t images_ = 0;
  double loss_ = 0;
  int steps_ = 0;
};

/// Returns the hosts by rank; long names are cut.
Result<std::vector<std::string>> gather_hosts(Communicator& world) {
  std::array<char, 72> mine{};  // 64 letters and a terminating zero, in whole words
  host_name().copy(mine.data(), mine.size() - 1);
  const auto all = DDP_TRY(gather_values(world, mine));
  std::vector<std::string> hosts;
  for (const auto& host : all)
    hosts.emplace_back(host.data());
  return hosts;
}

/// Returns the place of the first occurrence of the most frequent value: the majority counts as right.
std::size_t most_frequent(const std::vector<std::uint64_t>& values) {
  const auto count = [&values](std::uint64_t value) { return std::ranges::count(values, value); };
  return static_cast<std::size_t>(std::ranges::max_element(values, {}, count) - values.begin());
}

}  // namespace

Result<> check_equal_data(Communicator& world, const DataSplit& mine, std::optional<int> from) {
  constexpr std::array kFiles = {
      "training images (train-images-idx3-ubyte)", "training labels (train-labels-idx1-ubyte)",
      "test images (t10k-images-idx3-ubyte)", "test labels (t10k-labels-idx1-ubyte)"};
  const auto all = DDP_TRY(gather_values(world, mine.checksums));
  std::array<std::vector<std::uint64_t>, kFiles.size()> files;  // each by rank
  for (const auto& checksums : all)
    for (std::size_t file = 0; file < files.size(); ++file)
      files[file].push_back(checksums[file]);
  const auto differ = [](const auto& values) {
    return std::ranges::count(values, values[0]) != std::ssize(values);
  };
  if (std::ranges::none_of(files, differ)) return {};
  const auto hosts = DDP_TRY(gather_hosts(world));
  const auto rank_text = [&hosts](std::size_t rank) { return concat("rank ", rank, " (", hosts[rank], ")"); };
  for (std::size_t file = 0; file < files.size(); ++file) {
    const std::vector<std::uint64_t>& values = files[file];
    const std::string what = std::string("the ") + kFiles[file] + " of ";
    if (from) {
      const auto own = static_cast<std::size_t>(world.rank()), source = static_cast<std::size_t>(*from);
      if (values[own] == values[source]) continue;
      return usage_error(what, rank_text(own), " have the CRC-32 ", crc32_text(mine.checksums[file]),
                         ", and those of ", rank_text(source), ", with which the training was begun, ",
                         crc32_text(static_cast<std::uint32_t>(values[source])),
                         "; give all nodes the same data");
    }
    if (!differ(values)) continue;
    const std::size_t right = most_frequent(values);
    std::vector<std::string> others;
    for (std::size_t rank = 0; rank < values.size(); ++rank)
      if (values[rank] != values[right]) others.push_back(rank_text(rank));
    return usage_error(what, join_some(others, 8), " are not those of ", rank_text(right),
                       "; give all nodes the same data");
  }
  return {};
}

int kept_epochs(std::size_t images, int world_size, const TrainOptions& options) {
  constexpr std::size_t kSteps = 150;
  const auto whole = [](std::size_t count, std::size_t each) { return (count + each - 1) / each; };
  const auto each = static_cast<std::size_t>(options.batch_size * options.accumulate);
  const std::size_t steps = whole(whole(images, static_cast<std::size_t>(world_size)), each);
  return static_cast<int>(whole(std::min(kSteps, whole(images, each)), std::max<std::size_t>(steps, 1)));
}

Result<> agree_on_epochs(Communicator& world, int from, std::size_t images, bool begun,
                         TrainOptions& options) {
  std::int64_t epochs =
      options.keeps_steps && !begun ? kept_epochs(images, world.world_size(), options) : options.epochs;
  DDP_TRY(world.broadcast(std::as_writable_bytes(std::span(&epochs, 1)), from));
  if (options.keeps_steps) options.epochs = static_cast<int>(epochs);
  return {};
}

namespace {

std::string hash_text(std::uint64_t hash) {
  return format_text("%016" PRIx64, hash);
}

Result<> check_equal(const std::vector<std::uint64_t>& hashes) {
  const std::size_t best = most_frequent(hashes);
  std::string differing;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i] != hashes[best]) differing += concat(" rank ", i, " has ", hash_text(hashes[i]), ",");
  }
  if (differing.empty()) return {};
  return error_of(ErrorCode::kInternal, "weights differ:", differing, " rank ", best, " has ",
                  hash_text(hashes[best]));
}

template <class T>
std::unique_ptr<Model<T>> make_model(const TrainOptions& options, ThreadPool& threads) {
  const bool is_mlp = options.model == ModelKind::kMlp;
  const int width = options.mlp_width, depth = options.mlp_depth, batch = options.batch_size;
  if (options.device == DeviceKind::kGpu) {
    auto there = make_device_model<T>(
        is_mlp ? mlp_layout(width, depth) : conv_net_layout(),
        {batch, options.dtype == Dtype::kBfloat16, options.matmul_precision == MatmulPrecision::kHigh});
    if (!there) throw std::runtime_error(there.error().text);  // contradiction() has found a GPU
    return std::move(*there);
  }
  const auto& table = *kernels::find_kernels<T>(options.kernels);  // contradiction() has found it
  if (is_mlp) return std::make_unique<Mlp<T>>(width, depth, batch, threads, table);
  return std::make_unique<ConvNet<T>>(batch, threads, table);
}

template <class T>
class TypedTrainingRun final : public TrainingRun {
 public:
  TypedTrainingRun(const TrainOptions& options, const DataSplit& data, OnPhase on_phase)
      : options_(options),
        data_(data),
        threads_(options.threads),
        model_(make_model<T>(options, threads_)),
        trainer_(options, *model_, data),
        progress_(options),
        checkpoints_(options, data, trainer_) {
    trainer_.set_phase_handler(std::move(on_phase));
  }

  Result<> run_attempt(const TrainingAttempt& attempt) override {
    const bool spoke = std::exchange(speaks_, attempt.communicators.world->rank() == 0);
    trainer_.attach(attempt.communicators);
    progress_.attach(world().rank(), world().world_size());
    DDP_TRY(check_given(attempt.from));
    DDP_TRY(attempt.from ? continue_from(*attempt.from, spoke) : begin());
    if (attempt.on_ready) attempt.on_ready();
    DDP_TRY(train());
    // One dropped step may be bad luck. A training that has diverged at its end writes nothing.
    DDP_TRY(share_outcome(world(), trainer_.check_dropped(2)));
    DDP_TRY(checkpoints_.finish());
    DDP_TRY(finish());
    if (!options_.profile.empty())
      DDP_TRY(report_profile(world(), trainer_.profile(), options_.profile, traces_));
    const auto verdict = DDP_TRY(make_verdict());
    const auto last_line = DDP_TRY(attempt.last_line ? attempt.last_line() : Result<std::string>(""));
    if (speaks_) {
      const Accuracy& accuracy = marks_.accuracy;
      print_out("test accuracy %.1f %% (%" PRIu64 "/%" PRIu64 ")\n", accuracy.percent(), accuracy.correct,
                accuracy.total);
      print_out("verdict: %s\n", verdict.text.c_str());
      if (!last_line.empty()) print_out("%s\n", last_line.c_str());
    }
    DDP_TRY(verdict.known);
    // A training that lacks only its last checkpoint or its traces has given all results.
    return checkpoints_.last_outcome() ? traces_ : checkpoints_.last_outcome();
  }

  void leave_attempt() override { trainer_.detach(); }

  std::optional<std::uint64_t> held_step() const override {
    if (!held_) return std::nullopt;
    return trainer_.position().step;
  }

 private:
  Communicator& world() const { return *trainer_.communicators().world; }
  int interrupt() const { return trainer_.communicators().interrupt; }

  Result<> check_given(std::optional<int> from) {
    const auto check_data = [&] { return check_equal_data(world(), data_, from); };
    // A joining process with other options or data, or data of another size, leaves and ends no other rank.
    if (from) DDP_TRY(check_data());
    auto equal = check_equal(world(), equal_options(options_, data_), from);
    return equal && !from ? check_data() : equal;
  }

  /// Small gradients gain nothing: their copies stay in the nearest caches anyway.
  void share_gradients() {
    constexpr std::size_t kWorthSharing = 4u << 20;
    if (model_->gradient_bytes() <= kWorthSharing) return;
    if (const auto memory = trainer_.sum_group().share_memory(model_->gradient_bytes()); !memory.empty())
      model_->place_gradients(memory);
  }

  Result<> begin() {
    if (!model_->products_by().empty()) progress_.say("matrix products by " + model_->products_by());
    model_->initialise(static_cast<std::uint64_t>(options_.seed));
    if (!options_.init_from.empty()) {
      const auto read = [this]() -> Result<> {  // the other ranks get the weights by broadcast
        if (!speaks_) return {};
        auto imported = import_model<T>(options_.init_from, *model_);
        if (imported || imported.error().sys == 0) return imported;
        return usage_error(system_error(imported.error().sys, "--init-from " + options_.init_from).text,
                           "; give a safetensors file on the node of rank 0");
      };
      DDP_TRY(share_outcome(world(), read, options_.comm_timeout / 4, interrupt()));
    }
    share_gradients();
    DDP_TRY(open_outputs());
    DDP_TRY(trainer_.share_weights());
    DDP_TRY(checkpoints_.resume([this](const std::string& line) { progress_.say(line); }));
    marks_.world_size = world().world_size();
    marks_.tested_epochs = trainer_.position().epoch;
    held_ = true;
    DDP_TRY(checkpoints_.prepare());
    if (is_complete()) {
      progress_.say("training is already complete: it ended with step " +
                    std::to_string(trainer_.position().step));
      if (!test_due()) return test(trainer_.position().epoch - 1);
    }
    return {};
  }

  /// `spoke`: this rank was rank 0 and has written the records so far.
  Result<> continue_from(int from, bool spoke) {
    share_gradients();
    DDP_TRY(open_outputs());
    trainer_.report_phase("state");
    const std::uint64_t before = held_ && spoke ? trainer_.position().step : 0;
    DDP_TRY(share_state(options_, world(), from, held_, data_.training.size(), trainer_, marks_));
    held_ = true;
    // The last step's record may be missing: another rank 0 may have died before writing it.
    if (marks_.last.total > before) progress_.step(marks_.last);
    const int ranks = world().world_size();
    progress_.say(concat("attempt ", trainer_.communicators().attempt, ": ",
                         counted(ranks, "rank continues", "ranks continue"), " from step ",
                         trainer_.position().step, " (state of rank ", from, ")"));
    return checkpoints_.prepare_again();
  }

  bool at_end() const { return options_.max_steps != 0 && trainer_.position().step >= options_.max_steps; }
  bool is_complete() const { return trainer_.position().epoch >= options_.epochs || at_end(); }

  /// A disk may take longer than the ranks' time limit for silence.
  Result<> open_outputs() {
    const auto open = [this]() -> Result<> {
      DDP_TRY(check_output_paths());
      return progress_.open();
    };
    return share_outcome(world(), open, options_.comm_timeout / 4, interrupt());
  }

  /// Checks at the start that the output files can be written, before hours of work.
  Result<> check_output_paths() {
    DDP_TRY(trainer_.open_sample_log());
    if (speaks_ && !options_.export_to.empty()) DDP_TRY(check_export_path(options_.export_to));
    if (options_.profile.empty()) return {};
    return check_output_path("--profile", profile_path(options_.profile, world()));
  }

  Result<bool> after_step(const StepReport& report) {
    marks_.last = report;
    if (!report.dropped) {
      marks_.epoch_loss += report.loss;
      ++marks_.epoch_steps;
    }
    progress_.step(report);
    if (report.last) return false;
    DDP_TRY(write_before_test());
    return !at_end();
  }

  /// Writes a due checkpoint before the test: the test averages running statistics, which an uninterrupted
  /// training would not do here.
  Result<> write_before_test() {
    const std::uint64_t step = trainer_.position().step;
    const std::uint64_t every = options_.checkpoint_every;
    const bool due = every != 0 && step != 0 && step % every == 0;
    if (!due && !at_end()) return {};
    DDP_TRY(trainer_.average_nodes());
    return checkpoints_.write();
  }

  /// True after the end of an epoch, or of the training, that has not been tested.
  bool test_due() const {
    return trainer_.position().epoch > marks_.tested_epochs ||
           (at_end() && marks_.tested_step != trainer_.position().step);
  }

  /// Does the test and checkpoint that are due at the present step, which may have been made with other
  /// ranks.
  Result<> settle() {
    DDP_TRY(write_before_test());
    const TrainingPosition& position = trainer_.position();
    const bool epoch_begins = position.segment_begin == 0 && position.segment_step == 0 && position.step != 0;
    if (test_due()) DDP_TRY(test(epoch_begins ? position.epoch - 1 : position.epoch));
    if (options_.checkpoint_every != 0 || at_end() || !epoch_begins) return {};
    return checkpoints_.write();
  }

  Result<> train() {
    for (;;) {
      DDP_TRY(settle());
      if (is_complete()) return {};
      epoch_start_ = Clock::now();
      const auto on_step = [this](const StepReport& report) { return after_step(report); };
      DDP_TRY(trainer_.train_epoch(on_step));
    }
  }

  Result<> test(std::int64_t epoch) {
    DDP_TRY(trainer_.average_nodes());
    DDP_TRY(trainer_.average_running_statistics());
    const auto tested = DDP_TRY(trainer_.evaluate());
    marks_.accuracy = tested;
    marks_.tested_epochs = trainer_.position().epoch;
    marks_.tested_step = trainer_.position().step;
    progress_.epoch(epoch, tested, marks_.epoch_loss, marks_.epoch_steps, seconds_since(epoch_start_));
    marks_.epoch_loss = 0;
    marks_.epoch_steps = 0;
    return {};
  }

  /// Equal weights give all ranks the same result.
  Result<> check_finite() {
    Model<T>& model = trainer_.model();
    if (all_finite<T>(model.parameters()) && all_finite<T>(model.running_statistics())) return {};
    return usage_error("the weights after step ", trainer_.position().step,
                       " are not finite: training has diverged; try a smaller --lr");
  }

  Result<> finish() {
    const std::uint64_t mine = trainer_.weights_hash();
    print_out("rank %d weights %s\n", world().rank(), hash_text(mine).c_str());
    const auto hashes = DDP_TRY(of(gather_values(world(), mine), "the weights' hashes"));
    DDP_TRY(check_equal(hashes));
    DDP_TRY(check_finite());
    if (speaks_)
      print_out("weights equal on %s: %s\n", counted(hashes.size(), "rank").c_str(),
                hash_text(hashes[0]).c_str());
    if (options_.export_to.empty()) return {};
    const auto write = [this]() -> Result<> {
      if (!speaks_) return {};
      return export_model<T>(options_.export_to, trainer_.model());
    };
    return share_outcome(world(), write, options_.comm_timeout / 4, interrupt());
  }

  /// All ranks call it. The gradients are lost.
  Result<TrainingVerdict> make_verdict() {
    TrainingVerdict verdict =
        judge_training(options_, data_.checksums, world().world_size(), marks_.accuracy.percent());
    const std::size_t all = model_->gradients().size_bytes();
    const std::size_t bytes = std::min(all, static_cast<std::size_t>(options_.bucket_cap_mb * (1 << 20))) /
                              sizeof(double) * sizeof(double);
    Communicator& ranks = trainer_.sum_group();
    if (ranks.world_size() == 1 || bytes == 0) return verdict;
    // A GPU's sums are inside of a graph, so they are set against the step by their time alone.
    const bool on_gpu = options_.device == DeviceKind::kGpu && ranks.has_device_operations();
    const double alone = DDP_TRY(on_gpu ? time_on_device(bytes) : time_on_host(bytes));
    double step = 0;
    for (std::size_t phase = 0; phase < kPhases; ++phase)
      step += trainer_.profile().percentile(static_cast<Phase>(phase), 0.5);
    if (step <= 0) return verdict;  // a new process joined at the end; it has taken part in the sums
    const double sums = on_gpu ? alone * static_cast<double>(all) / static_cast<double>(bytes)
                               : trainer_.profile().percentile(Phase::kCommunication, 0.5);
    const double factor = 2.0 * (ranks.world_size() - 1) / ranks.world_size();
    verdict.text +=
        format_text("; %.0f %% of a step in collectives%s; all-reduce of %s at %.2f GB/s busbw",
                    100 * sums / step, on_gpu ? " that run alone" : "", format_bytes(bytes).c_str(),
                    static_cast<double>(bytes) * factor / alone / 1e9);
    return verdict;
  }

  static constexpr int kTimedSums = 5;

  /// Returns the seconds of an all-reduce, as the bench measures it: alone.
  Result<double> time_on_host(std::size_t bytes) {
    const std::span<T> values = model_->gradients().first(bytes / sizeof(T));
    DDP_TRY(trainer_.sum_group().all_reduce_sum(values));
    const auto begin = Clock::now();
    for (int i = 0; i < kTimedSums; ++i)
      DDP_TRY(trainer_.sum_group().all_reduce_sum(values));
    return seconds_since(begin) / kTimedSums;
  }
  Result<double> time_on_device(std::size_t bytes) {
    const auto buffer = DDP_TRY(DeviceBuffer::make(trainer_.sum_group(), bytes));
    buffer->choose({CollectiveKind::kAllReduce, buffer->memory().bytes.data(), bytes / sizeof(float),
                    NumberType::kFloat32});
    DDP_TRY(buffer->run());
    DDP_TRY(buffer->replay(kTimedSums));  // captures the graph
    const double microseconds = DDP_TRY(buffer->replay(kTimedSums));
    return 1e-6 * microseconds / kTimedSums;
  }

  const TrainOptions& options_;
  const DataSplit& data_;
  ThreadPool threads_;
  std::unique_ptr<Model<T>> model_;
  bool speaks_ = false;
  Trainer<T> trainer_;
  Progress progress_;
  CheckpointRun<T> checkpoints_;
  bool held_ = false;  ///< this process holds the training's state
  TrainingMarks marks_;
  Clock::time_point epoch_start_ = Clock::now();
  Result<> traces_;  ///< outcome of writing the traces, equal on all ranks
};

}  // namespace

std::unique_ptr<TrainingRun> make_training_run(const TrainOptions& options, const DataSplit& data,
                                               OnPhase on_phase) {
  if (options.dtype == Dtype::kFloat64)
    return std::make_unique<TypedTrainingRun<double>>(options, data, std::move(on_phase));
  return std::make_unique<TypedTrainingRun<float>>(options, data, std::move(on_phase));
}

Result<> run_training(const TrainOptions& options, const TrainingAttempt& attempt, const DataSplit& data,
                      const std::string& control) {
  std::unique_ptr<rendezvous::WorkerClient> link;
  if (!control.empty()) {
    auto connected = rendezvous::WorkerClient::connect(control, false, options.zero);
    if (connected) link = std::move(*connected);
  }
  OnPhase on_phase;
  if (link)
    on_phase = [&link](std::uint64_t step, const char* phase, double loss, double waited) {
      link->at(step, phase, loss, waited);
    };
  return make_training_run(options, data, std::move(on_phase))->run_attempt(attempt);
}

}  // namespace ddp::train
