#include "launcher/agent/node_job.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/job/job_spec.h"

namespace ddp::launcher {
namespace {

/// The kernel reads no more of a first line (BINPRM_BUF_SIZE).
constexpr std::size_t kKernelReads = 256;

/// Returns the first line of the file at `path` if it is "#!…"; else "". May block.
std::string shebang_line(const std::string& path) {
  const std::string start = read_start(path, kKernelReads, O_NONBLOCK | O_NOCTTY);
  return start.starts_with("#!") ? start.substr(0, start.find('\n')) : "";
}

std::string without_blanks(const std::string& text) {
  const std::size_t from = text.find_first_not_of(" \t");
  if (from == std::string::npos) return {};
  return text.substr(from, text.find_last_not_of(" \t") + 1 - from);
}

/// The program that env(1) searches for; empty if that is not easily known. Without -S, the kernel passes
/// everything after env as one word.
std::string env_program(const std::string& argument) {
  if (argument.find('=') != std::string::npos) return {};
  if (!argument.starts_with("-S")) return argument.starts_with('-') ? std::string() : argument;
  const std::string words = without_blanks(argument.substr(2));
  return words.starts_with('-') ? std::string() : words.substr(0, words.find_first_of(" \t"));
}

/// More entries than any linker writes; the file may be damaged.
constexpr std::size_t kMostEntries = 4096;

/// Returns false if the file ends before `size` bytes.
bool read_at(int fd, void* to, std::size_t size, std::uint64_t offset) {
  return ::pread(fd, to, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

template <class Entry>
std::vector<Entry> read_table(int fd, std::uint64_t offset, std::size_t count) {
  std::vector<Entry> table(std::min(count, kMostEntries));
  if (!read_at(fd, table.data(), table.size() * sizeof(Entry), offset)) table.clear();
  return table;
}

/// Returns the place in the file of an address in memory; 0: the file does not have it.
std::uint64_t file_offset(const std::vector<Elf64_Phdr>& segments, std::uint64_t address) {
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz)
      return segment.p_offset + (address - segment.p_vaddr);
  }
  return 0;
}

bool is_omp_library(std::string_view name) {
  return name.starts_with("libgomp.so") || name.starts_with("libiomp5.so") || name.starts_with("libomp.so");
}

bool elf_needs_omp(int fd) {
  Elf64_Ehdr header{};
  constexpr unsigned char kOrder = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
  if (!read_at(fd, &header, sizeof header, 0) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != kOrder)
    return false;
  const auto segments = read_table<Elf64_Phdr>(fd, header.e_phoff, header.e_phnum);
  const auto dynamic = std::find_if(segments.begin(), segments.end(),
                                    [](const Elf64_Phdr& s) { return s.p_type == PT_DYNAMIC; });
  if (dynamic == segments.end()) return false;
  const auto entries = read_table<Elf64_Dyn>(fd, dynamic->p_offset, dynamic->p_filesz / sizeof(Elf64_Dyn));
  std::uint64_t strings = 0;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_STRTAB) strings = file_offset(segments, entry.d_un.d_ptr);
  }
  if (strings == 0) return false;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NULL) break;
    char name[16] = {};
    if (entry.d_tag == DT_NEEDED &&
        ::pread(fd, name, sizeof name - 1, static_cast<off_t>(strings + entry.d_un.d_val)) > 0 &&
        is_omp_library(name))
      return true;
  }
  return false;
}

/// As shebang_line, but only of a script of Python.
std::string python_line(const std::string& path) {
  std::string line = shebang_line(path);
  return line.find("python") == std::string::npos ? "" : line;
}

bool is_directory(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

std::string missing_text(const std::string& variable, const std::string& directory) {
  return variable + " names " + one_line(directory) +
         ", which does not exist; install the environment at the same path, or launch without it active";
}

/// Returns whether the job's Python is, or without `variable`'s directory would not be, the one that the user
/// means. `wanted` is as given, `program` its path.
bool depends_on(const std::string& variable, const std::string& wanted, const std::string& program,
                bool is_python) {
  const bool searched = wanted.find('/') == std::string::npos;
  if (is_python) return searched || variable == "PYTHONHOME";
  const std::string line = python_line(program);
  return !line.empty() && (variable == "PYTHONHOME" || line.find("env ") != std::string::npos);
}

/// Reports a script that python could not open before anything starts.
Result<> script_exists(const std::string& script, const std::string& cwd) {
  const std::string path = script.starts_with('/') ? script : cwd + "/" + script;
  if (::access(path.c_str(), R_OK) == 0) return {};
  Error error = system_error(errno, "the script " + path, ErrorCode::kExec);
  error.text += "; it must be at the same path on every node";
  return error;
}

}  // namespace

std::string interpreter_trouble(const std::string& program, const EnvVars& env, const std::string& cwd) {
  const std::string line = shebang_line(program);
  if (line.empty()) return {};
  const std::string words = without_blanks(line.substr(2));
  const std::size_t end = words.find_first_of(" \t");
  const std::string interpreter = words.substr(0, end);
  if (interpreter.empty()) return {};
  const std::string file = interpreter.starts_with('/') ? interpreter : cwd + '/' + interpreter;
  if (::access(file.c_str(), F_OK) != 0) return exec_error(ENOENT, program, cwd).text;

  if (!file.ends_with("/env") || end == std::string::npos) return {};
  const std::string wanted = env_program(without_blanks(words.substr(end)));
  if (wanted.empty()) return {};
  if (find_program(wanted, path_in(env), cwd)) return {};
  std::string text =
      "execute " + program + ": its first line asks env for '" + wanted + "', which is not in PATH";
  if (wanted.ends_with('\r'))
    text += ": the line has a Windows line ending; save the file with Unix line endings";
  else if (wanted.find(' ') != std::string::npos)
    text += " (env takes the rest of the line as one word; use env -S)";
  return one_line(text);
}

bool uses_omp_threads(const std::string& path) {
  if (path.substr(path.rfind('/') + 1).starts_with("python") || !python_line(path).empty()) return true;
  const std::string start = read_start(path, SELFMAG, O_NONBLOCK | O_NOCTTY);
  if (!start.starts_with(ELFMAG)) return false;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  return file && elf_needs_omp(file.get());
}

Result<std::string> NodeJob::directory(const std::string& wanted) {
  if (wanted.empty()) {
    char buffer[4096];
    if (::getcwd(buffer, sizeof buffer) == nullptr) return system_error(errno, "the agent's own directory");
    return std::string(buffer);
  }
  struct stat found {};
  if (::stat(wanted.c_str(), &found) != 0) {
    Error error = system_error(errno, "the working directory " + wanted, ErrorCode::kRefused);
    error.text += "; create it there, or name another with --chdir or chdir= in the hostfile";
    return error;
  }
  if (!S_ISDIR(found.st_mode) || ::access(wanted.c_str(), X_OK) != 0) {
    return Error{ErrorCode::kRefused,
                 "the working directory " + one_line(wanted) +
                     (S_ISDIR(found.st_mode) ? " may not be entered" : " is not a directory") +
                     "; name another with --chdir or chdir= in the hostfile"};
  }
  return wanted;
}

Result<NodeJob> NodeJob::prepare(const rendezvous::JobStart& start, EnvVars env,
                                 const std::string& agent_dir) {
  NodeJob job;
  job.job_id_ = start.job_id;
  job.devices_ = start.devices;
  if (job.devices_.empty()) {
    // Instances of a divided GPU are dealt out to the workers (worker_env); of other GPUs a worker sees all.
    const std::string* const visible = find_env(env, "CUDA_VISIBLE_DEVICES");
    auto names = visible_gpus(visible != nullptr ? visible->c_str() : nullptr);
    if (std::ranges::any_of(names, [](const auto& name) { return name.starts_with("MIG-"); }))
      job.devices_ = std::move(names);
  }
  job.stdin_to_rank0_ = start.stdin_to_rank0;
  job.cwd_ = DDP_TRY(directory(start.chdir));
  job.env_ = std::move(env);

  const auto& [kind, argv, python] = start.command;
  // A program may be a shell script that starts Python.
  job.wants_python_hook_ = start.diagnosis && kind != WorkerCommand::Kind::kTrain;
  std::string wanted;
  switch (kind) {
    case WorkerCommand::Kind::kNone: break;
    case WorkerCommand::Kind::kProgram:
      if (!argv.empty()) wanted = argv.front();
      job.argv_ = argv;
      break;
    case WorkerCommand::Kind::kPython:
    case WorkerCommand::Kind::kModule:
      wanted = python.empty() ? "python3" : python;
      job.argv_ = {wanted, "-u"};
      if (kind == WorkerCommand::Kind::kModule) {
        job.argv_.emplace_back("-m");
      } else if (!argv.empty()) {
        DDP_TRY(script_exists(argv.front(), job.cwd_));
      }
      job.argv_.insert(job.argv_.end(), argv.begin(), argv.end());
      break;
    case WorkerCommand::Kind::kTrain:
      wanted = companion_program(agent_dir, "train");
      if (const std::string why = distrust_companion(wanted); !why.empty())
        return Error{ErrorCode::kExec, wanted + " is not executed: " + why, EPERM};
      job.argv_ = {"train"};
      job.argv_.insert(job.argv_.end(), argv.begin(), argv.end());
      break;
  }
  if (wanted.empty()) return Error{ErrorCode::kProtocol, "the job names no program"};
  auto program = find_program(wanted, path_in(job.env_), job.cwd_);
  const bool is_python = kind == WorkerCommand::Kind::kPython || kind == WorkerCommand::Kind::kModule ||
                         wanted.substr(wanted.rfind('/') + 1).starts_with("python");
  for (const auto& [name, directory] : promised_directories(job.env_)) {
    if (is_directory(directory)) continue;
    if (depends_on(name, wanted, program ? *program : "", is_python))
      return Error{ErrorCode::kRefused, missing_text(name, directory)};
    if (job.warning_.empty()) job.warning_ = missing_text(name, directory);
  }
  if (!program) {
    // `ddplaunch 4 train.py`: a habit of other launchers. Behind more words the script belongs to the
    // program.
    Error error = program.error();
    if (kind == WorkerCommand::Kind::kProgram && error.sys == ENOENT && argv.size() > 1 &&
        argv[1].ends_with(".py"))
      error.text += "; to run " + argv[1] + " omit the word before it";
    if (!job.warning_.empty()) error.text += "; " + job.warning_;  // it may be there
    return error;
  }
  job.program_ = std::move(*program);
  job.uses_omp_threads_ = kind == WorkerCommand::Kind::kPython || kind == WorkerCommand::Kind::kModule ||
                          uses_omp_threads(job.program_);
  DDP_TRY(check_exec_size(job.env_, job.argv_));
  return job;
}

Result<NodeJob::Workers> NodeJob::workers(const rendezvous::Spawn& spawn, int cores,
                                          const std::string& error_prefix,
                                          const std::vector<WorkerSockets>& sockets,
                                          const std::string& collectives,
                                          const std::string& python_hook) const {
  Workers workers;
  WorkerFacts facts;
  facts.spawn = spawn;
  facts.job_id = job_id_;
  facts.omp_threads = omp_threads_for(cores, static_cast<int>(spawn.local_world_size));
  facts.devices = devices_;
  facts.collectives = collectives;
  facts.python_hook = python_hook;
  for (std::uint32_t local = 0; local < spawn.local_world_size; ++local) {
    facts.local_rank = local;
    if (!error_prefix.empty()) {
      facts.error_file = error_prefix + std::to_string(facts.rank()) + ".json";
      workers.error_files.push_back(facts.error_file);
    }
    facts.sockets = local < sockets.size() ? sockets[local] : WorkerSockets{};
    EnvVars env = env_;
    WorkerEnv own = worker_env(facts, env_);
    for (const auto& [name, value] : own.vars)
      set_env(env, name, value);
    if (uses_omp_threads_) workers.omp_threads = own.omp_threads;
    DDP_TRY(check_exec_size(env, argv_));
    WorkerSpec spec;
    spec.local_rank = local;
    spec.child.path = program_;
    spec.child.argv = argv_;
    spec.child.env = env_entries(env);
    spec.child.cwd = cwd_;
    spec.wants_stdin = stdin_to_rank0_ && facts.rank() == 0;
    workers.specs.push_back(std::move(spec));
  }
  return workers;
}

}  // namespace ddp::launcher
