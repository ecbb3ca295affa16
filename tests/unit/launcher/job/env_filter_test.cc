#include "launcher/job/worker_env.h"

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::launcher;

namespace {

std::string value_of(const EnvVars& vars, const std::string& name) {
  const std::string* value = find_env(vars, name);
  return value ? *value : "(unset)";
}

}  // namespace

TEST_CASE("the deny list covers each class of variables") {
  const std::vector<std::pair<EnvClass, std::vector<std::string>>> table{
      {EnvClass::kOurs, {"DDPLAUNCH_TOKEN", "DDPLAUNCH_JOB_ID"}},
      {EnvClass::kForeign,
       {"SLURM_PROCID", "SLURM_JOB_ID", "SLURMD_NODENAME", "SRUN_DEBUG", "SBATCH_X", "PMI_RANK", "PMIX_RANK",
        "PALS_RANKID", "OMPI_COMM_WORLD_RANK", "PRTE_MCA_x", "MPI_LOCALRANKID", "HYDRA_X", "HYDI_CONTROL_FD",
        "MV2_COMM_WORLD_RANK", "FLUX_URI", "LSB_JOBID", "PBS_NODEFILE", "HOROVOD_RANK",
        "HOROVOD_LOCAL_SIZE"}},
      {EnvClass::kRankFact,
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "ROLE_RANK", "CROSS_RANK",
        "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "GROUP_WORLD_SIZE", "PET_NNODES",
        "ACCELERATE_NUM_PROCESSES", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"}},
      {EnvClass::kDevice,
       {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"}},
      {EnvClass::kNetwork,
       {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES",
        "NCCL_TOPO_FILE", "NCCL_RAS_ADDR"}},
      {EnvClass::kLoader, {"LD_PRELOAD", "LD_AUDIT"}},
      {EnvClass::kCluster,
       {"KUBERNETES_PORT", "REDIS_SERVICE_HOST", "REDIS_SERVICE_PORT", "REDIS_PORT_6379_TCP_ADDR",
        "REDIS_PORT_6379_TCP"}},
      {EnvClass::kSession,
       {"HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "MAIL",
        "TERM",
        "TERM_PROGRAM",
        "COLORTERM",
        "COLUMNS",
        "LINES",
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "XAUTHORITY",
        "XDG_RUNTIME_DIR",
        "DBUS_SESSION_BUS_ADDRESS",
        "SSH_AUTH_SOCK",
        "GPG_TTY",
        "KRB5CCNAME",
        "TMUX",
        "TMUX_PANE",
        "STY",
        "WINDOWID",
        "VSCODE_IPC_HOOK",
        "LS_COLORS",
        "PS1",
        "PROMPT_COMMAND",
        "HOSTNAME",
        "HOST",
        "HOSTTYPE",
        "TMPDIR",
        "TMP",
        "TEMP",
        "JOURNAL_STREAM",
        "INVOCATION_ID",
        "NOTIFY_SOCKET",
        "LISTEN_FDS",
        "MAINPID",
        "SUDO_USER",
        "BASH_ENV",
        "ENV",
        "BASH_FUNC_module%%"}},
      {EnvClass::kShell, {"SHELLOPTS", "BASHOPTS"}},
      {EnvClass::kFree,
       {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HF_TOKEN", "NCCL_DEBUG",
        "http_proxy", "OMP_NUM_THREADS", "LANG", "TEMPERATURE", "HOMEPAGE", "ENVIRONMENT", "PWD_FILE",
        "RANKING", "LD_PRELOAD_X", "MYSLURM_X", "LOCAL_RANKS", "ACCELERATE_MIXED_PRECISION"}},
  };
  for (const auto& [expected, names] : table) {
    for (const std::string& name : names) {
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

// The kernel decides the limit for one string: exec works at the limit; one byte more gives E2BIG.
TEST_CASE("the limit of one string is the kernel's") {
  auto exec_errno = [](std::size_t value_size) {
    const std::string entry = "A=" + std::string(value_size, 's');
    const char* const argv[] = {"true", nullptr};
    const char* const env[] = {entry.c_str(), nullptr};
    const pid_t child = fork();
    if (child == 0) {
      execve("/bin/true", const_cast<char* const*>(argv), const_cast<char* const*>(env));
      _exit(errno == E2BIG ? 70 : 71);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WEXITSTATUS(status);
  };
  CHECK(exec_errno(kMaxEnvString - 3) == 0);
  CHECK(exec_errno(kMaxEnvString - 2) == 70);
}
