#include "launcher/job/worker_env.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <string>

#include "base/text.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

// The world of the contract test: node 0 with 2 workers, node 1 with 3.
WorkerFacts unequal_world(std::uint32_t node_rank, std::uint32_t local_rank) {
  WorkerFacts facts;
  facts.spawn.first_rank = node_rank == 0 ? 0 : 2;
  facts.local_rank = local_rank;
  facts.spawn.world_size = 5;
  facts.spawn.local_world_size = node_rank == 0 ? 2 : 3;
  facts.spawn.node_rank = node_rank;
  facts.spawn.nodes = 2;
  facts.spawn.master_addr = "10.0.0.1";
  facts.spawn.master_port = 31000;
  facts.job_id = "j-20260101-abcd";
  facts.spawn.attempt = 1;
  facts.spawn.max_restarts = 3;
  facts.error_file = "/tmp/ddp/error.json";
  facts.omp_threads = 4;
  facts.spawn.interface_name = "eth0";
  return facts;
}

std::map<std::string, std::string> as_map(const EnvVars& vars) {
  std::map<std::string, std::string> made;
  for (const auto& [name, value] : vars) {
    INFO(name);
    REQUIRE(made.emplace(name, value).second);  // each name occurs once
  }
  return made;
}

TEST_CASE("the environment of every rank of an uneven world is complete") {
  for (int node_rank = 0; node_rank < 2; ++node_rank) {
    for (int local_rank = 0; local_rank < (node_rank == 0 ? 2 : 3); ++local_rank) {
      const std::string rank = std::to_string((node_rank == 0 ? 0 : 2) + local_rank);
      const std::string node = std::to_string(node_rank);
      const std::string local_size = node_rank == 0 ? "2" : "3";
      const std::map<std::string, std::string> expected{
          {"RANK", rank},
          {"LOCAL_RANK", std::to_string(local_rank)},
          {"WORLD_SIZE", "5"},
          {"LOCAL_WORLD_SIZE", local_size},
          {"GROUP_RANK", node},
          {"GROUP_WORLD_SIZE", "2"},
          {"ROLE_RANK", rank},
          {"ROLE_NAME", "default"},
          {"ROLE_WORLD_SIZE", "5"},
          {"MASTER_ADDR", "10.0.0.1"},
          {"MASTER_PORT", "31000"},
          {"TORCHELASTIC_RUN_ID", "j-20260101-abcd"},
          {"TORCHELASTIC_RESTART_COUNT", "1"},
          {"TORCHELASTIC_MAX_RESTARTS", "3"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_ERROR_FILE", "/tmp/ddp/error.json"},
          {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
          {"NCCL_ASYNC_ERROR_HANDLING", "1"},
          {"NODE_RANK", node},
          {"CROSS_RANK", node},
          {"CROSS_SIZE", "2"},
          {"LOCAL_SIZE", local_size},
          {"DDPLAUNCH_JOB_ID", "j-20260101-abcd"},
          {"OMP_NUM_THREADS", "4"},
          {"PYTHONUNBUFFERED", "1"},
          {"NCCL_SOCKET_IFNAME", "=eth0"},
          {"GLOO_SOCKET_IFNAME", "eth0"},
          {"OTEL_RESOURCE_ATTRIBUTES",
           "ddplaunch.job.id=j-20260101-abcd,ddplaunch.rank=" + rank + ",ddplaunch.attempt=1"},
          {"TRACEPARENT", "00-752abcf6c195c65694ce86527841e996-cc67eec951bec4f8-01"},
      };
      const WorkerEnv made = worker_env(unequal_world(node_rank, local_rank), {});
      CHECK(as_map(made.vars) == expected);
      CHECK(made.omp_threads == 4);
    }
  }
}

TEST_CASE("a worker fact overrides the user's value, other variables do not") {
  for (const char* name : {"RANK", "MASTER_PORT", "NODE_RANK", "TORCHELASTIC_ERROR_FILE", "DDPLAUNCH_JOB_ID"})
    CHECK(is_worker_fact(name));
  for (const char* name : {"OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "PATH", ""})
    CHECK_FALSE(is_worker_fact(name));
}

TEST_CASE("the hook comes before the user's PYTHONPATH") {
  WorkerFacts facts = unequal_world(0, 1);
  facts.python_hook = "/tmp/ddplaunch-abcdef";
  CHECK_FALSE(find_env(worker_env(facts, {}).vars, "PYTHONPATH"));  // without a socket it has no purpose
  facts.sockets.server = "/tmp/ddplaunch-abcdef/d1.1";
  const WorkerEnv alone = worker_env(facts, {{"PYTHONPATH", ""}});
  CHECK(*find_env(alone.vars, "PYTHONPATH") == "/tmp/ddplaunch-abcdef");
  CHECK(*find_env(alone.vars, "DDPLAUNCH_DIAGNOSIS") == "/tmp/ddplaunch-abcdef/d1.1");
  CHECK(*find_env(worker_env(facts, {{"PYTHONPATH", "/me::"}}).vars, "PYTHONPATH") ==
        "/tmp/ddplaunch-abcdef:/me::");
}

TEST_CASE("attributes of telemetry are added to the user's") {
  const WorkerEnv made =
      worker_env(unequal_world(0, 1), {{"OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"}});
  CHECK(*find_env(made.vars, "OTEL_RESOURCE_ATTRIBUTES") ==
        "deployment.environment=test,ddplaunch.job.id=j-20260101-abcd,ddplaunch.rank=1,ddplaunch.attempt=1");
}

TEST_CASE("all ranks of a job belong to one trace, that of the user if there is one") {
  const std::string made = *find_env(worker_env(unequal_world(0, 1), {}).vars, "TRACEPARENT");
  CHECK(std::regex_match(made, std::regex("00-[0-9a-f]{32}-[0-9a-f]{16}-01")));
  CHECK(*find_env(worker_env(unequal_world(1, 0), {}).vars, "TRACEPARENT") == made);
  WorkerFacts other = unequal_world(0, 1);
  other.job_id = "another";
  CHECK(*find_env(worker_env(other, {}).vars, "TRACEPARENT") != made);
  CHECK_FALSE(find_env(worker_env(other, {{"TRACEPARENT", made}}).vars, "TRACEPARENT"));
  CHECK(find_env(worker_env(other, {{"TRACEPARENT", ""}}).vars, "TRACEPARENT"));
}

TEST_CASE("variables of the user are kept") {
  const EnvVars base{{"OMP_NUM_THREADS", "7"},
                     {"PYTHONUNBUFFERED", ""},
                     {"NCCL_SOCKET_IFNAME", "ib0"},
                     {"GLOO_SOCKET_IFNAME", "ib1"},
                     {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}};
  const WorkerEnv made = worker_env(unequal_world(1, 0), base);
  for (const auto& [name, value] : base)
    CHECK_FALSE(find_env(made.vars, name));
  CHECK_FALSE(made.omp_threads.has_value());
  // The old spelling gets the user's value, too, so that an old torch behaves alike.
  CHECK(*find_env(made.vars, "NCCL_ASYNC_ERROR_HANDLING") == "3");
}

TEST_CASE("the old name of NCCL's error handling variable replaces the new one") {
  const WorkerEnv made = worker_env(unequal_world(0, 0), {{"NCCL_ASYNC_ERROR_HANDLING", "0"}});
  CHECK(*find_env(made.vars, "TORCH_NCCL_ASYNC_ERROR_HANDLING") == "0");
  CHECK_FALSE(find_env(made.vars, "NCCL_ASYNC_ERROR_HANDLING"));
}

TEST_CASE("NCCL's variables enable IPv6, which NCCL would not choose by itself") {
  WorkerFacts facts = unequal_world(0, 0);
  CHECK_FALSE(find_env(worker_env(facts, {}).vars, "NCCL_SOCKET_FAMILY"));
  facts.spawn.master_addr = "fd00::1";
  CHECK(*find_env(worker_env(facts, {}).vars, "NCCL_SOCKET_FAMILY") == "AF_INET6");
  CHECK_FALSE(find_env(worker_env(facts, {{"NCCL_SOCKET_FAMILY", "AF_INET"}}).vars, "NCCL_SOCKET_FAMILY"));
}

TEST_CASE("an absent value sets no variable") {
  WorkerFacts facts = unequal_world(0, 0);
  facts.spawn.interface_name.clear();
  facts.error_file.clear();
  const WorkerEnv made = worker_env(facts, {});
  CHECK_FALSE(find_env(made.vars, "NCCL_SOCKET_IFNAME"));
  CHECK_FALSE(find_env(made.vars, "GLOO_SOCKET_IFNAME"));
  CHECK_FALSE(find_env(made.vars, "TORCHELASTIC_ERROR_FILE"));
  CHECK_FALSE(find_env(made.vars, "CUDA_VISIBLE_DEVICES"));
}

TEST_CASE("chosen devices reach every worker of the node, and each worker gets its own instance of a GPU") {
  WorkerFacts facts = unequal_world(0, 1);
  const auto visible = [&facts] {
    return *find_env(worker_env(facts, {{"CUDA_VISIBLE_DEVICES", "5"}}).vars, "CUDA_VISIBLE_DEVICES");
  };
  facts.devices = {"0", "GPU-77"};
  CHECK(visible() == "0,GPU-77");
  facts.devices = {"MIG-3f5c", "MIG-4a6d"};  // CUDA uses only the first of several
  CHECK(visible() == "MIG-4a6d");
}

TEST_CASE("with --store worker rank 0 serves the port itself") {
  WorkerFacts facts = unequal_world(0, 0);
  facts.spawn.agent_store = false;
  CHECK(*find_env(worker_env(facts, {}).vars, "TORCHELASTIC_USE_AGENT_STORE") == "False");
}

TEST_CASE("rank 0 is reached without the proxy") {
  const WorkerEnv made =
      worker_env(unequal_world(1, 0), {{"http_proxy", "http://proxy"}, {"no_proxy", "corp"}});
  CHECK(*find_env(made.vars, "no_proxy") == "corp,localhost,127.0.0.1,10.0.0.1");
  CHECK(*find_env(made.vars, "NO_PROXY") == "corp,localhost,127.0.0.1,10.0.0.1");
}

TEST_CASE("threads per worker") {
  CHECK(omp_threads_for(64, 8) == 8);
  CHECK(omp_threads_for(7, 2) == 3);
  CHECK(omp_threads_for(2, 8) == 1);
  CHECK(omp_threads_for(0, 0) == 1);
}

std::string value_of(const EnvVars& vars, const std::string& name) {
  const std::string* value = find_env(vars, name);
  return value ? *value : "(unset)";
}

TEST_CASE("the deny list covers each class of variables") {
  const std::vector<std::pair<EnvClass, std::string>> table{
      {EnvClass::kOurs, "DDPLAUNCH_TOKEN DDPLAUNCH_JOB_ID"},
      {EnvClass::kForeign,
       "SLURM_PROCID SLURM_JOB_ID SLURMD_NODENAME SRUN_DEBUG SBATCH_X PMI_RANK PMIX_RANK"
       " PALS_RANKID OMPI_COMM_WORLD_RANK PRTE_MCA_x MPI_LOCALRANKID HYDRA_X HYDI_CONTROL_FD"
       " MV2_COMM_WORLD_RANK FLUX_URI LSB_JOBID PBS_NODEFILE HOROVOD_RANK HOROVOD_LOCAL_SIZE"},
      {EnvClass::kRankFact,
       "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK ROLE_RANK CROSS_RANK"
       " LOCAL_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID GROUP_WORLD_SIZE PET_NNODES"
       " ACCELERATE_NUM_PROCESSES JAX_NUM_PROCESSES JAX_PROCESS_ID"},
      {EnvClass::kDevice,
       "CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES"
       " ZE_AFFINITY_MASK GPU_DEVICE_ORDINAL"},
      {EnvClass::kNetwork,
       "NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME TP_SOCKET_IFNAME NCCL_IB_HCA UCX_NET_DEVICES"
       " NCCL_TOPO_FILE NCCL_RAS_ADDR"},
      {EnvClass::kLoader, "LD_PRELOAD LD_AUDIT"},
      {EnvClass::kCluster,
       "KUBERNETES_PORT REDIS_SERVICE_HOST REDIS_SERVICE_PORT REDIS_PORT_6379_TCP_ADDR"
       " REDIS_PORT_6379_TCP"},
      {EnvClass::kSession,
       "HOME USER LOGNAME SHELL PWD OLDPWD SHLVL _ MAIL TERM TERM_PROGRAM COLORTERM COLUMNS"
       " LINES DISPLAY WAYLAND_DISPLAY XAUTHORITY XDG_RUNTIME_DIR DBUS_SESSION_BUS_ADDRESS"
       " SSH_AUTH_SOCK GPG_TTY KRB5CCNAME TMUX TMUX_PANE STY WINDOWID VSCODE_IPC_HOOK"
       " LS_COLORS PS1 PROMPT_COMMAND HOSTNAME HOST HOSTTYPE TMPDIR TMP TEMP JOURNAL_STREAM"
       " INVOCATION_ID NOTIFY_SOCKET LISTEN_FDS MAINPID SUDO_USER BASH_ENV ENV"
       " BASH_FUNC_module%%"},
      {EnvClass::kShell, "SHELLOPTS BASHOPTS"},
      {EnvClass::kFree,
       "PATH LD_LIBRARY_PATH PYTHONPATH VIRTUAL_ENV CONDA_PREFIX HF_TOKEN NCCL_DEBUG"
       " http_proxy OMP_NUM_THREADS LANG TEMPERATURE HOMEPAGE ENVIRONMENT PWD_FILE RANKING"
       " LD_PRELOAD_X MYSLURM_X LOCAL_RANKS ACCELERATE_MIXED_PRECISION"},
  };
  for (const auto& [expected, names] : table) {
    for (const auto name : split_at_blanks(names)) {
      INFO(name);
      CHECK(env_class(name) == expected);
    }
  }
}

TEST_CASE("the deny list equals the table of docs/users/environment.md") {
  std::ifstream file(DDP_SOURCE_DIR "/docs/users/environment.md");
  REQUIRE(file);
  std::vector<std::string> documented;  // the globs of each row of the table
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| deny: ", 0) != 0) continue;
    std::string globs;
    for (std::size_t at = line.find('`'); at != std::string::npos;) {
      const std::size_t end = line.find('`', at + 1);
      REQUIRE(end != std::string::npos);
      globs += (globs.empty() ? "" : " ") + line.substr(at + 1, end - at - 1);
      at = line.find('`', end + 1);
    }
    documented.push_back(globs);
  }
  std::vector<std::string> coded;
  for (const DenyRow& row : deny_table())
    coded.emplace_back(row.globs);
  CHECK(documented == coded);
}

TEST_CASE("only variables outside the deny list are forwarded, and a local node keeps its devices") {
  const EnvVars own{
      {"PATH", "/a"}, {"HOME", "/root"}, {"CUDA_VISIBLE_DEVICES", "1"}, {"RANK", "3"}, {"X", "a\nb\xff"}};
  CHECK(forwarded_env(own) == EnvVars{{"PATH", "/a"}, {"X", "a\nb\xff"}});
  CHECK(forwarded_env(own, true) ==
        EnvVars{{"PATH", "/a"}, {"CUDA_VISIBLE_DEVICES", "1"}, {"X", "a\nb\xff"}});
}

TEST_CASE("entries of environ are parsed") {
  const std::vector<std::string> entries{"A=1", "B=x=y", "EMPTY=", "=C:=odd", "noequals", "A=2"};
  const EnvVars expected{{"A", "1"}, {"B", "x=y"}, {"EMPTY", ""}};
  CHECK(split_env(entries) == expected);
  CHECK(env_entries(expected) == std::vector<std::string>{"A=1", "B=x=y", "EMPTY="});
}

TEST_CASE("--env overrides the deny list and reports all errors at once") {
  const EnvVars own{{"CUDA_VISIBLE_DEVICES", "1"}, {"HOME", "/root"}};
  const auto vars = explicit_env(own, {"CUDA_VISIBLE_DEVICES", "A=1", "A=2=3", "B="});
  REQUIRE(vars.has_value());
  CHECK(*vars == EnvVars{{"CUDA_VISIBLE_DEVICES", "1"}, {"A", "2=3"}, {"B", ""}});
  CHECK(node_bound_names(*vars) == std::vector<std::string>{"CUDA_VISIBLE_DEVICES"});

  const auto bad = explicit_env(own, {"=x", "NOPE", "ok=1", std::string("N=a\0b", 5)});
  REQUIRE_FALSE(bad.has_value());
  CHECK(bad.error().code == ErrorCode::kUsage);
  CHECK(bad.error().text ==
        "--env: missing name before '='\n"
        "--env NOPE: NOPE is not set here; write --env NOPE=VALUE\n"
        "--env N: an environment variable cannot contain a NUL byte");
}

TEST_CASE("the environment is the node's own, overlaid by the forwarded and then the explicit variables") {
  const EnvVars node{{"HOME", "/home/n"},
                     {"PATH", "/usr/bin:/bin::/opt/n"},
                     {"LANG", "C"},
                     {"SLURM_PROCID", "0"},
                     {"RANK", "9"},
                     {"DDPLAUNCH_JOB_ID", "outer"},
                     {"SHELLOPTS", "xtrace"},
                     {"BASHOPTS", "extglob"},
                     {"CUDA_VISIBLE_DEVICES", "2,3"},
                     {"KUBERNETES_PORT", "tcp://x"}};
  const EnvVars merged = merge_env(node, {{"PATH", "/venv/bin:/usr/bin"}, {"LANG", "de"}, {"HF_TOKEN", "t"}},
                                   {{"HF_TOKEN", "mine"}, {"HOME", "/elsewhere"}});
  CHECK(merged == EnvVars{{"HOME", "/elsewhere"},
                          {"PATH", "/venv/bin:/usr/bin:/bin:/opt/n"},
                          {"LANG", "de"},
                          {"CUDA_VISIBLE_DEVICES", "2,3"},
                          {"KUBERNETES_PORT", "tcp://x"},
                          {"HF_TOKEN", "mine"}});
  CHECK(value_of(merge_env(node, {{"PATH", "/a"}}, {{"PATH", "/only"}}), "PATH") == "/only");
  CHECK(value_of(merge_env({}, {{"PATH", "/a"}}, {}), "PATH") == "/a");
  CHECK(value_of(merge_env(node, {}, {}), "PATH") == "/usr/bin:/bin::/opt/n");
  CHECK(value_of(merge_env(node, {}, {{"RANK", "7"}}), "RANK") == "7");  // requested by name
}

TEST_CASE("connections between nodes bypass a proxy") {
  const EnvVars vars{{"https_proxy", "http://proxy:3128"}, {"NO_PROXY", "example.org,10.0.0.1"}};
  CHECK(no_proxy_list(vars, {"10.0.0.1", "10.0.0.2"}) == "example.org,10.0.0.1,10.0.0.2");
  CHECK(no_proxy_list({{"http_proxy", "p"}, {"NO_PROXY", "*"}}, {"10.0.0.1"}) == "*");
  CHECK_FALSE(no_proxy_list({{"NO_PROXY", "x"}}, {"10.0.0.1"}).has_value());
}

TEST_CASE("directories that the environment names") {
  CHECK(promised_directories({{"PYTHONHOME", "/usr:/opt"}}) == EnvVars{{"PYTHONHOME", "/usr"}});
  CHECK(promised_directories({{"PATH", "/x"}, {"VIRTUAL_ENV", "/venv"}, {"PYTHONHOME", ""}}) ==
        EnvVars{{"VIRTUAL_ENV", "/venv"}});
}

TEST_CASE("a variable that execve cannot pass is named before the spawn, without its value") {
  const std::vector<std::string> argv{"prog", "arg"};
  const std::string fits(kMaxEnvString - 3, 's');  // "A=" and NUL
  CHECK(check_exec_size({{"A", fits}}, argv).has_value());
  const auto long_one = check_exec_size({{"B", "1"}, {"A", fits + "s"}}, argv);
  REQUIRE_FALSE(long_one.has_value());
  CHECK(long_one.error().code == ErrorCode::kRefused);
  CHECK(long_one.error().text ==
        "environment variable A has 131072 bytes; Linux passes at most 131071 per variable; remove or "
        "shorten it");
  CHECK(check_exec_size({{"A", fits + "s"}}, argv, ErrorCode::kUsage).error().code == ErrorCode::kUsage);

  const std::vector<std::string> long_argv{"prog", std::string(kMaxEnvString, 'x')};
  CHECK(check_exec_size({}, long_argv).error().text ==
        "argument 1 of the worker has 131072 bytes; Linux passes at most 131071 per argument; put it into a "
        "file");
  CHECK(check_exec_size({{"A", std::string("x\0y", 3)}}, argv).error().text ==
        "environment variable A holds a NUL byte, which Linux cannot pass");

  EnvVars many;
  for (int i = 0; i < 20; ++i)
    many.emplace_back("V" + std::to_string(i),
                      std::string(110'000 + static_cast<std::size_t>(i) * 1000, 's'));
  const auto total = check_exec_size(many, argv);
  REQUIRE_FALSE(total.has_value());
  CHECK(total.error().text ==
        "arguments and environment have 2390275 bytes together, at most 2097152 can be passed; largest "
        "variables: V19 "
        "(129000 bytes), V18 (128000 bytes), V17 (127000 bytes)");
}

}  // namespace
}  // namespace ddp::launcher
