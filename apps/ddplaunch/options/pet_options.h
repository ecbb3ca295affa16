#pragma once

#include <string>
#include <vector>

#include "apps/ddplaunch/options/findings.h"
#include "launcher/job/env_filter.h"

namespace ddp {

/// torchrun takes each of its options also from a variable PET_<OPTION> (torch/distributed/argparse_util.py).
/// `words` are those that `env` has and the command line has not, ready to stand in front of it.
struct PetOptions {
  std::vector<std::string> words;      ///< "--nnodes=2", "--standalone"
  std::vector<std::string> variables;  ///< "PET_NNODES": where they come from
};

/// `given`: names of the options on the command line, which go before variables. A flag's variable is a
/// number, as torchrun reads it; any other value goes to `findings`. Empty variables count as unset, so do
/// with `alone`, which is --launcher local, those that tell of other nodes.
PetOptions read_pet_options(const launcher::EnvVars& env, const std::vector<std::string>& given, bool alone,
                            Findings& findings);

/// In words for a note, or beside mistakes.
std::string pet_text(const PetOptions& options);

}  // namespace ddp
