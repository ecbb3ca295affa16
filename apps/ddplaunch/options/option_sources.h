#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "apps/ddplaunch/options/options.h"
#include "apps/options/option_table.h"
#include "launcher/job/worker_env.h"

namespace ddp {

// ---- the command line

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

/// The split arguments, or a file that says the same.
struct CommandLine {
  OptionSource options;
  std::vector<std::string> worker;  ///< the first positional and all words behind it, byte for byte
  std::string worker_origin = "";   ///< "job.yaml:7:9", the place in a job file that names the worker
  bool separated = false;           ///< "--" stands before the worker
  bool read_all = true;             ///< false: an option is unknown or lacks its value
  bool scanned_all = true;          ///< false: an unknown option hid the start of the worker
  std::vector<std::string> given;   ///< names of the options as written, dashes only
};

/// Finds the options before the worker: `--opt value`, `--opt=value`, '_' for '-', `--` ends them. Unknown
/// options, missing values, and those of other launchers go to `diagnostics`.
CommandLine scan_command_line(const std::vector<std::string>& args, const OptionTable& table,
                              Diagnostics& diagnostics, const std::string& origin = "command line");

// ---- which source counts

/// Decides which source of an option counts. `sources` begin with the strongest one:
///   1. the command line
///   2. the job file (--job-file)
///   3. torchrun's variables (PET_NNODES)
///   4. the file of --accelerate-config
///   5. the user's settings (~/.config/ddplaunch/config.yaml)
/// Variables of a scheduler and the defaults are weaker. Other functions apply them to options that the
/// result lacks.
///
/// An option replaces the same option of weaker sources, and those that cannot be used beside it: --host
/// replaces --hostfile. An option that may be repeated adds to the weaker sources instead; --host does not.
/// The result begins with the weakest source, so that the last value counts.
OptionSource choose_options(const std::vector<OptionSource>& sources, const OptionTable& table);

/// Returns the words of the options for OptionTable::fill().
std::vector<std::string> option_words(const OptionSource& options, const OptionTable& table);

/// Returns the part of --dry-run that lists each option and its origin. It has no value of a variable and no
/// text of a script. `worker` is the place that names the worker; empty: the command line.
std::string origins_text(const OptionSource& options, const OptionTable& table, const std::string& worker);

// ---- files

/// Reads a truth value of YAML 1.1, as Python's yaml does. A quoted value is a string.
std::optional<bool> yaml_truth(const YAML::Node& node);

/// Returns "FILE:LINE:COLUMN", or "FILE" if the node has no place.
std::string yaml_location(const std::string& file, const YAML::Node& node);

/// Reports each key that a map has twice. YAML forbids them, and readers differ in the value that they take.
void refuse_duplicate_keys(const std::string& file, const YAML::Node& map, Diagnostics& diagnostics);

/// Reads the only document of `text`; YAML includes JSON. A further document is an error that ends with
/// `only`: "a job file has only one". Returns nullopt if the text is no YAML. An empty text is a null node.
std::optional<YAML::Node> read_yaml(const std::string& text, const std::string& file, const std::string& only,
                                    Diagnostics& diagnostics);

/// A job file describes one job: any option, and the worker. The user's settings hold for all jobs, so they
/// have no options about hosts or one job, and no worker.
enum class OptionFileKind { kJob, kSettings };

/// Reads `text`, a YAML map of option names without dashes to values (docs/users/config.md). Each mistake
/// goes to `diagnostics` with its place: unknown names, wrong values, keys that are given twice.
CommandLine read_option_file(const std::string& text, const std::string& file, OptionFileKind kind,
                             Diagnostics& diagnostics);

/// Returns the name that files have for an option: "nnodes".
std::string_view name_in_file(const Option& option);

/// Returns whether a file of this kind may have the option.
bool belongs_in_file(const Option& option, OptionFileKind kind);

// ---- files of Accelerate (accelerate_config.cc)

/// The content of a file of `accelerate config`, as ddplaunch's options (docs/users/migrating.md has the
/// table of keys).
struct AccelerateConfig {
  std::vector<std::string> words;      ///< options: "--nnodes=2"
  launcher::EnvVars env;               ///< variables that Accelerate's own launcher would set
  std::optional<long long> processes;  ///< num_processes: the workers on all machines together, at least 1
  std::string processes_place;         ///< "FILE:LINE:COLUMN: ", for errors that depend on the hosts
  std::vector<std::string> devices;    ///< gpu_ids, for every host without its own devices
  std::string devices_place;           ///< "FILE:LINE:COLUMN: "
};

/// Reads `text`, YAML or JSON, from `file`. Every key of accelerate 1.x is honored, translated, noted without
/// effect, or refused. Any other key is an error with its place, as in Accelerate.
AccelerateConfig read_accelerate_config(const std::string& text, const std::string& file,
                                        Diagnostics& diagnostics);

}  // namespace ddp
