#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/ddplaunch/options/options.h"
#include "apps/options/option_table.h"

namespace ddp {

/// States how ddplaunch treats an option that is not its own.
enum class SupportStatus {
  kRenamed,  ///< a flag that stands for ddplaunch's option `text` with `value`
  kNoted,    ///< accepted without effect; `text` says why it is not needed
  kRefused,  ///< refused, unless its value asks for nothing; `text` says why, or what to use
};

/// One option of torchrun, DeepSpeed or mpirun, unless ddplaunch has the same one.
struct CompatibilityOption {
  std::string_view name;  ///< with dashes: "--rdzv-id", "-t"
  bool takes_value = false;
  SupportStatus status = SupportStatus::kRefused;
  std::string_view text{};
  /// Of kRefused: the accepted value, empty for none, and NAME=VALUE for --env may follow it.
  std::string_view value{};
};

std::span<const CompatibilityOption> compatibility_options();
/// Returns the row, or nullptr.
const CompatibilityOption* find_compatibility_option(std::string_view name);

/// An option with its value, and the place that gives it.
struct GivenOption {
  std::string name;          ///< one of its names in the table: "--nnodes"
  std::string value;         ///< empty for a flag
  std::string origin;        ///< "command line", "job.yaml:3:10", "PET_NNODES"
  bool in_file = false;      ///< `origin` is a place in a job file or in the user's settings
  bool is_false = false;     ///< a flag that is switched off
  bool in_settings = false;  ///< `origin` is a place in the user's settings
};

/// The options that one source gives, in its order.
using OptionSource = std::vector<GivenOption>;

/// The split arguments.
struct CommandLine {
  OptionSource options;
  std::vector<std::string> worker;  ///< the first positional and all words behind it, byte for byte
  std::string worker_origin = "";   ///< the place in a job file that names the worker
  bool separated = false;           ///< "--" stands before the worker
  bool read_all = true;             ///< false: an option is unknown or lacks its value
  bool scanned_all = true;          ///< false: an unknown option hid the start of the worker
  std::vector<std::string> given;   ///< names of the options as written, dashes only
};

/// Finds the options before the worker: `--opt value`, `--opt=value`, '_' for '-', `--` ends them. Unknown
/// options, missing values, and those of other launchers go to `diagnostics`.
CommandLine scan_command_line(const std::vector<std::string>& args, const OptionTable& table,
                              Diagnostics& diagnostics, const std::string& origin = "command line");

}  // namespace ddp
