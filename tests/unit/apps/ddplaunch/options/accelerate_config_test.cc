#include "apps/ddplaunch/options/option_sources.h"

#include <string>
#include <utility>

#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::AccelerateConfig;
using ddp::Diagnostics;
using ddp::read_accelerate_config;
using ddp::test::Env;
using ddp::test::FakeContext;
using ddp::test::Texts;

namespace {

Texts accelerate_errors(const std::string& text) {
  Diagnostics diagnostics;
  read_accelerate_config(text, "f.yaml", diagnostics);
  return diagnostics.errors;
}

AccelerateConfig good(const std::string& text, Texts* notes = nullptr) {
  Diagnostics diagnostics;
  AccelerateConfig config = read_accelerate_config(text, "f.yaml", diagnostics);
  CHECK(diagnostics.errors == Texts{});
  if (notes != nullptr) *notes = diagnostics.notes;
  return config;
}

// The output of `accelerate config` 1.x for two machines with eight GPUs each.
constexpr char kTwoMachines[] = R"(compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_process_ip: 10.0.0.1
main_process_port: 29500
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
)";

}  // namespace

TEST_CASE("A configuration file of accelerate gives size, port and precision") {
  Texts notes;
  const AccelerateConfig config = good(kTwoMachines, &notes);
  CHECK(config.words == Texts{"--nnodes=2", "--master-port=29500"});
  REQUIRE(config.processes.has_value());
  CHECK(config.processes == 16);
  CHECK(config.env == Env{{"ACCELERATE_MIXED_PRECISION", "bf16"}});
  CHECK(config.devices.empty());
  CHECK(notes == Texts{"ddplaunch: f.yaml: main_process_ip has no effect: MASTER_ADDR is node 0's address on "
                       "the network that all nodes share (--network)",
                       "ddplaunch: f.yaml: it stands for --nnodes=2 (num_machines), 16 workers in all "
                       "(num_processes), --master-port=29500 (main_process_port); options on the command "
                       "line take precedence"});
}

TEST_CASE("JSON is read as well") {
  const AccelerateConfig config = good(
      R"({"distributed_type": "MULTI_CPU", "num_processes": 4, "use_cpu": true, "mixed_precision": "no"})");
  CHECK(config.words == Texts{});
  CHECK(config.processes == 4);
  CHECK(config.env == Env{{"ACCELERATE_MIXED_PRECISION", "no"}, {"ACCELERATE_USE_CPU", "true"}});
}

TEST_CASE("The DeepSpeed section gives hosts and ACCELERATE_DEEPSPEED variables") {
  Texts notes;
  const AccelerateConfig config = good(R"(distributed_type: DEEPSPEED
mixed_precision: fp16
num_machines: 2
num_processes: 4
deepspeed_config:
  deepspeed_hostfile: /etc/hosts.ds
  deepspeed_inclusion_filter: 'a:0,1@b'
  deepspeed_multinode_launcher: openmpi
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: none
  zero3_init_flag: true
  zero_stage: 3
)",
                                       &notes);
  CHECK(config.words == Texts{"--nnodes=2", "--hostfile=/etc/hosts.ds", "--include=a:0,1@b"});
  CHECK(
      config.env ==
      Env{{"ACCELERATE_MIXED_PRECISION", "fp16"},
          {"ACCELERATE_USE_DEEPSPEED", "true"},
          {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"},
          {"ACCELERATE_GRADIENT_CLIPPING", "1.0"},
          {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none"},
          {"ACCELERATE_DEEPSPEED_ZERO3_INIT", "true"},
          {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"},
          {"ACCELERATE_CONFIG_DS_FIELDS",
           "deepspeed_hostfile,deepspeed_inclusion_filter,deepspeed_multinode_launcher,gradient_accumulation_"
           "steps,gradient_clipping,offload_optimizer_device,zero3_init_flag,zero_stage,mixed_precision"}});
  CHECK(notes.front() ==
        "ddplaunch: f.yaml: deepspeed_multinode_launcher openmpi has no effect: one ddplaunch "
        "starts all nodes over SSH");
}

TEST_CASE("FSDP, Megatron, parallelism, FP8 and dynamo become the variables of accelerate's launcher") {
  const AccelerateConfig config = good(R"(distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_version: 2
dynamo_config:
  dynamo_backend: inductor
  dynamo_use_fullgraph: false
fp8_config:
  backend: TE
  override_linear_precision: [false, true, false]
parallelism_config:
  parallelism_config_dp_shard_size: 2
megatron_lm_config:
  megatron_lm_tp_degree: 2
)");
  CHECK(config.env == Env{{"ACCELERATE_MIXED_PRECISION", "no"},
                          {"ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"},
                          {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"},
                          {"ACCELERATE_FP8_BACKEND", "TE"},
                          {"ACCELERATE_FP8_OVERRIDE_FPROP", "False"},
                          {"ACCELERATE_FP8_OVERRIDE_DGRAD", "True"},
                          {"ACCELERATE_FP8_OVERRIDE_WGRAD", "False"},
                          {"ACCELERATE_USE_FSDP", "true"},
                          {"FSDP_ACTIVATION_CHECKPOINTING", "false"},
                          {"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"},
                          {"FSDP_CPU_RAM_EFFICIENT_LOADING", "true"},
                          {"FSDP_TRANSFORMER_CLS_TO_WRAP", "LlamaDecoderLayer"},
                          {"FSDP_VERSION", "2"},
                          {"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
                          {"PARALLELISM_CONFIG_DP_SHARD_SIZE", "2"}});
}

TEST_CASE("distributed_type alone chooses FSDP and Megatron, with or without the section") {
  const Env fsdp = {{"ACCELERATE_MIXED_PRECISION", "no"}, {"ACCELERATE_USE_FSDP", "true"}};
  for (const char* section : {"", "fsdp_config: {}\n", "fsdp_config:\n"}) {
    INFO(section);
    CHECK(good(std::string("distributed_type: FSDP\n") + section).env == fsdp);
  }
  CHECK(good("distributed_type: MEGATRON_LM\nmegatron_lm_config: {}\n").env ==
        Env{{"ACCELERATE_MIXED_PRECISION", "no"}, {"ACCELERATE_USE_MEGATRON_LM", "true"}});
  CHECK(good("distributed_type: MULTI_GPU\nparallelism_config: {}\n").env ==
        Env{{"ACCELERATE_MIXED_PRECISION", "no"}});
}

TEST_CASE("A section of another distributed_type is reported as a notice") {
  Texts notes;
  const AccelerateConfig config = good(
      "distributed_type: MULTI_GPU\ndeepspeed_config:\n  deepspeed_hostfile: /h\nfsdp_config:\n"
      "  fsdp_version: 2\nmegatron_lm_config: {}\n",
      &notes);
  CHECK(config.words == Texts{});
  CHECK(config.env == Env{{"ACCELERATE_MIXED_PRECISION", "no"}});
  CHECK(notes == Texts{"ddplaunch: f.yaml: fsdp_config has no effect with distributed_type MULTI_GPU",
                       "ddplaunch: f.yaml: deepspeed_config has no effect with distributed_type MULTI_GPU"});
}

TEST_CASE("A name or value that no variable can have is an error before the start") {
  CHECK(accelerate_errors("distributed_type: FSDP\nfsdp_config:\n  \"fsdp_x=y z\": 1\n") ==
        Texts{"ddplaunch: f.yaml:3:3: fsdp_config: \"fsdp_x=y z\" cannot be the name of a variable"});
  CHECK(accelerate_errors("distributed_type: FSDP\nfsdp_config:\n  fsdp_x: \"a\\0b\"\n") ==
        Texts{"ddplaunch: f.yaml:3:11: a value cannot hold a zero byte"});
  CHECK(accelerate_errors("distributed_type: NO\nuse_cpu: maybe\ndebug: [1]\n") ==
        Texts{"ddplaunch: f.yaml:2:10: use_cpu must be true or false",
              "ddplaunch: f.yaml:3:8: debug must be true or false"});
  for (const char* off : {"'no'", "'False'", "0", "false", "''"})
    CHECK(good(std::string("distributed_type: NO\nuse_cpu: ") + off + '\n').env ==
          Env{{"ACCELERATE_MIXED_PRECISION", "no"}});
}

TEST_CASE("An unsupported or wrong entry is reported with its line and column") {
  CHECK(accelerate_errors("distributed_type: XLA\n") ==
        Texts{"ddplaunch: f.yaml:1:19: TPUs are launched by accelerate itself, not by ddplaunch"});
  CHECK(
      accelerate_errors("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\n") ==
      Texts{
          "ddplaunch: f.yaml:1:22: compute_environment AMAZON_SAGEMAKER: only LOCAL_MACHINE can be launched "
          "from here"});
  CHECK(accelerate_errors("distributed_type: NO\nnum_procesess: 4\n") ==
        Texts{"ddplaunch: f.yaml:2:1: \"num_procesess\" is not a known key of accelerate; did "
              "you mean "
              "num_processes?"});
  CHECK(
      accelerate_errors("distributed_type: NO\nfsdp_config:\n  a: 1\n  a: 2\ndebug: false\ndebug: true\n") ==
      Texts{"ddplaunch: f.yaml:4:3: a is given twice (first on line 3)",
            "ddplaunch: f.yaml:6:1: debug is given twice (first on line 5)"});
  CHECK(accelerate_errors("---\ndistributed_type: NO\n---\ndistributed_type: MULTI_GPU\n") ==
        Texts{"ddplaunch: f.yaml:4:1: a second document begins here (after ---); a file of accelerate config "
              "has only one"});
  CHECK(accelerate_errors("---\ndistributed_type: NO\n...\n---\n") == Texts{});
  CHECK(accelerate_errors(
            "distributed_type: MULTI_GPU\nnum_processes: many\nmixed_precision: int4\ngpu_ids: '0,0'\n") ==
        Texts{"ddplaunch: f.yaml:2:16: num_processes must be a whole number",
              "ddplaunch: f.yaml:4:10: gpu_ids: 0 is given twice",
              "ddplaunch: f.yaml:3:18: mixed_precision int4: accelerate supports no, fp16, bf16 and fp8"});
  CHECK(accelerate_errors("num_processes: 4\n") ==
        Texts{"ddplaunch: f.yaml: distributed_type is missing; is it a file of accelerate config?"});
}

TEST_CASE("A file of another shape is reported, not guessed at") {
  const std::string no_keys = "ddplaunch: f.yaml: it holds no keys; is it a file of accelerate config?";
  const std::pair<const char*, Texts> cases[] = {
      {"", {no_keys}},
      {"- a\n", {no_keys}},
      {"word", {no_keys}},
      {"1: 2\n? [x]\n: y\n",
       {"ddplaunch: f.yaml:1:1: \"1\" is not a known key of accelerate; remove it",
        "ddplaunch: f.yaml:2:3: \"\" is not a known key of accelerate; remove it",
        "ddplaunch: f.yaml: distributed_type is missing; is it a file of accelerate config?"}},
      {"distributed_type: [NO]\n", {"ddplaunch: f.yaml:1:19: distributed_type must be one word"}},
      {"distributed_type: {a: b}\n", {"ddplaunch: f.yaml:1:19: distributed_type must be one word"}},
      {"distributed_type: NO\nfsdp_config: 3\nnum_machines: {}\n",
       {"ddplaunch: f.yaml:3:15: num_machines must be a whole number",
        "ddplaunch: f.yaml:2:14: fsdp_config must have keys below it"}},
      {"distributed_type: NO\nmixed_precision: [a]\ngpu_ids: [0, 1]\nrdzv_backend: {}\n",
       {"ddplaunch: f.yaml:3:10: gpu_ids must be one word, such as 0,1",
        "ddplaunch: f.yaml:2:18: mixed_precision must be one word; accelerate supports no, fp16, bf16 and "
        "fp8"}},
  };
  for (const auto& [text, errors] : cases) {
    INFO(text);
    CHECK(accelerate_errors(text) == errors);
  }
  const Texts unreadable = accelerate_errors("a: [1\nb: 2\n");  // the reason is the YAML library's text
  REQUIRE(unreadable.size() == 1);
  CHECK(unreadable[0].starts_with("ddplaunch: f.yaml:2:"));
  CHECK(unreadable[0].find(": it cannot be read as YAML: ") != std::string::npos);
}

TEST_CASE("The command line and PET_ variables override --accelerate-config") {
  FakeContext world;
  world.files["c.yaml"] = kTwoMachines;
  const auto job = world.job({"--accelerate-config", "c.yaml", "--host", "a:8,b:8", "train.py"});
  CHECK(job.spec.max_nodes == 2);
  CHECK(job.spec.nproc.number == 8);
  CHECK(job.spec.master_port == 29500);
  CHECK(job.spec.explicit_env == Env{{"ACCELERATE_MIXED_PRECISION", "bf16"}});
  const auto fewer = world.spec({"--config_file=c.yaml", "--host", "a:8,b:8", "--nproc-per-node", "4",
                                 "--env", "ACCELERATE_MIXED_PRECISION=no", "train.py"});
  CHECK(fewer.nproc.number == 4);
  CHECK(fewer.explicit_env == Env{{"ACCELERATE_MIXED_PRECISION", "no"}});
  world.env.emplace_back("PET_NPROC_PER_NODE", "2");
  CHECK(world.spec({"--accelerate-config", "c.yaml", "--host", "a,b", "w"}).nproc.number == 2);
  CHECK(world.errors({"--accelerate-config", "none.yaml", "w"}) ==
        Texts{"ddplaunch: --accelerate-config none.yaml: No such file or directory",
              "ddplaunch: options taken from the environment, as torchrun takes them: PET_NPROC_PER_NODE"});
}

TEST_CASE("More processes than slots, or machines without names, are reported with their origin") {
  FakeContext world;
  world.files["c.yaml"] = kTwoMachines;
  const Texts errors = world.errors({"--accelerate-config", "c.yaml", "--host", "a:8,b:4", "w"});
  REQUIRE(errors.size() == 2);
  CHECK(errors[0] ==
        "ddplaunch: --nproc-per-node 8 is more than the slots: b (--host) has 4; ask for fewer, raise "
        "slots= there, or add --oversubscribe");
  CHECK(errors[1] ==
        "ddplaunch: c.yaml stands for --nnodes=2 (num_machines), 16 workers in all (num_processes), "
        "--master-port=29500 (main_process_port)");
  CHECK(world.errors({"--accelerate-config", "c.yaml", "w"})
            .front()
            .starts_with("ddplaunch: --nnodes 2 needs hosts: --hostfile FILE or --host LIST names them"));
}

TEST_CASE("gpu_ids apply to hosts that name no devices; a given host list replaces the file's") {
  FakeContext world;
  world.files["c.yaml"] =
      "distributed_type: DEEPSPEED\ngpu_ids: 1,3\ndeepspeed_config:\n  deepspeed_hostfile: ds\n";
  world.files["ds"] = "a slots=2\nb slots=2 gpus=0,2\n";
  const auto spec = world.spec({"--accelerate-config", "c.yaml", "w"});
  REQUIRE(spec.hosts.size() == 2);
  CHECK(spec.hosts[0].devices == Texts{"1", "3"});
  CHECK(spec.hosts[1].devices == Texts{"0", "2"});
  CHECK(world.spec({"--accelerate-config", "c.yaml", "--host", "x:2", "w"}).hosts[0].name == "x");
}

TEST_CASE("num_processes is the total over all hosts, for any number of hosts") {
  FakeContext world;
  world.files["c.yaml"] = "distributed_type: MULTI_GPU\nnum_processes: 6\n";
  const auto nproc = [&](const Texts& args) {
    Texts all{"--accelerate-config", "c.yaml"};
    all.insert(all.end(), args.begin(), args.end());
    all.emplace_back("w");
    return world.spec(all).nproc.number;
  };
  CHECK(nproc({}) == 6);
  CHECK(nproc({"--host", "a,b,c"}) == 2);
  CHECK(nproc({"--host", "a,b,c", "--nnodes", "2"}) == 3);
  CHECK(nproc({"--host", "a,b,c,d", "--exclude", "d"}) == 2);
  CHECK(nproc({"--host", "a,b,c", "--nproc-per-node", "6"}) == 6);
  CHECK(world.errors({"--accelerate-config", "c.yaml", "--host", "a,b,c,d", "w"}).front() ==
        "ddplaunch: c.yaml:2:16: num_processes 6 is the total and cannot be divided evenly among 4 machines; "
        "correct it, or remove it and give each host slots= in the hostfile");
  world.files["c.yaml"] = "distributed_type: MULTI_GPU\nnum_machines: 3\nnum_processes: 16\n";
  CHECK(world.errors({"--accelerate-config", "c.yaml", "--host", "a,b,c", "w"}).front() ==
        "ddplaunch: c.yaml:3:16: num_processes 16 is the total and cannot be divided evenly among 3 "
        "machines; correct it, or remove it and give each host slots= in the hostfile");
}

TEST_CASE("Too few gpu_ids for num_processes are an error") {
  FakeContext world;
  world.files["c.yaml"] = "distributed_type: MULTI_GPU\nnum_processes: 6\ngpu_ids: 0,1\n";
  CHECK(
      world.errors({"--accelerate-config", "c.yaml", "--host", "a,b", "w"}).front() ==
      "ddplaunch: c.yaml:3:10: gpu_ids names 2 devices, but each machine gets 3 workers; name one for each, "
      "or add --oversubscribe");
  CHECK(world.spec({"--accelerate-config", "c.yaml", "--host", "a,b,c", "w"}).nproc.number == 2);
  CHECK(world.spec({"--accelerate-config", "c.yaml", "--host", "a,b", "--oversubscribe", "w"}).nproc.number ==
        3);
}
