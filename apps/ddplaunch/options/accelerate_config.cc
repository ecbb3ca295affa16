#include "apps/ddplaunch/options/option_sources.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <optional>
#include <utility>

#include "base/text.h"
#include "remote/hosts/host.h"

namespace ddp {
namespace {

/// The way in which a value becomes text: as Python's str() prints it ("True"), in lower case, or in upper
/// case.
enum class Spelling { kPython, kLower, kUpper };

/// A key of deepspeed_config, and the variable that Accelerate's launcher sets from it.
struct EnvKey {
  std::string_view key;
  std::string_view variable;
  Spelling spelling = Spelling::kPython;
};

/// A section whose keys become variables by a rule: a prefix and the key in upper case.
struct Section {
  std::string_view name;
  std::string_view key_prefix{};  ///< optional prefix of a key, removed from the variable's name
  std::string_view variables{};
  Spelling spelling = Spelling::kPython;
  std::string_view switched_on{};  ///< set to "true" when the section applies; empty: no such variable
  std::string_view type{};         ///< the distributed_type that makes it apply; empty: it applies if it has
                                   ///< keys
};

// The possible content of a file of `accelerate config` (accelerate 1.x, commands/config/config_args.py).

// The source is accelerate/utils/launch.py: prepare_deepspeed_cmd_env.
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

constexpr std::array kSections = {
    Section{"dynamo_config", "dynamo_", "ACCELERATE_DYNAMO_", Spelling::kPython, ""},
    Section{"fp8_config", "fp8_", "ACCELERATE_FP8_", Spelling::kPython, ""},
    Section{"fsdp_config", "fsdp_", "FSDP_", Spelling::kLower, "ACCELERATE_USE_FSDP", "FSDP"},
    Section{"megatron_lm_config", "megatron_lm_", "MEGATRON_LM_", Spelling::kPython,
            "ACCELERATE_USE_MEGATRON_LM", "MEGATRON_LM"},
    Section{"parallelism_config", "parallelism_config_", "PARALLELISM_CONFIG_", Spelling::kPython,
            "ACCELERATE_USE_PARALLELISM_CONFIG"},
};
/// Its keys become variables by kDeepSpeedKeys.
constexpr Section kDeepSpeed{
    .name = "deepspeed_config", .switched_on = "ACCELERATE_USE_DEEPSPEED", .type = "DEEPSPEED"};

/// The keys of the file itself, besides the sections.
constexpr std::array<std::string_view, 29> kKeys = {
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes",
    "machine_rank", "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend",
    "same_network", "enable_cpu_affinity", "deepspeed_config", "mpirun_config", "tpu_name", "tpu_zone",
    "tpu_use_cluster", "tpu_env", "fp16", "dynamo_backend",
    // Every file of `accelerate config` holds these keys; ddplaunch does not use them.
    "main_training_function", "downcast_bf16", "tpu_use_sudo", "tpu_vm", "commands", "command_file",
    "num_cpu_threads_per_process"};

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string spelled(const YAML::Node& node, Spelling spelling) {
  std::string text = node.Scalar();
  if (const auto value = yaml_truth(node)) text = *value ? "True" : "False";
  if (spelling == Spelling::kUpper) return upper(text);
  // Only yes and no become lower case; other words such as SHARDED_STATE_DICT stay.
  return spelling == Spelling::kLower && yaml_truth(node) ? lower_case(text) : text;
}

class AccelerateReader {
 public:
  AccelerateReader(const std::string& file, AccelerateConfig& config, Diagnostics& diagnostics)
      : file_(file), config_(config), diagnostics_(diagnostics) {}

  void read(const YAML::Node& root);

 private:
  using Pair = YAML::const_iterator::value_type;

  void fail(const YAML::Node& node, const std::string& text) { diagnostics_.fail(location(node), text); }
  void note(const std::string& text) { diagnostics_.note(file_ + ": " + text); }
  std::string location(const YAML::Node& node) const { return yaml_location(file_, node) + ": "; }
  YAML::Node given(std::string_view key) const {  ///< undefined if it is missing or empty
    const YAML::Node& root = root_;               // the const operator adds nothing
    const YAML::Node node = root[std::string(key)];
    return node && !node.IsNull() ? node : YAML::Node(YAML::NodeType::Undefined);
  }
  void option(const std::string& name, const std::string& value, const std::string& key) {
    config_.words.push_back(name + '=' + value);
    taken_.push_back(config_.words.back() + " (" + key + ')');
  }
  void set(std::string_view name, std::string_view value) { launcher::set_env(config_.env, name, value); }
  bool is_on(const char* key);
  std::optional<long long> number(const char* key);

  void check_keys();
  void check_zeros(const YAML::Node& node, int levels);
  void read_environment();
  void read_size();
  void read_output_paths();
  void read_precision();
  void read_switches();
  YAML::Node keys_of(const Section& section);
  void read_section(const Section& section);
  void read_deepspeed();
  void read_deepspeed_hosts(const YAML::Node& section);

  const std::string& file_;
  AccelerateConfig& config_;
  Diagnostics& diagnostics_;
  YAML::Node root_;
  std::string type_;                ///< distributed_type
  std::vector<std::string> taken_;  ///< options, for one notice
};

std::optional<long long> AccelerateReader::number(const char* key) {
  const YAML::Node node = given(key);
  if (!node.IsDefined()) return std::nullopt;
  if (node.IsScalar()) {
    if (node.Scalar() == "-1") return -1;
    if (const auto value = whole_number(node.Scalar(), 10'000'000)) return static_cast<long long>(*value);
  }
  fail(node, concat(key, " must be a whole number"));
  return std::nullopt;
}

bool AccelerateReader::is_on(const char* key) {
  const YAML::Node node = given(key);
  if (!node.IsDefined()) return false;
  if (const auto value = yaml_truth(node)) return *value;
  const std::string text = node.IsScalar() ? lower_case(node.Scalar()) : "?";
  if (text == "true" || text == "1") return true;
  if (text != "false" && text != "no" && text != "0" && !text.empty())
    fail(node, concat(key, " must be true or false"));
  return false;
}

// Neither an option nor a variable can hold a zero byte.
void AccelerateReader::check_zeros(const YAML::Node& node, int levels) {
  if (node.IsScalar() && node.Scalar().find('\0') != std::string::npos)
    return fail(node, "a value cannot hold a zero byte");
  if (levels == 0 || node.IsScalar() || node.IsNull()) return;
  for (const Pair& entry : node)
    check_zeros(node.IsMap() ? entry.second : entry, levels - 1);
}

void AccelerateReader::check_keys() {
  std::vector<std::string_view> known(kKeys.begin(), kKeys.end());
  for (const Section& section : kSections)
    known.push_back(section.name);
  for (const Pair& entry : root_) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (std::ranges::count(known, key) > 0) continue;
    const std::string_view near = nearest_word(key, known);
    fail(entry.first, "\"" + key + "\" is not a known key of accelerate" +
                          (near.empty() ? "; remove it" : concat("; did you mean ", near, '?')));
  }
}

void AccelerateReader::read_environment() {
  const YAML::Node where = given("compute_environment");
  if (where.IsDefined() && where.Scalar() != "LOCAL_MACHINE")
    fail(where, "compute_environment " + where.Scalar() + ": only LOCAL_MACHINE can be launched from here");
  const YAML::Node type = given("distributed_type");
  if (!type.IsDefined()) {
    diagnostics_.fail(file_ + ": distributed_type is missing; is it a file of accelerate config?");
    return;
  }
  if (!type.IsScalar()) return fail(type, "distributed_type must be one word");
  type_ = type.Scalar();
  constexpr std::array<std::string_view, 13> kTypes = {
      "NO",        "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU",   "MULTI_SDAA",  "MULTI_MUSA",
      "MULTI_XPU", "MULTI_HPU", "DEEPSPEED", "FSDP",      "MEGATRON_LM", "MULTI_NEURON"};
  if (type_ == "XLA" || type_ == "TPU" || is_on("tpu_use_cluster")) {
    fail(type, "TPUs are launched by accelerate itself, not by ddplaunch");
  } else if (std::ranges::count(kTypes, type_) == 0) {
    fail(type, "distributed_type " + type_ + " is not supported");
  }
  if (const YAML::Node env = given("tpu_env"); env.size() > 0)
    fail(env, "tpu_env: TPUs are launched by accelerate itself, not by ddplaunch");
}

// num_processes is the total over all machines, which get equal shares. The number of machines may also be
// given on the command line.
void AccelerateReader::read_size() {
  const auto total = number("num_processes");
  const auto machines = number("num_machines");
  if (machines && *machines < 1) return fail(given("num_machines"), "num_machines must be at least 1");
  if (machines) option("--nnodes", std::to_string(*machines), "num_machines");
  if (!total || *total == -1) return;
  const YAML::Node node = given("num_processes");
  if (*total < 1) return fail(node, "num_processes must be at least 1");
  config_.processes = total;
  config_.processes_place = location(node);
  taken_.push_back(counted(*total, "worker") + " in all (num_processes)");
}

void AccelerateReader::read_output_paths() {
  if (const auto port = number("main_process_port"); port && *port > 0)
    option("--master-port", std::to_string(*port), "main_process_port");
  if (given("main_process_ip").IsDefined())
    note(
        "main_process_ip has no effect: MASTER_ADDR is node 0's address on the network that all nodes share "
        "(--network)");
  if (const auto rank = number("machine_rank"); rank && *rank > 0)
    note("machine_rank has no effect: one ddplaunch starts all nodes, ranked as the hosts are listed");
  if (const YAML::Node backend = given("rdzv_backend"); backend.IsDefined() && backend.Scalar() != "static")
    note("rdzv_backend " + backend.Scalar() + " has no effect: ddplaunch has one rendezvous of its own");
  if (const YAML::Node same = given("same_network"); same.IsDefined() && yaml_truth(same) == false)
    note("same_network: false has no effect: nodes join over the connection that starts them");
  const YAML::Node ids = given("gpu_ids");
  if (!ids.IsDefined()) return;
  if (!ids.IsScalar()) return fail(ids, "gpu_ids must be one word, such as 0,1");
  if (ids.Scalar() == "all") return;
  remote::Expansion list = remote::expand_ids(ids.Scalar());
  if (list.error) return fail(ids, "gpu_ids: " + list.error->message);
  config_.devices = std::move(list.words);
  config_.devices_place = location(ids);
}

void AccelerateReader::read_precision() {
  YAML::Node node = given("mixed_precision");
  if (node.IsDefined() && !node.IsScalar())
    return fail(node, "mixed_precision must be one word; accelerate supports no, fp16, bf16 and fp8");
  std::string precision = node.IsDefined() ? lower_case(node.Scalar()) : "no";
  if (!node.IsDefined() && is_on("fp16")) precision = "fp16";
  if (yaml_truth(node) == false) precision = "no";
  if (precision != "no" && precision != "fp16" && precision != "bf16" && precision != "fp8")
    return fail(node, "mixed_precision " + precision + ": accelerate supports no, fp16, bf16 and fp8");
  set("ACCELERATE_MIXED_PRECISION", precision);
}

void AccelerateReader::read_switches() {
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

/// Returns an undefined node, which has no keys, for a section that does not apply.
YAML::Node AccelerateReader::keys_of(const Section& section) {
  const YAML::Node none(YAML::NodeType::Undefined);
  const YAML::Node node = given(section.name);
  if (node.IsDefined() && !node.IsMap())
    return fail(node, concat(section.name, " must have keys below it")), none;
  const bool empty = node.size() == 0;
  // The type alone makes the choice, as in accelerate; its section may be missing.
  const bool chosen = section.type.empty() ? !empty : section.type == type_;
  if (chosen && !section.switched_on.empty()) set(section.switched_on, "true");
  if (chosen) return node;
  // The file may hold sections of an earlier choice.
  if (!empty) note(concat(section.name, " has no effect with distributed_type ", type_));
  return none;
}

void AccelerateReader::read_section(const Section& section) {
  for (const Pair& entry : keys_of(section)) {
    std::string key = entry.first.Scalar();
    if (key.empty() || !is_variable_name(concat(section.variables, key))) {
      fail(entry.first, concat(section.name, ": \"", key, "\" cannot be the name of a variable"));
      continue;
    }
    if (entry.second.IsNull()) continue;
    if (key.starts_with(section.key_prefix)) key.erase(0, section.key_prefix.size());
    if (key == "override_linear_precision" && entry.second.IsSequence() && entry.second.size() == 3) {
      const char* const ends[] = {"FPROP", "DGRAD", "WGRAD"};
      for (std::size_t i = 0; i < 3; ++i)
        set(concat("ACCELERATE_FP8_OVERRIDE_", ends[i]), spelled(entry.second[i], section.spelling));
      continue;
    }
    if (!entry.second.IsScalar()) {
      fail(entry.second, concat(section.name, ": ", entry.first.Scalar(), " must be one word or number"));
      continue;
    }
    if (key == "transformer_layer_cls_to_wrap") key = "transformer_cls_to_wrap";
    if (key == "backward_prefetch_policy") key = "backward_prefetch";
    const bool in_capitals = section.name == "dynamo_config" && key == "backend";
    set(concat(section.variables, upper(key)),
        spelled(entry.second, in_capitals ? Spelling::kUpper : section.spelling));
  }
}

void AccelerateReader::read_deepspeed_hosts(const YAML::Node& section) {
  const auto read_option = [&](const char* key, const char* name) {
    const YAML::Node node = section[key];
    if (node && node.IsScalar() && !node.IsNull() && !node.Scalar().empty()) option(name, node.Scalar(), key);
  };
  read_option("deepspeed_hostfile", "--hostfile");
  read_option("deepspeed_inclusion_filter", "--include");
  read_option("deepspeed_exclusion_filter", "--exclude");
  const YAML::Node launcher = section["deepspeed_multinode_launcher"];
  if (!launcher || !launcher.IsScalar()) return;
  const std::string name = launcher.Scalar();
  if (name == "slurm") {
    option("--launcher", "slurm", "deepspeed_multinode_launcher");
  } else if (name != "pdsh") {
    note("deepspeed_multinode_launcher " + name + " has no effect: one ddplaunch starts all nodes over SSH");
  }
}

void AccelerateReader::read_deepspeed() {
  const YAML::Node section = keys_of(kDeepSpeed);
  if (type_ != kDeepSpeed.type) return;
  read_deepspeed_hosts(section);
  std::vector<std::string> fields;
  for (const Pair& entry : section) {
    const std::string& key = fields.emplace_back(entry.first.Scalar());
    const auto* const found = std::ranges::find(kDeepSpeedKeys, key, &EnvKey::key);
    if (found != kDeepSpeedKeys.end() && entry.second.IsScalar()) {
      const std::string text = spelled(entry.second, Spelling::kPython);
      set(found->variable, found->spelling == Spelling::kLower ? lower_case(text) : text);
    }
  }
  if (given("mixed_precision").IsDefined()) fields.emplace_back("mixed_precision");
  set("ACCELERATE_CONFIG_DS_FIELDS", lower_case(join(fields, ",")));
}

void AccelerateReader::read(const YAML::Node& root) {
  if (!root.IsMap()) {
    diagnostics_.fail(file_ + ": it holds no keys; is it a file of accelerate config?");
    return;
  }
  root_ = root;
  check_keys();
  for (const Pair& entry : root_) {
    if (entry.second.IsMap()) refuse_duplicate_keys(file_, entry.second, diagnostics_);
  }
  refuse_duplicate_keys(file_, root_, diagnostics_);
  check_zeros(root_, 3);
  read_environment();
  read_size();
  read_output_paths();
  read_precision();
  read_switches();
  for (const Section& section : kSections)
    read_section(section);
  read_deepspeed();
  if (!taken_.empty()) {
    const std::string taken = join(taken_, ", ");
    note("it stands for " + taken + "; options on the command line take precedence");
    diagnostics_.advice.push_back(file_ + " stands for " + taken);
  }
}

}  // namespace

AccelerateConfig read_accelerate_config(const std::string& text, const std::string& file,
                                        Diagnostics& diagnostics) {
  AccelerateConfig config;
  const auto root = read_yaml(text, file, "a file of accelerate config has only one", diagnostics);
  if (root) AccelerateReader(file, config, diagnostics).read(*root);
  return config;
}

}  // namespace ddp
