#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/options/option_table.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "apps/train/model/model.h"
#include "apps/train/schedule/schedule.h"
#include "base/result.h"

namespace ddp::train {

template <class Options>
struct ParsedCommand {
  std::optional<Options> options;  ///< empty: help or errors were printed
  int exit_code = 0;               ///< 0 after --help and --version, 2 after errors
};

/// Declares -h, --help and --version.
void declare_help(OptionTable& table);

/// Prints all errors to stderr, each after the command's name: "train bench: ". Returns the exit code.
int refuse(const std::string& command, const std::vector<std::string>& errors);

/// Reads the words behind `argv[0]` into the fields of `table`, and prints help, the version or all errors.
/// Returns the exit code if the program ends then. `complete` is called if there is no error. It returns a
/// contradiction between the options; empty: none.
std::optional<int> read_command_line(const std::string& command, OptionTable& table, int argc,
                                     const char* const* argv, const std::function<std::string()>& complete);

/// Returns the options that `declare` declares, for their pages.
template <class Options>
std::vector<OptionGroup> option_groups(void (*declare)(OptionTable& table, Options& options)) {
  Options options;
  OptionTable table("", true);
  declare(table, options);
  return table.groups();
}

/// As read_command_line. `complete` may also derive options that were not given.
template <class Options>
ParsedCommand<Options> parse_command(const std::string& command, const char* usage,
                                     void (*declare)(OptionTable& table, Options& options),
                                     std::string (*complete)(const OptionTable& table, Options& options),
                                     int argc, const char* const* argv) {
  Options options;
  OptionTable table(usage, true);
  declare(table, options);
  const auto ended =
      read_command_line(command, table, argc, argv, [&] { return complete ? complete(table, options) : ""; });
  return ended ? ParsedCommand<Options>{std::nullopt, *ended} : ParsedCommand<Options>{options, 0};
}

/// kBfloat16: a GPU stores activations, their gradients and the weights for computing in bfloat16. Sums,
/// gradients of weights, optimizer and master weights are float32.
enum class Dtype : std::uint8_t { kFloat32, kFloat64, kBfloat16 };
/// kHigh: a library's products of float32 matrices may use TF32.
enum class MatmulPrecision : std::uint8_t { kHighest, kHigh };
/// kAuto: take_device() chooses.
enum class ModelKind : std::uint8_t { kConvNet, kMlp, kAuto };
enum class DeviceKind : std::uint8_t { kCpu, kGpu, kAuto };
enum class BarMode : std::uint8_t { kAuto, kAlways, kNever };

/// Fault injection: this rank puts a nan into its gradient of this step (from 1).
struct InjectedNan {
  int rank = 0;
  std::uint64_t step = 0;
};

/// How ranks meet: alike in train, train bench and train health.
struct BackendOptions {
  DeviceKind device = DeviceKind::kAuto;  ///< kAuto until the ranks have chosen (world/run_choice.h)
  CommKind comm = CommKind::kAuto;
  std::chrono::milliseconds comm_timeout{60'000};
  bool share_gpu = false;  ///< several ranks on one GPU, over NCCL; train health has no such option
};

struct TrainOptions : BackendOptions, BatchPlan {
  std::string data = "auto";  ///< directory, "synthetic", or "auto" (NodeData)
  std::size_t limit = 0;      ///< training images over all ranks; 0: all
  ModelKind model = ModelKind::kAuto;
  int mlp_width = 512;
  int mlp_depth = 2;  ///< hidden layers
  Dtype dtype = Dtype::kFloat32;
  MatmulPrecision matmul_precision = MatmulPrecision::kHighest;
  int epochs = 1;
  std::uint64_t max_steps = 0;  ///< 0: all of the epochs
  bool keeps_steps = false;     ///< the user left the length open: agree_on_epochs() sets `epochs`
  int threads = 1;
  std::string kernels;  ///< instruction set; empty: the best

  UpdateSettings update;
  LrSchedule lr;
  bool chooses_lr = false;  ///< the user left the rate to take_device()
  bool sync_bn = false;
  bool zero = false;  ///< ZeRO-1
  double bucket_cap_mb = 25;
  double first_bucket_mb = 1;
  int sync_every_inter = 1;  ///< steps between two averages over the nodes

  std::string init_from, export_to;    ///< safetensors files; empty: none
  std::string checkpoint_dir;          ///< empty: none are written
  std::uint64_t checkpoint_every = 0;  ///< steps; 0: at the end of each epoch
  int checkpoint_keep = 3;
  std::string resume;  ///< checkpoint, or directory of them; "auto": the last of checkpoint_dir, if any

  int log_interval = 50;  ///< steps between two progress lines
  BarMode bar = BarMode::kAuto;
  std::string metrics_file;  ///< JSON lines; empty: none
  std::string profile;       ///< Chrome trace; empty: none
  std::string sample_log;    ///< directory for lists of each rank's samples; empty: none
  std::optional<InjectedNan> inject_nan;
  std::string flight_recorder;  ///< directory for the last operations of ranks when one is lost; empty: none
  std::string read_flight_recorder;  ///< analyze the logs in this directory instead of training; empty: train
  bool rejoin = false;               ///< a rank that loses a peer goes on in the same process
};

ParsedCommand<TrainOptions> parse_options(int argc, const char* const* argv);

/// Returns the options of --help, for the documents.
std::vector<OptionGroup> train_option_groups();
/// Declares the options of train. Their defaults are the values of `options`.
void declare_options(OptionTable& table, TrainOptions& options);

/// Declares --comm, --share-gpu and the timeout, which train and train bench have alike. `auto_help` says
/// what --comm auto means.
void declare_backend(OptionTable& table, const std::string& auto_help, BackendOptions& options,
                     std::string timeout_names);
/// Declares --json, the file of train bench and train health for their result.
void declare_json(OptionTable& table, std::string& file);
/// The values of --device and --comm.
const std::vector<std::pair<std::string, DeviceKind>>& device_words();
const std::vector<std::pair<std::string, CommKind>>& comm_words();

/// Returns a contradiction between the options, or a need that this world or processor cannot meet; empty:
/// none. It runs before anything starts.
std::string contradiction(const TrainOptions& options, int world_size);

/// Sets the device that the ranks have chosen, and the model of --model auto. Returns a line about a model
/// that the user did not name; empty: there is none.
std::string take_device(DeviceKind device, TrainOptions& options);

/// Returns the option that requires a GPU: "--dtype bfloat16"; empty: none.
std::string gpu_option(const TrainOptions& options);

/// Returns why these options cannot run on a GPU: "--sync-bn cannot be used with …"; empty: they can.
std::string device_obstacle(const TrainOptions& options);

/// An option that all ranks must be given alike, as text. Lists that differ only in values are a usage error.
struct EqualOption {
  std::string name;
  std::string value;
};
using EqualOptions = std::vector<EqualOption>;

/// Returns the options of a table that are declared `equal`: those that change what ranks compute or send
/// together. A path only counts as given or not given: nodes may use other places.
EqualOptions equal_options(const OptionTable& table);
/// Returns the options of train that are declared `equal`, and the size of the data.
EqualOptions equal_options(TrainOptions options, const DataSplit& data);

/// Returns the options that differ from the training with this model whose result was measured: "--lr 0.5".
/// An option counts unless it is known to change no result, so a new one counts. A chosen length of the
/// training counts too. Empty: none differs.
std::vector<std::string> unusual_options(TrainOptions options);

struct TrainingVerdict {
  std::string text;
  Result<> known;  ///< the error if the known result was not reached
};
/// Compares the share of test images that are right with what was measured with these options, on data with
/// these CRC-32s and so many ranks. Says why if nothing was.
TrainingVerdict judge_training(const TrainOptions& options, const std::array<std::uint32_t, 4>& checksums,
                               int world, double percent);

/// Removes the text up to the first `end` or, without one, all of it. Returns it without `end`.
std::string take_field(std::string_view& text, char end = '\n');

/// to_text() makes the text for another rank. difference() returns the first difference from rank `other`:
/// "--seed is 4 on rank 1 and 3 on rank 0; give all ranks the same value". Empty: none.
std::string to_text(const EqualOptions& options);
std::string difference(const EqualOptions& mine, int rank, std::string_view text_of_other, int other = 0);

/// Returns the same error (kUsage) on all ranks if a rank differs from rank 0. With `from`, the rank whose
/// state continues the training, only the ranks that differ from that rank get an error; the others then lose
/// them. All ranks call it.
Result<> check_equal(Communicator& world, const EqualOptions& mine, std::optional<int> from = std::nullopt);

inline std::string given_text(bool given) {
  return given ? "given" : "not given";
}
const char* comm_text(CommKind comm);
const char* device_text(DeviceKind device);

}  // namespace ddp::train
