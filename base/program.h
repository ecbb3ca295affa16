#pragma once

#include <limits.h>
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ddp {

/// "0.1.0": printed by --version; the agents on the nodes must have the same version.
std::string_view version();

/// Opens /dev/null as each of the descriptors 0, 1 and 2 that this process was started without. Otherwise the
/// next files, sockets or timers would get these numbers and receive text for the terminal. Call it first in
/// main, before anything is opened.
void fill_standard_descriptors();
/// Returns whether fill_standard_descriptors had to open `fd`. Anything written to it is lost.
bool was_closed(int fd);

/// Blocks all signals in this thread as long as it exists. What is started meanwhile inherits the mask: a
/// process handles its signals on one thread, and no handler may run on another one.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);  // without the signals of libc itself, which setuid needs
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// Starts a thread in which all signals are blocked. Error: kSystem, the system refuses to `what`.
template <class Body>
Result<std::thread> start_thread(Body body, const char* what = "start a thread") {
  const SignalsBlocked mask;
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& refused) {
    // A plain Error would also convert to a thread that calls it.
    return Result<std::thread>(boost::system::in_place_error, system_error(refused.code().value(), what));
  }
}

/// Makes this process independent of the terminal and of the shell. Its standard streams are /dev/null, but
/// stderr is `errors` if that is a descriptor.
void leave_terminal(int errors = -1);

/// Writes all of `text` to standard output, which must get nothing else. A partial result must not pass for a
/// complete one, so an incomplete write is an error. Blocks. Error: kSystem, the output is full or was closed
/// from the start (fill_standard_descriptors).
Result<> print_result(const std::string& text);

/// Machine and build of a program file. The build id is the linker's hash over the contents of the program;
/// strip does not change it.
struct ElfIdentity {
  std::string machine;   ///< as `uname -m` prints it: "x86_64", "aarch64"; "" for any other machine
  std::string build_id;  ///< hex
};

inline constexpr std::size_t kElfHead = 64 * 1024;  ///< bytes at the start of a file that suffice for
                                                    ///< elf_identity

/// Parses the first bytes of a file. Returns nothing for anything but a 64-bit little-endian ELF file with a
/// build id. The bytes need not be trusted.
std::optional<ElfIdentity> elf_identity(std::string_view head);

/// Reads the identity of a file. Blocks. Errors: kSystem, the file cannot be read; kAgentMissing, it is no
/// such program.
Result<ElfIdentity> read_elf_identity(const std::string& path);

/// Finds the file that execvp would run. A name with a slash is a path relative to `cwd`. Any other name is
/// searched in the directories of `path` (the value of PATH; unset: /bin:/usr/bin); an empty entry means
/// `cwd`. The result is absolute if `cwd` is; an empty `cwd` means that of this process, and the result may
/// be relative to it. Error: kExec with the reason; sys is ENOENT when nothing was found (shells: exit code
/// 127), else EACCES or EISDIR (126).
Result<std::string> find_program(std::string_view name, std::optional<std::string_view> path,
                                 std::string_view cwd = {});

/// Returns the directory of the running program, absolute and without a trailing slash. Error: kSystem (no
/// /proc).
Result<std::string> own_directory();

/// Returns the path of one of ddplaunch's programs that is not on PATH, such as `train`. An installation has
/// it in ../libexec/ddplaunch of `directory`, the build tree and the cache of a node in `directory` itself.
/// The file need not exist.
std::string companion_program(const std::string& directory, const std::string& name);

/// Explains why execve(path) failed with `err` in working directory `cwd` (empty: that of this process). For
/// example, "No such file" for an existing script means that its interpreter is missing. The files are
/// examined after the failure, at most the first bytes of `path`. Code kExec, sys = err.
Error exec_error(int err, const std::string& path, const std::string& cwd);

/// Returns the name of this host as gethostname gives it; empty if the kernel refuses.
inline std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

/// Returns the GPUs that a process may use, as CUDA_VISIBLE_DEVICES names them. `visible` is that variable,
/// or nullptr if it is unset; if it is set, its list counts ("" and "-1": none), else the driver's GPUs. Of a
/// GPU that is divided (MIG) each compute instance counts: "MIG-GPU-77…/3/0". A process can use only one of
/// these. Reads small files. `proc`, `dev`: "/proc" and "/dev" outside tests.
std::vector<std::string> visible_gpus(const char* visible, const std::string& proc = "/proc",
                                      const std::string& dev = "/dev");

}  // namespace ddp
