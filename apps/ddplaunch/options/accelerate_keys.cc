#include "apps/ddplaunch/options/accelerate_keys.h"

#include <array>

namespace ddp {
namespace {

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

constexpr std::array<std::string_view, 29> kKeys = {
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes",
    "machine_rank", "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend",
    "same_network", "enable_cpu_affinity", "deepspeed_config", "mpirun_config", "tpu_name", "tpu_zone",
    "tpu_use_cluster", "tpu_env", "fp16", "dynamo_backend",
    // Every file of `accelerate config` holds these keys; ddplaunch does not use them.
    "main_training_function", "downcast_bf16", "tpu_use_sudo", "tpu_vm", "commands", "command_file",
    "num_cpu_threads_per_process"};

}  // namespace

std::span<const EnvKey> deepspeed_keys() {
  return kDeepSpeedKeys;
}

std::span<const Section> accelerate_sections() {
  return kSections;
}

std::span<const std::string_view> accelerate_keys() {
  return kKeys;
}

}  // namespace ddp
