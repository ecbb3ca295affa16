#pragma once

#include <yaml-cpp/yaml.h>

#include <optional>
#include <string>

#include "apps/ddplaunch/options/diagnostics.h"

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

}  // namespace ddp
