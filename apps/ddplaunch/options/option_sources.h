#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "apps/ddplaunch/options/command_line.h"
#include "apps/ddplaunch/options/options.h"
#include "apps/options/option_table.h"

namespace ddp {

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

/// Returns the last value of an option, or an empty text.
std::string last_value(const OptionSource& options, std::string_view name);

/// Returns the part of --dry-run that lists each option and its origin. It has no value of a variable and no
/// text of a script. `worker` is the place that names the worker; empty: the command line.
std::string origins_text(const OptionSource& options, const OptionTable& table, const std::string& worker);

/// Reads a truth value of YAML 1.1, as Python's yaml does. A quoted value is a string.
std::optional<bool> yaml_truth(const YAML::Node& node);

/// Returns "FILE:LINE:COLUMN: ", or "FILE: " if the node has no place.
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

/// The content of an option file.
struct OptionFile {
  OptionSource options;
  std::vector<std::string> worker;  ///< the worker and its arguments; empty: the file has none
  std::string worker_origin;        ///< "job.yaml:7:9"
};

/// Reads `text`, a YAML map of option names without dashes to values (docs/users/config.md). Each mistake
/// goes to `diagnostics` with its place: unknown names, wrong values, keys that are given twice.
OptionFile read_option_file(const std::string& text, const std::string& file, OptionFileKind kind,
                            Diagnostics& diagnostics);

/// Returns the name that files have for an option: "nnodes".
std::string name_in_file(const Option& option);

/// Returns whether a file of this kind may have the option of this group of --help.
bool belongs_in_file(const Option& option, std::string_view group, OptionFileKind kind);

}  // namespace ddp
