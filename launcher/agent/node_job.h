#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/agent/worker_group.h"
#include "launcher/job/worker_env.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Returns why `program`, an existing executable file, cannot start in `cwd`: its first line names an
/// interpreter that does not exist, or a program for env(1) that PATH of `env` lacks. The text is that of a
/// job that tries. Empty: it can start, or is no script. Reads the file's first bytes.
std::string interpreter_trouble(const std::string& program, const EnvVars& env, const std::string& cwd);

/// Returns whether OMP_NUM_THREADS matters to the program at `path`: it is Python, a script of Python, or its
/// ELF file needs an OpenMP run time (libgomp, libiomp5, libomp) itself. Reads a few KiB of the file, so it
/// may block. A file that cannot be read, or is no 64-bit ELF file of this machine's byte order, gives false.
bool uses_omp_threads(const std::string& path);

/// The job as one node will run it: program found, directory checked, environment merged. It is made before
/// any worker starts, so that problems of a node are reported while nothing runs.
class NodeJob {
 public:
  /// Checks `start` against this node's disk, which may hang. `env` is the workers' initial environment.
  /// `agent_dir` holds the bundled `train`. Errors, all worded for "HOST: …": kRefused (directory,
  /// environment that the program's Python comes from), kExec (program).
  static Result<NodeJob> prepare(const rendezvous::JobStart& start, EnvVars env,
                                 const std::string& agent_dir);
  /// Returns the workers' working directory, which exists and can be entered; else kRefused. Empty `wanted`:
  /// the agent's own directory. Blocking.
  static Result<std::string> directory(const std::string& wanted);

  /// The workers of one attempt, by local rank. `cores` are the node's physical cores. `error_prefix` is the
  /// prefix of the files to which `@record` writes. `sockets`: of each worker, possibly fewer.
  /// `collectives`: DDPLAUNCH_COLLECTIVES of all, or empty. `python_hook`: directory of write_python_hook, or
  /// empty.
  struct Workers {
    std::vector<WorkerSpec> specs;
    std::vector<std::string> error_files;
    std::optional<int> omp_threads;  ///< set if ddplaunch chose OMP_NUM_THREADS and the program may use it
  };
  Result<Workers> workers(const rendezvous::Spawn& spawn, int cores, const std::string& error_prefix,
                          const std::vector<WorkerSockets>& sockets, const std::string& collectives,
                          const std::string& python_hook) const;

  const std::string& program() const { return program_; }
  /// Returns whether the workers may run Python, and get the hook.
  bool wants_python_hook() const { return wants_python_hook_; }
  /// A missing directory of VIRTUAL_ENV, CONDA_PREFIX or PYTHONHOME that this program does not depend on;
  /// empty: none.
  const std::string& warning() const { return warning_; }
  /// The environment of every worker, without the variables of its rank.
  const EnvVars& env() const { return env_; }

 private:
  NodeJob() = default;

  std::string job_id_;
  std::string program_;
  std::string warning_;
  std::vector<std::string> argv_;
  std::string cwd_;
  EnvVars env_;
  std::vector<std::string> devices_;
  bool stdin_to_rank0_ = false;
  bool wants_python_hook_ = false;
  bool uses_omp_threads_ = false;  ///< the program is Python or uses OpenMP
};

}  // namespace ddp::launcher
