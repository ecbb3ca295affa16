#include "apps/ddplaunchd/commands.h"

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
#include <string_view>
#include <utility>

#include "base/asio.h"
#include "base/child_process.h"
#include "base/crypto.h"
#include "base/files.h"
#include "base/program.h"
#include "base/unique_fd.h"
#include "launcher/agent/agent.h"
#include "remote/bootstrap/bootstrap.h"
#include "rendezvous/protocol/message.h"

namespace ddp {

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

namespace {

/// Marks this pushed agent as in use, for the cleanup of the caches (remote/bootstrap/push_script.cc).
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

}  // namespace

int run_stdio_agent(launcher::KeeperLink& keeper) {
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

}  // namespace ddp
