#include "apps/ddplaunch/options/pet_options.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace ddp {
namespace {

struct PetOption {
  std::string_view name;    ///< torchrun's long name
  bool is_flag = false;     ///< its variable is 0 or 1
  std::string_view ours{};  ///< another name that means the same on the command line
};

// Of torch/distributed/run.py those with the actions `env` and `check_env`.
constexpr std::array kPetOptions = {
    PetOption{"--nnodes", false, "--num-nodes"},
    PetOption{"--nproc-per-node", false, "--num-gpus"},
    PetOption{"--rdzv-backend"},
    PetOption{"--rdzv-endpoint", false, "--master-addr"},
    PetOption{"--rdzv-id", false, "--job-id"},
    PetOption{"--rdzv-conf"},
    PetOption{"--standalone", true, "--launcher"},
    PetOption{"--max-restarts"},
    PetOption{"--monitor-interval"},
    PetOption{"--start-method"},
    PetOption{"--event-log-handler"},
    PetOption{"--role"},
    PetOption{"--module", true, "-m"},
    PetOption{"--no-python", true},
    PetOption{"--run-path", true},
    PetOption{"--log-dir"},
    PetOption{"--redirects", false, "-r"},
    PetOption{"--tee", false, "-t"},
    PetOption{"--log-line-prefix-template", false, "--label"},
    PetOption{"--local-ranks-filter"},
    PetOption{"--duplicate-stdout-filters"},
    PetOption{"--duplicate-stderr-filters"},
    PetOption{"--node-rank"},
    PetOption{"--master-addr", false, "--rdzv-endpoint"},
    PetOption{"--master-port"},
    PetOption{"--local-addr"},
    PetOption{"--logs-specs"},
    PetOption{"--numa-binding"},
    PetOption{"--signals-to-handle"},
    PetOption{"--shutdown-timeout", false, "--stop-grace"},
    PetOption{"--virtual-local-rank", true},
};

/// What the pods of a job are told of each other.
constexpr std::array<std::string_view, 4> kOfNodes = {"--nnodes", "--node-rank", "--master-addr",
                                                      "--master-port"};

std::string variable_of(std::string_view option) {
  std::string name = "PET_";
  for (const char c : option.substr(2))
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

// As int() of Python reads the usual spellings; torchrun takes any number but zero for yes.
bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

PetOptions read_pet_options(const launcher::EnvVars& env, const std::vector<std::string>& given, bool alone,
                            Findings& findings) {
  PetOptions options;
  const auto is_given = [&](std::string_view name) {
    return !name.empty() && std::find(given.begin(), given.end(), name) != given.end();
  };
  const std::string* nodes = launcher::find_env(env, "PET_NNODES");
  const bool only_node = nodes != nullptr && (*nodes == "1" || *nodes == "1:1");
  for (const PetOption& option : kPetOptions) {
    // The only pod of its job: its own name is where the ranks meet anyway.
    if (only_node && option.name == "--master-addr") continue;
    if (alone && std::find(kOfNodes.begin(), kOfNodes.end(), option.name) != kOfNodes.end()) continue;
    const std::string variable = variable_of(option.name);
    const std::string* value = launcher::find_env(env, variable);
    if (value == nullptr || value->empty() || is_given(option.name) || is_given(option.ours)) continue;
    if (!option.is_flag) {
      options.words.push_back(std::string(option.name) + '=' + *value);
    } else if (!is_number(*value)) {
      findings.fail(variable + '=' + *value + ": give 1 for " + std::string(option.name) +
                    ", or 0; torchrun reads a number there, too");
      continue;
    } else if (value->find_first_not_of('0') == std::string::npos) {
      continue;
    } else {
      options.words.emplace_back(option.name);
    }
    options.variables.push_back(variable);
  }
  return options;
}

std::string pet_text(const PetOptions& options) {
  std::string text;
  for (const std::string& name : options.variables)
    text += (text.empty() ? "" : ", ") + name;
  return "options taken from the environment, as torchrun takes them: " + text;
}

}  // namespace ddp
