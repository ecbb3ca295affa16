#include "launcher/agent/job_preparation.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "launcher/agent/node_facts.h"
#include "launcher/agent_core/machine_text.h"
#include "launcher/job/job_spec.h"
#include "launcher/keeper/attempt_tree.h"
#include "launcher/keeper/cgroup.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;
using rendezvous::NodeChecked;
using rendezvous::NodeDisk;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kToolText = 256 * 1024;
/// Processes that are named per GPU; the others are counted.
constexpr std::size_t kNamedHolders = 3;
constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
/// The time between two checks for processes that are ending.
constexpr std::chrono::milliseconds kEndPause{5};
/// Processes that an answer names.
constexpr std::size_t kMostLeft = 500;

std::uint64_t soft_limit(decltype(RLIMIT_NOFILE) which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : limit.rlim_cur;
}

/// Adds one entry per path.
void add_disk(std::vector<NodeDisk>& disks, const std::string& path) {
  const auto same = [&](const NodeDisk& disk) { return disk.path == path; };
  if (path.empty() || std::any_of(disks.begin(), disks.end(), same)) return;
  NodeDisk disk;
  disk.path = path;
  struct statvfs found {};
  if (::statvfs(path.c_str(), &found) != 0) {
    disk.trouble = std::strerror(errno);
  } else {
    disk.size = static_cast<std::uint64_t>(found.f_blocks) * found.f_frsize;
    disk.free = static_cast<std::uint64_t>(found.f_bavail) * found.f_frsize;
    disk.writable = ::access(path.c_str(), W_OK) == 0;
  }
  disks.push_back(std::move(disk));
}

// ---- what jobs use where it is there

/// Returns why a system call cannot be used. It gets arguments that the kernel refuses.
std::string missing_call(long number) {
  if (::syscall(number, -1L, 0L, -1L) != -1 || (errno != ENOSYS && errno != EPERM)) return "";
  return errno == ENOSYS ? "not in this kernel" : "refused by a security profile";
}

/// Libc needs no clone3 where the kernel has none, but where a profile answers "not permitted", it makes no
/// thread.
std::string thread_trouble() {
  try {
    std::thread([] {}).join();
  } catch (const std::system_error& error) {
    return limit_error(error.code().value(), "make a thread").text;
  }
  return "";
}

rendezvous::Pairs check_features(const std::string& job_id, std::optional<std::string_view> path) {
  rendezvous::Pairs features = {
      {"pidfds",
       has_pidfds() ? "" : "not in this kernel, or refused: processes are watched by threads and by number"},
      {"clone3", missing_call(SYS_clone3)},
      {"close_range", missing_call(SYS_close_range)}};
  auto group = Cgroup::make(own_cgroups(), job_id, 0);
  features.emplace_back("control groups", group ? "" : group.error().text);
  if (group) group->remove(std::chrono::milliseconds(100));
  const auto ssh = find_program("ssh", path, "/");
  features.emplace_back("ssh", ssh ? "" : "not in PATH");
  return features;
}

// ---- the job's own needs, with the errors that a job would report

/// Returns whether the program cannot be searched for while its directory is missing.
bool needs_directory(const WorkerCommand& command) {
  if (command.argv.empty() || command.argv.front().starts_with('/')) return false;
  return command.kind == WorkerCommand::Kind::kPython ||
         (command.kind == WorkerCommand::Kind::kProgram &&
          command.argv.front().find('/') != std::string::npos);
}

/// Runs the job's preparation for its environment only. Without a program to search for, the job may be
/// Python.
Result<> environment_fits(const rendezvous::JobStart& job, const EnvVars& env, bool has_program) {
  rendezvous::JobStart ask;
  ask.job_id = job.job_id;
  ask.host = job.host;
  ask.command = {WorkerCommand::Kind::kProgram, {"/proc/self/exe"}, {}};  // always exists
  auto fits = DDP_TRY(NodeJob::prepare(ask, env, ""));
  if (!has_program && !fits.warning().empty()) return Error{ErrorCode::kRefused, fits.warning()};
  return {};
}

void check_job(const rendezvous::NodeCheck& request, const Result<EnvVars>& env, const std::string& agent_dir,
               NodeChecked& checked) {
  const rendezvous::JobStart& job = request.job;
  const auto directory = NodeJob::directory(job.chdir);
  checked.directory = job.chdir;
  if (!directory) checked.directory_trouble = directory.error().text;
  // Without its directory, --setup did not run; the missing directory is reported already.
  if (!directory && !job.setup.empty()) return;
  const Result<> environment = env ? environment_fits(job, *env, request.has_program) : Result<>(env.error());
  if (!environment) checked.environment_trouble = environment.error().text;
  // A search in PATH needs a valid environment.
  if (!request.has_program || !environment || (!directory && needs_directory(job.command))) return;
  rendezvous::JobStart whole = job;
  if (!directory) whole.chdir.clear();
  const auto program = NodeJob::prepare(whole, *env, agent_dir);
  if (!program && program.error().code == ErrorCode::kRefused) {
    checked.environment_trouble = program.error().text;
    return;
  }
  checked.program_trouble =
      program ? interpreter_trouble(program->program(), *env, whole.chdir) : program.error().text;
  if (!checked.program_trouble.empty()) return;
  checked.program = program->program();
  checked.program_trouble = program->warning();  // with the program, only a warning
}

// ---- versions

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos || slash == 0 ? "" : path.substr(0, slash);
}

/// The prefix of the Python that the job will run, from its program or from the active environment.
std::string python_prefix(const NodeChecked& checked, const EnvVars& env) {
  const std::string name = checked.program.substr(checked.program.rfind('/') + 1);
  if (name.starts_with("python")) return parent_of(parent_of(checked.program));
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string* prefix = find_env(env, variable)) return *prefix;
  }
  return {};
}

/// Versions of the Python packages that must be equal on all nodes (torch, NCCL), from their directories
/// under `prefix`. Runs no program.
rendezvous::Pairs python_versions(const std::string& prefix) {
  rendezvous::Pairs found;
  std::vector<std::string> places = {prefix + "/lib", prefix + "/local/lib"};
  for (const std::string& place : places) {
    for (const fs::path& python : list_directory(place)) {
      if (!python.filename().string().starts_with("python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        for (const fs::path& path : list_directory(python / packages)) {
          std::string name = path.filename();
          if (!name.ends_with(".dist-info")) continue;
          name.resize(name.size() - std::strlen(".dist-info"));
          const std::size_t dash = name.find('-');
          if (dash == std::string::npos) continue;
          const std::string package = name.substr(0, dash);
          if (package == "torch") found.emplace_back("torch", name.substr(dash + 1));
          if (package.starts_with("nvidia_nccl_cu")) found.emplace_back("NCCL", name.substr(dash + 1));
        }
      }
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end(),
                          [](const auto& a, const auto& b) { return a.first == b.first; }),
              found.end());
  return found;
}

/// PRETTY_NAME of os-release; empty if it has none.
std::string os_name() {
  std::ifstream file("/etc/os-release");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kKey = "PRETTY_NAME=";
    if (!line.starts_with(kKey)) continue;
    std::string name = line.substr(kKey.size());
    if (name.size() >= 2 && (name.front() == '"' || name.front() == '\''))
      name = name.substr(1, name.size() - 2);
    return name;
  }
  return {};
}

/// The first version of a name stays, so packages of Python take precedence over the system's.
void add_versions(NodeChecked& checked, const rendezvous::Pairs& versions) {
  for (const auto& version : versions) {
    const auto same = [&](const auto& known) { return known.first == version.first; };
    if (std::none_of(checked.versions.begin(), checked.versions.end(), same))
      checked.versions.push_back(version);
  }
}

// ---- tools

/// The settings for running tools.
struct Tools {
  EnvVars env;
  Clock::time_point until;
  ToolStop* stop;
};

Awaitable<ToolOutput> ask(std::vector<std::string> argv, Tools tools, std::string cwd = {}) {
  ChildSpec spec;
  spec.path = argv.front();
  spec.argv = std::move(argv);
  spec.cwd = std::move(cwd);
  spec.env = env_entries(tools.env);
  co_return co_await run_tool(std::move(spec), tools.until, kToolText, nullptr, tools.stop);
}

/// Python's answer about a module.
struct ModuleAnswer {
  std::string trouble;  ///< empty: the module exists
  bool doubt = false;   ///< the module may exist
};

/// Returns whether the job's Python finds the module of -m. Asks only for the first part, because finding the
/// others would import it. A slow answer leaves the module in doubt.
Awaitable<ModuleAnswer> ask_python(std::string python, std::string module, std::string cwd, Tools tools) {
  const std::string top = module.substr(0, module.find('.'));
  std::vector<std::string> argv(4, python);
  argv[1] = "-c";
  argv[2] =
      "import sys, importlib.util as u; print('ddplaunch: ' + str(u.find_spec(sys.argv[1]) is not None))";
  argv[3] = top;
  const auto until = tools.until;
  const ToolOutput output = co_await ask(std::move(argv), std::move(tools), std::move(cwd));
  ModuleAnswer answer;
  if (output.text.find("ddplaunch: True") != std::string::npos) co_return answer;
  answer.doubt = Clock::now() >= until;
  if (answer.doubt) {
    answer.trouble = python + " did not report in time whether it has the module " + top +
                     "; check whether Python hangs at its start, or a network disk is slow";
    co_return answer;
  }
  if (output.text.find("ddplaunch: False") == std::string::npos) {
    const std::string lines = output.text.substr(0, output.text.find_last_not_of('\n') + 1);
    const std::string last = lines.substr(lines.rfind('\n') + 1);
    answer.trouble = python + " cannot search for the module " + top + ": " + output.trouble() +
                     (last.empty() ? "" : " (" + last + ")");
    co_return answer;
  }
  answer.trouble =
      python + " finds no module " + top +
      "; install it there, or name its directory in PYTHONPATH (the working directory counts, too)";
  co_return answer;
}

// ---- GPUs

Awaitable<GpuFacts> ask_nvml(std::string helper, Tools tools) {
  std::vector<std::string> argv(1, helper);
  const ToolOutput output = co_await ask(std::move(argv), std::move(tools));
  GpuFacts facts = read_nvml_lines(output.text);
  if (!output.success())
    facts.trouble = "the NVIDIA driver did not answer " + helper + ": " + output.trouble();
  co_return facts;
}

Awaitable<GpuFacts> ask_smi(std::string smi, Tools tools) {
  std::vector<std::string> argv(3, "--format=csv,noheader,nounits");
  argv[0] = smi;
  argv[1] = "--query-gpu=index,uuid,name,memory.total,memory.free,driver_version";
  const ToolOutput gpus = co_await ask(argv, tools);
  argv[1] = "--query-compute-apps=gpu_uuid,pid,used_memory";
  const ToolOutput apps = co_await ask(argv, tools);
  GpuFacts facts = read_smi(gpus.text, apps.success() ? apps.text : "");
  if (!gpus.success()) {
    facts.trouble = "nvidia-smi: " + gpus.trouble();
    const std::string first = gpus.text.substr(0, gpus.text.find('\n'));
    if (!first.empty()) facts.trouble += " (" + first + ")";
  }
  co_return facts;
}

/// Asks ddplaunch-nvml if it is installed here, else nvidia-smi, which comes with the driver.
Awaitable<GpuFacts> ask_driver(std::string agent_dir, Tools tools) {
  GpuFacts facts;
  const std::string helper = companion_program(agent_dir, "ddplaunch-nvml");
  const auto smi = find_program("nvidia-smi", path_in(tools.env), "/");
  if (::access(helper.c_str(), X_OK) == 0 && distrust_companion(helper).empty()) {
    facts = co_await ask_nvml(helper, std::move(tools));
  } else if (smi) {
    facts = co_await ask_smi(*smi, std::move(tools));
  }
  co_return facts;
}

/// "python 4711 (alice)", as far as /proc shows it.
std::string process_text(std::uint32_t pid) {
  const std::string number = std::to_string(pid);
  const std::string name = first_line("/proc/" + number + "/comm");
  if (name.empty()) return "process " + number + " (of another container, or hidden)";
  std::string user;
  std::ifstream status("/proc/" + number + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("Uid:")) continue;
    const std::size_t begin = line.find_first_of("0123456789");
    if (begin != std::string::npos)
      user = line.substr(begin, line.find_first_not_of("0123456789", begin) - begin);
  }
  std::ifstream accounts("/etc/passwd");
  for (std::string line; std::getline(accounts, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, user.size() + 1, user + ':') != 0) continue;
    user = line.substr(0, first);
    break;
  }
  return name + ' ' + number + (user.empty() ? "" : " (" + user + ')');
}

void add_gpus(NodeChecked& checked, GpuFacts facts) {
  for (const GpuFacts::GpuProcess& process : facts.processes) {
    rendezvous::NodeGpu& gpu = facts.gpus[process.gpu];
    if (gpu.processes++ >= kNamedHolders) continue;
    gpu.holders += (gpu.holders.empty() ? "" : ", ") + process_text(process.pid);
  }
  for (rendezvous::NodeGpu& gpu : facts.gpus) {
    if (gpu.processes > kNamedHolders)
      gpu.holders += " and " + std::to_string(gpu.processes - kNamedHolders) + " more";
  }
  checked.gpus = std::move(facts.gpus);
  checked.gpus_trouble = std::move(facts.trouble);
  add_versions(checked, facts.versions);
}

// ---- the whole check

/// Checks what would prevent a job on this node: files, limits, memory, GPUs. Changes nothing and never
/// fails: problems are part of the result. `job_env` is the workers' initial environment after --setup, or
/// why
/// --setup failed; `merged`, the environment before it, then serves for the rest. A program that exists but
/// is in doubt is reported together with its trouble. Blocks the loop while it reads files, for as long as a
/// dead network disk blocks them. Waits for tools without blocking, at most `request.timeout_ms` or until
/// `stop`.
Awaitable<NodeChecked> check_node(rendezvous::NodeCheck request, Result<EnvVars> job_env, EnvVars merged,
                                  std::string agent_dir, ToolStop* stop) {
  NodeChecked checked;
  utsname system{};
  if (::uname(&system) == 0)
    checked.system = std::string(system.sysname) + " " + system.release + " " + system.machine;
  checked.os = os_name();
  checked.system_trouble = thread_trouble();
  check_job(request, job_env, agent_dir, checked);

  const EnvVars env = job_env ? std::move(*job_env) : std::move(merged);
  if (const std::string prefix = python_prefix(checked, env); !prefix.empty())
    add_versions(checked, python_versions(prefix));
  checked.nofile = children_nofile() == RLIM_INFINITY ? kNoLimit : children_nofile();
  checked.most_files = soft_limit(RLIMIT_NOFILE);  // the agent has raised its soft limit
  checked.memlock = soft_limit(RLIMIT_MEMLOCK);
  checked.processes = soft_limit(RLIMIT_NPROC);
  checked.features = check_features(request.job.job_id, path_in(env));
  checked.infiniband = active_rdma("");
  std::vector<NodeDisk> shm;
  add_disk(shm, "/dev/shm");
  checked.shm_size = shm[0].size;
  checked.shm_free = shm[0].free;
  if (checked.directory_trouble.empty()) add_disk(checked.disks, checked.directory);
  const std::string* temporary = find_env(env, "TMPDIR");
  add_disk(checked.disks, temporary != nullptr && !temporary->empty() ? *temporary : "/tmp");

  // Each of the two gets half of the time.
  const std::chrono::milliseconds half(request.timeout_ms / 2);
  const Tools driver{env, Clock::now() + half, stop};  // named: in a co_await, g++ 12 destroys it twice
  GpuFacts gpus = co_await ask_driver(agent_dir, driver);
  add_gpus(checked, std::move(gpus));
  const WorkerCommand& command = request.job.command;
  const bool module = command.kind == WorkerCommand::Kind::kModule;
  if (module && !checked.program.empty() && checked.directory_trouble.empty() && !command.argv.empty()) {
    const Tools python{env, Clock::now() + half, stop};
    ModuleAnswer answer =
        co_await ask_python(checked.program, command.argv.front(), request.job.chdir, python);
    if (!answer.trouble.empty()) {
      checked.program_trouble = std::move(answer.trouble);
      if (!answer.doubt) checked.program.clear();
    }
  }
  checked.clock_ns = static_cast<std::uint64_t>(steady_now().count());
  checked.wall_ns = static_cast<std::uint64_t>(read_clock(CLOCK_REALTIME).count());
  co_return checked;
}

// ---- before a job

/// What JobStart says of a lost agent of this job on this machine.
LostNode lost_node(const rendezvous::JobStart& order) {
  LostNode lost{order.job_id, {}, order.predecessor_clock_ns};
  for (const std::uint32_t keeper : order.keepers)
    lost.live_keepers.insert(static_cast<pid_t>(keeper));
  for (const std::uint32_t pid : order.predecessor)
    lost.own.insert(static_cast<pid_t>(pid));
  return lost;
}

/// Names the processes that still live.
std::vector<std::string> living(const std::vector<std::uint32_t>& pids) {
  std::vector<std::string> names;
  for (const std::uint32_t pid : pids) {
    if (!has_pid_ended(static_cast<pid_t>(pid))) names.push_back("process " + std::to_string(pid));
  }
  return names;
}

}  // namespace

void JobPreparation::stop() {
  disk_.stop();
  setup_.stop();
  tools_.stop();
}

/// The workers' initial environment. `quiet`: the output of --setup is only a detail.
Awaitable<Result<EnvVars>> JobPreparation::make_environment(rendezvous::JobStart order, bool quiet) {
  EnvVars node_env = split_env(own_environment());
  EnvVars merged = merge_env(node_env, order.env, order.explicit_env);
  if (order.setup.empty()) co_return merged;
  std::function<Result<std::string>()> look = [chdir = order.chdir] { return NodeJob::directory(chdir); };
  auto cwd = co_await disk_.run(std::move(look), Clock::time_point::max());
  if (!cwd) co_return cwd.error();
  if (auto fits = check_exec_size(merged, {}); !fits) co_return fits.error();
  SetupOutput::LineHandler handle_line = [this, quiet](const std::string& line) {
    send_notice_({"setup: " + line, quiet});
  };
  auto env = co_await setup_.run(std::move(order), std::move(node_env), std::move(merged), std::move(*cwd),
                                 std::move(handle_line));
  co_return env;
}

Awaitable<Result<NodeJob>> JobPreparation::make_job(rendezvous::JobStart order) {
  auto env = co_await make_environment(order, false);
  if (!env) co_return env.error();
  spawn(executor_, setup_.listen());
  std::function<Result<NodeJob>()> look = [order, env = std::move(*env), agent = directory_] {
    return NodeJob::prepare(order, env, agent);
  };
  auto job = co_await disk_.run(std::move(look), Clock::time_point::max());
  co_return job;
}

/// Returns whether it is proven that the agent that ran this job here before has left no process. Ends what
/// it left.
Awaitable<bool> JobPreparation::predecessor_gone(rendezvous::JobStart order) {
  if (order.predecessor.empty()) co_return false;
  const auto give_up = Clock::now() + kKillBound;
  // Wait for these first: while agent or keeper is alive, they may start more processes.
  while (!living(order.predecessor).empty()) {
    if (tools_.stopped || Clock::now() >= give_up) co_return false;
    co_await pause_for(executor_, kEndPause);
  }
  const SweptJob swept = co_await sweep_lost_node(executor_, lost_node(order), &tools_.stopped);
  co_return swept.left.empty();
}

void JobPreparation::prepare(rendezvous::JobStart order, Prepared done) {
  tasks_.start(run(std::move(order), std::move(done)));
}

Awaitable<> JobPreparation::run(rendezvous::JobStart order, Prepared done) {
  const bool gone = co_await predecessor_gone(order);
  if (tools_.stopped) co_return;
  auto job = co_await make_job(std::move(order));
  if (tools_.stopped) co_return;
  if (job && !job->warning().empty()) send_notice_({"warning: " + job->warning()});
  done(std::move(job), gone);
}

void JobPreparation::check(rendezvous::NodeCheck request, Checked done) {
  if (tasks_.running()) return;
  tasks_.start(request.clean ? run_clean(std::move(request.job), std::move(done))
                             : run_check(std::move(request), std::move(done)));
}

/// With a predecessor, the job runs, and only this lost node is swept. Else its master has ended.
Awaitable<> JobPreparation::run_clean(rendezvous::JobStart job, Checked done) {
  const bool of_node = !job.predecessor.empty();
  const std::size_t stopped = of_node ? 0 : co_await stop_keepers(executor_, job.job_id, &tools_.stopped);
  SweptJob swept;
  if (of_node) {
    swept = co_await sweep_lost_node(executor_, lost_node(job), &tools_.stopped);
  } else {
    swept = co_await sweep_job(executor_, job.job_id, &tools_.stopped);
  }
  rendezvous::NodeChecked checked;
  checked.found = static_cast<std::uint32_t>(stopped + swept.found);
  checked.left = std::move(swept.left);
  for (std::string& process : living(job.predecessor))
    checked.left.push_back(std::move(process));
  if (checked.left.size() > kMostLeft) {  // the answer is one frame
    const std::size_t more = checked.left.size() - kMostLeft;
    checked.left.resize(kMostLeft);
    checked.left.push_back(counted(more, "more process", "more processes"));
  }
  if (!tools_.stopped) done(checked);
}

Awaitable<> JobPreparation::run_check(rendezvous::NodeCheck request, Checked done) {
  auto env = co_await make_environment(request.job, true);
  if (tools_.stopped) co_return;
  EnvVars merged = merge_env(split_env(own_environment()), request.job.env, request.job.explicit_env);
  const rendezvous::NodeChecked checked =
      co_await check_node(std::move(request), std::move(env), std::move(merged), directory_, &tools_);
  if (!tools_.stopped) done(checked);
}

}  // namespace ddp::launcher
