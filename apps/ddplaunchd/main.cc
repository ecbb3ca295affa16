// ddplaunchd: the node agent. ddplaunch starts it on every node with `--stdio`, which serves one job over
// stdin and stdout.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/ddplaunchd/daemon_options.h"
#include "base/asio.h"
#include "base/child_process.h"
#include "base/crypto.h"
#include "base/files.h"
#include "base/program.h"
#include "base/unique_fd.h"
#include "launcher/agent/agent.h"
#include "launcher/keeper/keeper.h"
#include "remote/bootstrap/bootstrap.h"
#include "rendezvous/link/link_token.h"
#include "rendezvous/protocol/message.h"

namespace ddp {
namespace {

/// Executes `ddplaunch-listen`, which lies beside this program: a static program that is sent to nodes has no
/// TLS. Returns the exit code if the program cannot be executed.
int run_listener(char** argv) {
  const auto directory = own_directory();
  if (!directory) {
    std::fprintf(stderr, "ddplaunchd: %s\n", directory.error().text.c_str());
    return 110;
  }
  const std::string program = companion_program(*directory, "ddplaunch-listen");
  if (const std::string why = distrust_companion(program); !why.empty()) {
    std::fprintf(stderr, "ddplaunchd: %s is not executed: %s\n", program.c_str(), why.c_str());
    return 110;
  }
  ::execv(program.c_str(), argv);
  std::fprintf(stderr, "ddplaunchd: cannot execute %s: %s; --listen and --new-token need this program\n",
               program.c_str(), std::strerror(errno));
  return 110;
}

/// Answers `ddplaunchd --fits PROTOCOL VERSION [KEY…]`: whether this is the agent that a master wants. Exit
/// code 0: one of the keys begins with this build's id ("BUILD" or "BUILD.BUILD-OF-TRAIN"). The key is
/// printed, because any program may exit with 0. remote::kSameVersion: only protocol and version are the
/// same. 1: neither.
int answer_fits(const std::vector<std::string>& words) {
  if (words[0] != std::to_string(rendezvous::kProtocolVersion) || words[1] != version()) return 1;
  const auto own = read_elf_identity("/proc/self/exe");
  // The last lines of stderr are shown as the reason why the agent cannot start there.
  if (!own) std::fputs("ddplaunchd: /proc of this PID namespace is not mounted\n", stderr);
  for (std::size_t i = 2; own && i < words.size(); ++i) {
    const std::string_view key(words[i]);
    if (key.substr(0, key.find('.')) != own->build_id) continue;
    std::printf("%s\n", words[i].c_str());
    return 0;
  }
  return remote::kSameVersion;
}

/// `ddplaunchd --verify SHA256 FILE`, for nodes without sha256sum. Returns exit code 0 if the file has that
/// sum.
int verify_file(const std::string& sum, const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return 1;
  Sha256 hash;
  std::array<char, 64 * 1024> buffer;
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return 1;
    if (count == 0) break;
    hash.add({buffer.data(), static_cast<std::size_t>(count)});
  }
  return hash.hex() == sum ? 0 : 1;
}

/// Marks this pushed agent as in use, for the cleanup of the caches (remote/bootstrap/bootstrap.cc).
void mark_as_used(const char* directory) {
  const std::string_view path(directory);
  if (path.substr(path.rfind('/') + 1).starts_with("agent-")) ::utimensat(AT_FDCWD, directory, nullptr, 0);
}

/// The link's two ends, moved to other descriptors. 0 and 1 are redirected, so that no other output enters
/// the link.
struct LinkEnds {
  UniqueFd in;
  UniqueFd out;
};
Result<LinkEnds> take_stdio() {
  LinkEnds ends{UniqueFd(::fcntl(0, F_DUPFD_CLOEXEC, 3)), UniqueFd(::fcntl(1, F_DUPFD_CLOEXEC, 3))};
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!ends.in || !ends.out || !null) return system_error(errno, "stdin and stdout");
  if (::dup2(null.get(), 0) < 0 || ::dup2(2, 1) < 0) return system_error(errno, "stdin and stdout");
  return ends;
}

constexpr rlim_t kFewestFiles = 40;  ///< those of the agent, the keeper, and one worker

bool write_hello(int fd) {
  const std::string line =
      remote::hello_line({static_cast<int>(rendezvous::kProtocolVersion), std::string(version())});
  return write_bytes(fd, line, "the hello").has_value();
}

/// Returns a condition that would end the agent without a message or with an exception, found before anything
/// is started. Empty: the agent can start.
std::string obstacle() {
  struct stat in {};
  struct stat null {};
  // A program runner without -i (docker exec) gives the process this stdin.
  if (::fstat(0, &in) == 0 && ::stat("/dev/null", &null) == 0 && S_ISCHR(in.st_mode) &&
      S_ISCHR(null.st_mode) && in.st_rdev == null.st_rdev)
    return "its standard input is closed; check the wrapper (docker exec needs -i)";
  struct rlimit files {};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < kFewestFiles)
    return "too few open files are allowed there (ulimit -n " + std::to_string(files.rlim_cur) + ")";
  return {};
}

int fail(const Error& error) {
  std::fprintf(stderr, "ddplaunchd: %s\n", error.text.c_str());
  return 110;
}

/// Runs the agent of one job over this process's stdin and stdout (docs/developers/protocol.md, Bootstrap).
/// Returns the exit code. It runs in the process that the keeper forked, where no thread exists yet and
/// threads may start.
int run_stdio_agent(launcher::KeeperSocket& keeper) {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a write then fails with EFBIG; no own file is worth ending the job
  raise_nofile();              // three descriptors for each worker
  const std::string why = obstacle();
  if (!why.empty()) return fail(Error{ErrorCode::kSystem, why, 0});
  launcher::Agent::Options options;
  auto directory = own_directory();
  if (!directory) return fail(directory.error());
  options.directory = std::move(*directory);
  mark_as_used(options.directory.c_str());
  auto facts = launcher::gather_node_facts();
  if (!facts) return fail(facts.error());
  options.facts = std::move(*facts);
  auto ends = take_stdio();
  if (!ends) return fail(ends.error());
  if (!write_hello(ends->out.get())) return 0;  // the master has gone already

  asio::io_context loop(1);
  using Descriptor = asio::posix::stream_descriptor;
  auto stream = std::make_unique<AsioStream<Descriptor, Descriptor>>(Descriptor(loop, ends->in.release()),
                                                                     Descriptor(loop, ends->out.release()));
  return launcher::Agent(loop, std::move(stream), keeper, std::move(options)).run();
}

int serve_one_job() {
  // A profile of this node may have set the token. Setup scripts and tools must not see it.
  (void)rendezvous::take_token_from_environment();
  launcher::KeeperOptions options;
  options.exit_code_if_left = launcher::kExitProcessesLeft;
  return launcher::run_keeper(options, run_stdio_agent);
}

int print(const std::string& text) {
  const auto printed = print_result(text);
  if (printed) return 0;
  std::fprintf(stderr, "ddplaunchd: %s\n", printed.error().text.c_str());
  return 110;
}

int run(const DaemonOptions& options, char** argv) {
  switch (options.command) {
    case DaemonCommand::kHelp: return print(daemon_help());
    case DaemonCommand::kVersion: return print("ddplaunchd " + std::string(version()) + '\n');
    case DaemonCommand::kListen:
    case DaemonCommand::kNewToken: return run_listener(argv);
    case DaemonCommand::kStdio: return serve_one_job();
    case DaemonCommand::kFits: return answer_fits(options.fits_words);
    case DaemonCommand::kVerify: return verify_file(options.verify_words[0], options.verify_words[1]);
  }
  return 2;
}

}  // namespace
}  // namespace ddp

int main(int argc, char** argv) {
  ddp::fill_standard_descriptors();
  const auto options = ddp::read_daemon_options({argv + 1, argv + argc});
  if (options) return ddp::run(*options, argv);
  if (argc == 1) std::fputs(ddp::daemon_help().c_str(), stderr);
  if (argc > 1) std::fprintf(stderr, "ddplaunchd: %s\n", options.error().text.c_str());
  return 2;
}
