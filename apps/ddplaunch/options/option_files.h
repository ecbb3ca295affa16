#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "apps/ddplaunch/options/option_sources.h"
#include "apps/ddplaunch/options/options.h"

namespace ddp {

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
