#include "apps/ddplaunch/accelerate_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>

#include "remote/host_range.h"
#include "remote/nearest_word.h"

namespace ddp {
namespace {

using launcher::EnvVars;

/// How a value becomes text: as Python's str() has it ("True"), in small letters, or in capitals.
enum class Spelling { kPython, kLower, kUpper };

struct EnvKey {
  std::string_view key;
  std::string_view variable;
  Spelling spelling = Spelling::kPython;
};

// accelerate/utils/launch.py: prepare_deepspeed_cmd_env.
constexpr std::array kDeepSpeedKeys = {
    EnvKey{"zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE"},
    EnvKey{"gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"},
    EnvKey{"gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING", Spelling::kLower},
    EnvKey{"offload_optimizer_device", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", Spelling::kLower},
    EnvKey{"offload_param_device", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", Spelling::kLower},
    EnvKey{"offload_optimizer_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH"},
    EnvKey{"offload_param_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"},
    EnvKey{"zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT", Spelling::kLower},
    EnvKey{"zero3_save_16bit_model", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", Spelling::kLower},
    EnvKey{"deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE"},
    EnvKey{"deepspeed_moe_layer_cls_names", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"},
};

/// Sections whose keys become variables by a rule: prefix and the key in capitals.
struct Section {
  std::string_view name;
  std::string_view key_prefix;  ///< that a key may have and the variable's name has not
  std::string_view variables;
  Spelling spelling;
  std::string_view switched_on;  ///< set to "true" when the section counts; empty: no such variable
};
constexpr std::array kSections = {
    Section{"dynamo_config", "dynamo_", "ACCELERATE_DYNAMO_", Spelling::kPython, ""},
    Section{"fp8_config", "fp8_", "ACCELERATE_FP8_", Spelling::kPython, ""},
    Section{"fsdp_config", "fsdp_", "FSDP_", Spelling::kLower, "ACCELERATE_USE_FSDP"},
    Section{"megatron_lm_config", "megatron_lm_", "MEGATRON_LM_", Spelling::kPython,
            "ACCELERATE_USE_MEGATRON_LM"},
    Section{"parallelism_config", "parallelism_config_", "PARALLELISM_CONFIG_", Spelling::kPython,
            "ACCELERATE_USE_PARALLELISM_CONFIG"},
};

// What every file of `accelerate config` holds and nothing here depends on.
constexpr std::array<std::string_view, 7> kWithoutMeaning = {
    "main_training_function",     "downcast_bf16", "tpu_use_sudo", "tpu_vm", "commands", "command_file",
    "num_cpu_threads_per_process"};
constexpr std::array<std::string_view, 22> kOtherKeys = {"compute_environment",
                                                         "distributed_type",
                                                         "mixed_precision",
                                                         "use_cpu",
                                                         "debug",
                                                         "num_processes",
                                                         "machine_rank",
                                                         "num_machines",
                                                         "gpu_ids",
                                                         "main_process_ip",
                                                         "main_process_port",
                                                         "rdzv_backend",
                                                         "same_network",
                                                         "enable_cpu_affinity",
                                                         "deepspeed_config",
                                                         "mpirun_config",
                                                         "tpu_name",
                                                         "tpu_zone",
                                                         "tpu_use_cluster",
                                                         "tpu_env",
                                                         "fp16",
                                                         "dynamo_backend"};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

/// YAML 1.1's, as Python's yaml reads them. Quoted, they are words.
std::optional<bool> truth(const YAML::Node& node) {
  if (!node.IsScalar() || node.Tag() == "!") return std::nullopt;
  const std::string text = lower(node.Scalar());
  if (text == "true" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "no" || text == "off") return false;
  return std::nullopt;
}

std::string spelled(const YAML::Node& node, Spelling spelling) {
  std::string text = node.Scalar();
  if (const auto value = truth(node)) text = *value ? "True" : "False";
  if (spelling == Spelling::kUpper) return upper(text);
  // Of words, only the yes and no are in small letters: SHARDED_STATE_DICT stays.
  return spelling == Spelling::kLower && truth(node) ? lower(text) : text;
}

class Reader {
 public:
  Reader(const std::string& file, AccelerateConfig& config, Findings& findings)
      : file_(file), config_(config), findings_(findings) {}

  void read(const YAML::Node& root);

 private:
  using Pair = YAML::const_iterator::value_type;

  void fail(const YAML::Node& node, const std::string& text) { findings_.fail(place(node) + text); }
  void note(const std::string& text) { findings_.note(file_ + ": " + text); }
  std::string place(const YAML::Node& node) const {
    const YAML::Mark mark = node.Mark();
    return file_ +
           (mark.is_null() ? ""
                           : ':' + std::to_string(mark.line + 1) + ':' + std::to_string(mark.column + 1)) +
           ": ";
  }
  YAML::Node given(const char* key) const {  ///< undefined when it is missing or empty
    const YAML::Node& root = root_;          // the const operator adds nothing
    const YAML::Node node = root[key];
    return node && !node.IsNull() ? node : YAML::Node(YAML::NodeType::Undefined);
  }
  void option(const std::string& name, const std::string& value, const std::string& key) {
    config_.words.push_back(name + '=' + value);
    taken_ += (taken_.empty() ? "" : ", ") + name + '=' + value + " (" + key + ')';
  }
  void set(std::string_view name, std::string_view value) { launcher::set_env(config_.env, name, value); }
  bool is_on(const char* key) {
    const YAML::Node node = given(key);
    return node.IsDefined() && truth(node).value_or(node.IsScalar() && lower(node.Scalar()) == "true");
  }
  std::optional<long long> number(const char* key);

  void check_keys();
  void read_environment();
  void read_size();
  void read_places();
  void read_precision();
  void read_switches();
  void read_section(const Section& section);
  void read_deepspeed();
  void read_deepspeed_hosts(const YAML::Node& section);

  const std::string& file_;
  AccelerateConfig& config_;
  Findings& findings_;
  YAML::Node root_;
  std::string type_;   ///< distributed_type
  std::string taken_;  ///< options, for one note
};

std::optional<long long> Reader::number(const char* key) {
  const YAML::Node node = given(key);
  if (!node.IsDefined()) return std::nullopt;
  if (node.IsScalar()) {
    if (node.Scalar() == "-1") return -1;
    if (const auto value = remote::whole_number(node.Scalar(), 10'000'000))
      return static_cast<long long>(*value);
  }
  fail(node, std::string(key) + " must be a whole number");
  return std::nullopt;
}

void Reader::check_keys() {
  std::vector<std::string_view> known(kOtherKeys.begin(), kOtherKeys.end());
  known.insert(known.end(), kWithoutMeaning.begin(), kWithoutMeaning.end());
  for (const Section& section : kSections)
    known.push_back(section.name);
  for (const Pair& entry : root_) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string_view near = remote::nearest_word(key, known);
    fail(entry.first, "\"" + key + "\" is no key of accelerate's that is known here" +
                          (near.empty() ? "; take it out" : "; did you mean " + std::string(near) + "?"));
  }
}

void Reader::read_environment() {
  const YAML::Node where = given("compute_environment");
  if (where.IsDefined() && where.Scalar() != "LOCAL_MACHINE")
    fail(where, "compute_environment " + where.Scalar() + ": only LOCAL_MACHINE can be launched from here");
  const YAML::Node type = given("distributed_type");
  if (!type.IsDefined()) {
    findings_.fail(file_ + ": distributed_type is missing; is it a file of accelerate config?");
    return;
  }
  type_ = type.Scalar();
  constexpr std::array<std::string_view, 13> kTypes = {
      "NO",        "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU",   "MULTI_SDAA",  "MULTI_MUSA",
      "MULTI_XPU", "MULTI_HPU", "DEEPSPEED", "FSDP",      "MEGATRON_LM", "MULTI_NEURON"};
  if (type_ == "XLA" || type_ == "TPU" || is_on("tpu_use_cluster")) {
    fail(type, "TPUs are launched by accelerate itself, not by ddplaunch");
  } else if (std::find(kTypes.begin(), kTypes.end(), type_) == kTypes.end()) {
    fail(type, "distributed_type " + type_ + " is not known here");
  }
  if (const YAML::Node env = given("tpu_env"); env.IsDefined() && env.size() > 0)
    fail(env, "tpu_env: TPUs are launched by accelerate itself, not by ddplaunch");
}

// num_processes is the total; accelerate gives each machine the same share of it.
void Reader::read_size() {
  const auto total = number("num_processes");
  const auto machines = number("num_machines");
  if (machines && *machines < 1) return fail(given("num_machines"), "num_machines must be at least 1");
  const long long nodes = machines.value_or(1);
  if (machines) option("--nnodes", std::to_string(nodes), "num_machines");
  if (!total || *total == -1) return;
  if (*total < 1) return fail(given("num_processes"), "num_processes must be at least 1");
  if (*total % nodes != 0) {
    return fail(given("num_processes"),
                "num_processes " + std::to_string(*total) + " is the total and cannot be divided among " +
                    std::to_string(nodes) +
                    " machines evenly; correct it, or leave it out and give each host its "
                    "slots in the hostfile");
  }
  option("--nproc-per-node", std::to_string(*total / nodes), "num_processes");
}

void Reader::read_places() {
  if (const auto port = number("main_process_port"); port && *port > 0)
    option("--master-port", std::to_string(*port), "main_process_port");
  if (given("main_process_ip").IsDefined())
    note(
        "main_process_ip has no effect: ranks meet at node 0's address on the network all share (--network)");
  if (const auto rank = number("machine_rank"); rank && *rank > 0)
    note("machine_rank has no effect: one ddplaunch starts all nodes, ranked as the hosts are listed");
  if (const YAML::Node backend = given("rdzv_backend"); backend.IsDefined() && backend.Scalar() != "static")
    note("rdzv_backend " + backend.Scalar() + " has no effect: ddplaunch has one rendezvous of its own");
  if (const YAML::Node same = given("same_network"); same.IsDefined() && truth(same) == false)
    note("same_network: false has no effect: nodes join over the connection that starts them");
  const YAML::Node ids = given("gpu_ids");
  if (!ids.IsDefined() || ids.Scalar() == "all") return;
  remote::Expansion list = remote::expand_ids(ids.Scalar());
  if (list.error) return fail(ids, "gpu_ids: " + list.error->message);
  config_.devices = std::move(list.words);
}

void Reader::read_precision() {
  YAML::Node node = given("mixed_precision");
  std::string precision = node.IsDefined() ? lower(node.Scalar()) : "no";
  if (!node.IsDefined() && is_on("fp16")) precision = "fp16";
  if (truth(node) == false) precision = "no";
  if (precision != "no" && precision != "fp16" && precision != "bf16" && precision != "fp8")
    return fail(node, "mixed_precision " + precision + ": accelerate knows no, fp16, bf16 and fp8");
  set("ACCELERATE_MIXED_PRECISION", precision);
}

void Reader::read_switches() {
  if (is_on("use_cpu")) set("ACCELERATE_USE_CPU", "true");
  if (is_on("debug")) set("ACCELERATE_DEBUG_MODE", "true");
  if (is_on("enable_cpu_affinity")) set("ACCELERATE_CPU_AFFINITY", "1");
  if (const YAML::Node backend = given("dynamo_backend"); backend.IsDefined())
    set("ACCELERATE_DYNAMO_BACKEND", upper(backend.Scalar()));
  if (const YAML::Node mpi = given("mpirun_config"); mpi.IsDefined() && mpi.IsMap()) {
    const YAML::Node hosts = mpi["mpirun_hostfile"];
    if (hosts && hosts.IsScalar()) option("--hostfile", hosts.Scalar(), "mpirun_hostfile");
  }
}

void Reader::read_section(const Section& section) {
  const YAML::Node node = given(std::string(section.name).c_str());
  if (!node.IsDefined()) return;
  if (!node.IsMap()) return fail(node, std::string(section.name) + " must have keys below it");
  if (node.size() == 0) return;
  // The file may hold sections of an earlier choice.
  if (section.name == "fsdp_config" && type_ != "FSDP") return;
  if (section.name == "megatron_lm_config" && type_ != "MEGATRON_LM") return;
  if (!section.switched_on.empty()) set(section.switched_on, "true");
  for (const Pair& entry : node) {
    std::string key = entry.first.Scalar();
    if (entry.second.IsNull()) continue;
    if (key.starts_with(section.key_prefix)) key.erase(0, section.key_prefix.size());
    if (key == "override_linear_precision" && entry.second.IsSequence() && entry.second.size() == 3) {
      const char* const ends[] = {"FPROP", "DGRAD", "WGRAD"};
      for (std::size_t i = 0; i < 3; ++i)
        set("ACCELERATE_FP8_OVERRIDE_" + std::string(ends[i]), spelled(entry.second[i], section.spelling));
      continue;
    }
    if (!entry.second.IsScalar()) {
      fail(entry.second,
           std::string(section.name) + ": " + entry.first.Scalar() + " must be one word or number");
      continue;
    }
    if (key == "transformer_layer_cls_to_wrap") key = "transformer_cls_to_wrap";
    if (key == "backward_prefetch_policy") key = "backward_prefetch";
    const bool in_capitals = section.name == "dynamo_config" && key == "backend";
    set(std::string(section.variables) + upper(key),
        spelled(entry.second, in_capitals ? Spelling::kUpper : section.spelling));
  }
}

void Reader::read_deepspeed_hosts(const YAML::Node& section) {
  const auto take = [&](const char* key, const char* name) {
    const YAML::Node node = section[key];
    if (node && node.IsScalar() && !node.IsNull() && !node.Scalar().empty()) option(name, node.Scalar(), key);
  };
  take("deepspeed_hostfile", "--hostfile");
  take("deepspeed_inclusion_filter", "--include");
  take("deepspeed_exclusion_filter", "--exclude");
  const YAML::Node launcher = section["deepspeed_multinode_launcher"];
  if (!launcher || !launcher.IsScalar()) return;
  const std::string name = launcher.Scalar();
  if (name == "slurm") {
    option("--launcher", "slurm", "deepspeed_multinode_launcher");
  } else if (name != "pdsh") {
    note("deepspeed_multinode_launcher " + name + " has no effect: one ddplaunch starts all nodes over SSH");
  }
}

void Reader::read_deepspeed() {
  const YAML::Node section = given("deepspeed_config");
  if (type_ != "DEEPSPEED") return;
  set("ACCELERATE_USE_DEEPSPEED", "true");
  std::string fields;
  if (section.IsDefined() && !section.IsMap())
    return fail(section, "deepspeed_config must have keys below it");
  if (section.IsDefined()) {
    read_deepspeed_hosts(section);
    for (const Pair& entry : section) {
      const std::string key = entry.first.Scalar();
      fields += (fields.empty() ? "" : ",") + key;
      const auto found = std::find_if(kDeepSpeedKeys.begin(), kDeepSpeedKeys.end(),
                                      [&](const EnvKey& row) { return row.key == key; });
      if (found != kDeepSpeedKeys.end() && entry.second.IsScalar()) {
        const std::string text = spelled(entry.second, Spelling::kPython);
        set(found->variable, found->spelling == Spelling::kLower ? lower(text) : text);
      }
    }
  }
  if (given("mixed_precision").IsDefined())
    fields += (fields.empty() ? "" : ",") + std::string("mixed_precision");
  set("ACCELERATE_CONFIG_DS_FIELDS", lower(fields));
}

void Reader::read(const YAML::Node& root) {
  if (!root.IsMap()) {
    findings_.fail(file_ + ": it holds no keys; is it a file of accelerate config?");
    return;
  }
  root_ = root;
  check_keys();
  read_environment();
  read_size();
  read_places();
  read_precision();
  read_switches();
  for (const Section& section : kSections)
    read_section(section);
  read_deepspeed();
  if (!taken_.empty()) {
    note("it stands for " + taken_ + "; options on the command line go before them");
    findings_.advice.push_back(file_ + " stands for " + taken_);
  }
}

// Options of one group stand for each other.
constexpr std::array<std::array<std::string_view, 3>, 2> kGroups = {
    {{"--hostfile", "--host", "--hosts-from"}, {"--include", "--exclude", ""}}};

}  // namespace

std::vector<std::string> accelerate_words(const AccelerateConfig& config,
                                          const std::vector<std::string>& given) {
  const auto is_given = [&](std::string_view name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  std::vector<std::string> words;
  for (const std::string& word : config.words) {
    const std::string_view name = std::string_view(word).substr(0, word.find('='));
    bool replaced = is_given(name);
    for (const auto& group : kGroups) {
      if (std::find(group.begin(), group.end(), name) != group.end())
        replaced = replaced || std::any_of(group.begin(), group.end(), is_given);
    }
    if (!replaced) words.push_back(word);
  }
  return words;
}

AccelerateConfig read_accelerate_config(const std::string& text, const std::string& file,
                                        Findings& findings) {
  AccelerateConfig config;
  try {
    Reader(file, config, findings).read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    findings.fail(file +
                  (error.mark.is_null() ? ""
                                        : ':' + std::to_string(error.mark.line + 1) + ':' +
                                              std::to_string(error.mark.column + 1)) +
                  ": it cannot be read as YAML: " + error.msg);
    return {};
  }
  return config;
}

}  // namespace ddp
