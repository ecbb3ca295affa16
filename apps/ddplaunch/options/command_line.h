#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/ddplaunch/options/options.h"
#include "apps/options/option_table.h"

namespace ddp {

/// The options of torchrun, DeepSpeed, accelerate and mpirun that ddplaunch knows and does not have.
std::span<const CompatibilityOption> compatibility_options();

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
