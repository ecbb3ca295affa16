#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/ddplaunch/options/options.h"
#include "launcher/job/worker_env.h"

namespace ddp {

/// num_processes: the workers on all machines together.
struct AccelerateProcesses {
  long long total = 0;   ///< at least 1
  std::string location;  ///< "FILE:LINE:COLUMN: ", for errors that depend on the hosts
};

/// The content of a file of `accelerate config`, as ddplaunch's options (docs/users/migrating.md has the
/// table of keys).
struct AccelerateConfig {
  std::vector<std::string> words;  ///< options: "--nnodes=2"
  launcher::EnvVars env;           ///< variables that Accelerate's own launcher would set
  std::optional<AccelerateProcesses> processes;
  std::vector<std::string> devices;  ///< gpu_ids, for every host without its own devices
  std::string devices_place;         ///< "FILE:LINE:COLUMN: "
};

/// Reads `text`, YAML or JSON, from `file`. Every key of accelerate 1.x is honored, translated, noted without
/// effect, or refused. Any other key is an error with its place, as in Accelerate.
AccelerateConfig read_accelerate_config(const std::string& text, const std::string& file,
                                        Diagnostics& diagnostics);

}  // namespace ddp
