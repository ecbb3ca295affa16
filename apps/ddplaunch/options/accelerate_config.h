#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/ddplaunch/options/diagnostics.h"
#include "launcher/job/env_filter.h"

namespace ddp {

/// num_processes: workers on all machines together.
struct AccelerateProcesses {
  long long total = 0;   ///< at least 1
  std::string location;  ///< "FILE:LINE:COLUMN: ", for what the hosts make wrong of it
};

/// What a file of `accelerate config` says, in our words (docs/migrating.md has the table of its keys).
struct AccelerateConfig {
  std::vector<std::string> words;  ///< options, to stand before those of the command line: "--nnodes=2"
  launcher::EnvVars env;           ///< what Accelerate's own launcher would set for the workers
  std::optional<AccelerateProcesses> processes;
  std::vector<std::string> devices;  ///< gpu_ids, for every host that names none itself
  std::string devices_place;         ///< "FILE:LINE:COLUMN: "
};

/// `text` is YAML or JSON, read from `file`. Every key of accelerate 1.x is honoured, translated, noted
/// without effect, or refused; one that is none of them is a mistake with its place, as for Accelerate.
AccelerateConfig read_accelerate_config(const std::string& text, const std::string& file,
                                        Diagnostics& diagnostics);

/// Its words without those that the options `given` on the command line replace, or leave no room for.
std::vector<std::string> accelerate_arguments(const AccelerateConfig& config,
                                              const std::vector<std::string>& given);

}  // namespace ddp
