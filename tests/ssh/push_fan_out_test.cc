// Fan-out to hosts that request a copy of the agent. Shell scripts emulate the hosts, most of which
// misbehave.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/crypto.h"
#include "base/files.h"
#include "base/unique_fd.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/hosts/shell_command.h"
#include "remote/transports/command_transport.h"
#include "tests/ssh/channel_io.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace ddp;
using namespace ddp::remote;
using namespace ddp::remote::test;
namespace fs = std::filesystem;

namespace {

/// A directory whose ddplaunchd links to this test program, which is large and has a build id.
class BundleDirectory {
 public:
  BundleDirectory() {
    REQUIRE(::mkdtemp(directory_) != nullptr);
    REQUIRE(::symlink("/proc/self/exe", (std::string(directory_) + "/ddplaunchd").c_str()) == 0);
  }
  ~BundleDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  BundleDirectory(const BundleDirectory&) = delete;
  BundleDirectory& operator=(const BundleDirectory&) = delete;
  std::shared_ptr<AgentBundle> make() const {
    return std::make_shared<AgentBundle>(AgentBundle::BundleRequest{directory_, {1, "0.1.0"}, false});
  }
  std::string directory() const { return directory_; }

 private:
  char directory_[32] = "/tmp/ddplaunch-stock-XXXXXX";
};

/// Returns FanOut's outcome for one host. Its wrapper is the shell line, which may ignore the agent's command
/// in $0 and $@.
Result<StartedAgent> start(asio::io_context& loop, const std::shared_ptr<AgentBundle>& bundle,
                           const std::string& line,
                           std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  LocalTransport transport(loop.get_executor());
  FanOutOptions options;
  options.argv = {"/opt/ddplaunchd", "--stdio"};
  options.deadline = std::chrono::steady_clock::now() + limit;
  options.expected = AgentHello{1, "0.1.0"};
  options.bundle = bundle;
  FanOut fan_out(loop.get_executor(), transport, transport, options);
  Host host = host_named("box");
  host.wrapper = {"/bin/sh", "-c", line};
  Outcomes outcomes;
  run_fan_out(loop, fan_out, {host}, outcomes);
  return std::move(outcomes.at(0));
}

const std::string kAsk = "echo \"ddplaunchd-need $(uname -m) 127\"; read -r n; head -c $n >/dev/null; ";

}  // namespace

TEST_CASE("the file arrives complete, and so does the agent's output after it", "[x86_64]") {
  BundleDirectory files;
  const auto bundle = files.make();
  const auto set = bundle->set_for("x86_64");
  if (!set) SKIP_TEST("not built for x86_64, so there is no file to send");
  const PushedFile& file = (*set)->files.at(0);
  CHECK(file.sha256 == sha256_hex((*set)->bytes.at(0)));
  asio::io_context loop(1);
  const std::string size = std::to_string(file.size);
  auto outcome = start(loop, bundle,
                       kAsk + "echo ddplaunchd-send 0; s=$(head -c " + size +
                           " | sha256sum); [ \"${s%% *}\" = " + file.sha256 +
                           " ] && printf 'ddplaunchd-hello 1 0.1.0\\nFRAME'; exec cat >/dev/null");
  REQUIRE(outcome.has_value());
  CHECK(outcome->pushed == file.size);
  CHECK(std::string("FRAME").starts_with(outcome->first_bytes));
  outcome->channel.reset();
  let_children_end(loop);
}

TEST_CASE("a host with a malformed request is reported, and nothing is left") {
  BundleDirectory files;
  const auto bundle = files.make();
  const auto text_of = [&](const std::string& line) {
    asio::io_context loop(1);
    const auto outcome = start(loop, bundle, line);
    REQUIRE(outcome.has_error());
    let_children_end(loop);
    return outcome.error().text;
  };
  const std::string advice = "; install the same version there or name it with --agent PATH";
  const auto descriptors = open_descriptors();
  CHECK(text_of("echo ddplaunchd-need vax 127; exec cat") ==
        "box: it has no ddplaunchd of this build, and there is none here for a machine of type vax" + advice);
  CHECK(text_of(kAsk + "echo ddplaunchd-send 1; exec cat") ==
        "box: the greeting of /opt/ddplaunchd cannot be read: \"ddplaunchd-send 1\"" + advice);
  CHECK(text_of("echo ddplaunchd-send 0; exec cat") ==
        "box: the greeting of /opt/ddplaunchd cannot be read: \"ddplaunchd-send 0\"" + advice);
  // Each of the following hosts fails or exits while the file is being sent.
  CHECK(text_of(kAsk +
                "echo ddplaunchd-send 0; head -c 1 >/dev/null; echo ddplaunchd-fail disk; exec sleep 1") ==
        "box: ddplaunchd is not installed there, and copying it failed: disk" + advice);
  CHECK(text_of(kAsk + "echo ddplaunchd-send 0; echo why >&2; exit 3") ==
        "box: /opt/ddplaunchd ended with exit status 3 before its greeting; its last lines:\n  why");
  CHECK(text_of(kAsk + "echo ddplaunchd-send 0; exec 0</dev/null; echo x; exit 4") ==
        "box: /opt/ddplaunchd ended with exit status 4 before its greeting; its last lines:\n  x");
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("a failing wrapper is the reported reason for any exit status") {
  BundleDirectory files;
  const auto bundle = files.make();
  for (const char* status : {"1", "125", "126", "127"}) {
    asio::io_context loop(1);
    const auto outcome =
        start(loop, bundle, std::string("echo Error: No such container >&2; exit ") + status);
    REQUIRE(outcome.has_error());
    CHECK(outcome.error().code == ErrorCode::kUnreachable);
    CHECK(outcome.error().text ==
          std::string("box: the wrapper (/bin/sh -c echo Error: No such container >&2; exit ") + status +
              ") ended with exit status " + status +
              " before the search for ddplaunchd began; its last lines:\n  Error: No such container");
    let_children_end(loop);
  }
}

TEST_CASE("a cached agent that does not greet is replaced once") {
  BundleDirectory files;
  const auto bundle = files.make();
  asio::io_context loop(1);
  // The search finds a cached agent, which exits without a greeting. The next command skips the search and
  // requests a copy.
  const std::string line =
      "case $5 in *--fits*) echo ddplaunchd-runs /home/x; echo broken >&2; exit 0;; esac; " + kAsk;
  auto outcome = start(loop, bundle, line + "echo ddplaunchd-hello 1 0.1.0; exec cat >/dev/null");
  REQUIRE(outcome.has_value());
  CHECK(outcome->errors.empty());
  outcome->channel.reset();
  let_children_end(loop);
  const auto twice = start(loop, bundle, line + "echo ddplaunchd-runs /home/y; exit 3");
  REQUIRE(twice.has_error());
  CHECK(twice.error().code == ErrorCode::kAgentMismatch);
  CHECK(twice.error().text == "box: /home/y ended with exit status 3 before its greeting; it wrote nothing");
  let_children_end(loop);
}

TEST_CASE("a host that stops reading is given up at the deadline", "[x86_64]") {
  BundleDirectory files;
  const auto bundle = files.make();
  if (!bundle->set_for("x86_64")) SKIP_TEST("not built for x86_64, so there is no file to send");
  asio::io_context loop(1);
  const auto outcome =
      start(loop, bundle, kAsk + "echo ddplaunchd-send 0; exec sleep 3", std::chrono::seconds(1));
  REQUIRE(outcome.has_error());
  CHECK(outcome.error().code == ErrorCode::kTimeout);
  let_children_end(loop);
}

TEST_CASE("the event loop continues while the disk with the agent's file hangs") {
  BundleDirectory files;
  const auto bundle = files.make();
  REQUIRE_FALSE(bundle->wanted().keys.empty());
  const std::string file = bundle->wanted().path;
  REQUIRE(::unlink(file.c_str()) == 0);
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  std::atomic<bool> over = false;
  // An open of a FIFO for reading blocks until a writer opens it. This writer opens it when the fan-out is
  // over, or after 30 s, so that a blocked event loop fails the test.
  std::thread writer([&] {
    for (int i = 0; i < 300 && !over; ++i)
      ::usleep(100'000);
    const UniqueFd opened(::open(file.c_str(), O_RDWR | O_CLOEXEC));
    while (!over)
      ::usleep(10'000);
    ::unlink(file.c_str());
  });
  asio::io_context loop(1);
  int ticks = 0;
  asio::steady_timer timer(loop);
  std::function<void(const error_code&)> tick = [&](const error_code& cancelled) {
    if (cancelled) return;
    ++ticks;
    timer.expires_after(std::chrono::milliseconds(10));
    timer.async_wait(tick);
  };
  tick({});
  const auto outcome = start(loop, bundle, kAsk, std::chrono::seconds(5));
  timer.cancel();
  over = true;
  writer.join();
  REQUIRE(outcome.has_error());
  CHECK(outcome.error().code == ErrorCode::kTimeout);
  CHECK(outcome.error().text ==
        "box: " + file +
            " or a file beside it was not read on this machine before the start limit; "
            "its disk hangs");
  CHECK(ticks > 10);
  let_children_end(loop);
}

TEST_CASE("an installed agent of the same version runs where none can be copied") {
  BundleDirectory files;
  const auto bundle = files.make();
  asio::io_context loop(1);
  auto outcome =
      start(loop, bundle,
            "echo ddplaunchd-need vax 3; read -r n; s=$(head -c $n); [ \"$s\" = 'exec \"$i\" --stdio' ] && "
            "printf 'ddplaunchd-hello 1 0.1.0\\n'; exec cat >/dev/null");
  REQUIRE(outcome.has_value());
  CHECK(outcome->pushed == 0);
  outcome->channel.reset();
  let_children_end(loop);
}

namespace {

/// The lookup on a host, by a real shell. A script takes the place of the agent, with the answers of one.
class LookupHost {
 public:
  explicit LookupHost(std::string shell) : shell_(std::move(shell)) {
    REQUIRE(::mkdtemp(directory_) != nullptr);
    fs::create_directories(path("home/.cache/ddplaunch/agent-aa11"));
    fs::create_directories(path("opt/bin"));
    for (const char* where : {"opt/bin", "home/.cache/ddplaunch/agent-aa11"})
      add_agent(std::string(where) + "/ddplaunchd", "echo aa11");
    for (const auto& entry : fs::recursive_directory_iterator(directory_))
      fs::permissions(entry.path(), fs::perms(0755));
  }
  ~LookupHost() {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  LookupHost(const LookupHost&) = delete;
  LookupHost& operator=(const LookupHost&) = delete;

  std::string path(const std::string& below) const { return std::string(directory_) + '/' + below; }
  void add_agent(const std::string& below, const std::string& fits) const {
    std::ofstream(path(below)) << "#!/bin/sh\necho $1 >>" << path("ran") << "\n[ $1 = --stdio ] || " << fits
                               << '\n';
    fs::permissions(path(below), fs::perms(0755));
  }
  void allow(const std::string& below, unsigned mode) const {
    REQUIRE(::chmod(path(below).c_str(), mode) == 0);
  }
  void install_train(const std::string& below) const {
    fs::create_directories(path(below));
    std::ofstream(path(below + "/train")) << "#!/bin/sh\n";
    for (fs::path at = path(below + "/train"); at != fs::path(directory_); at = at.parent_path())
      fs::permissions(at, fs::perms(0755));
  }

  /// Returns the stdout and stderr of the command, of which `argv` is the end.
  std::string run(const std::vector<std::string>& argv) const {
    const auto quoted = shell_quote(argv);
    REQUIRE(quoted.has_value());
    const std::string line = "cd /; HOME=" + path("home") + " XDG_CACHE_HOME= PATH=\"" + path("tools") +
                             ":$PATH\" " + *quoted + " </dev/null 2>&1";
    fs::create_directories(path("tools"));
    if (!fs::exists(path("tools/sh"))) fs::create_symlink(shell_, path("tools/sh"));
    std::FILE* out = ::popen(line.c_str(), "r");
    REQUIRE(out != nullptr);
    std::string text;
    for (int byte = 0; (byte = std::fgetc(out)) != EOF;)
      text += static_cast<char>(byte);
    ::pclose(out);
    return text;
  }
  std::string look_up(bool train = false) const {
    fs::remove(path("ran"));
    return run(first_lookup({path("opt/bin/ddplaunchd"), {1, "0.1.0"}, {"aa11"}, train}));
  }
  std::string runs(const std::string& below) const { return "ddplaunchd-runs " + path(below) + '\n'; }

 private:
  std::string shell_;
  char directory_[32] = "/tmp/ddplaunch-host-XXXXXX";
};

std::vector<std::string> shells() {
  std::vector<std::string> found;
  for (const char* shell : {"/bin/dash", "/bin/bash", "/bin/busybox", "/bin/zsh", "/bin/ksh", "/bin/mksh"}) {
    if (::access(shell, X_OK) == 0) found.emplace_back(shell);
  }
  return found;
}

const std::string kCached = "home/.cache/ddplaunch/agent-aa11/ddplaunchd";

}  // namespace

TEST_CASE("a host executes no agent that other users could replace") {
  for (const std::string& shell : shells()) {
    INFO(shell);
    const LookupHost host(shell);
    CHECK(host.look_up() == host.runs("opt/bin/ddplaunchd"));
    struct Writable {
      const char* what;
      unsigned mode;
    };
    const bool own_group = ::getegid() == ::geteuid();
    for (const Writable& unsafe :
         {Writable{"opt/bin/ddplaunchd", 0757}, {"opt/bin", 0757}, {"opt", 0777}, {"opt", 0775}}) {
      INFO(unsafe.what);
      host.allow(unsafe.what, unsafe.mode);
      const std::string not_used = "not used: " + host.path("opt/bin/ddplaunchd") +
                                   ", since other users could replace " + host.path(unsafe.what) + '\n';
      if (unsafe.mode == 0775 && own_group)
        CHECK(host.look_up() == host.runs("opt/bin/ddplaunchd"));  // only this account is in its own group
      else
        CHECK(host.look_up() == not_used + host.runs(kCached));
      host.allow(unsafe.what, 0755);
    }
    host.allow("opt", 01777);  // nobody but its owner renames `bin` there
    CHECK(host.look_up() == host.runs("opt/bin/ddplaunchd"));
    host.allow("opt", 0755);
    // The same holds for the cache. Nothing was executed.
    host.allow("opt", 0777);
    host.allow("home", 0777);
    const std::string needed = host.look_up();
    CHECK(needed.find("ddplaunchd-need ") != std::string::npos);
    CHECK(needed.find(" 255 255\n") != std::string::npos);
    CHECK_FALSE(fs::exists(host.path("ran")));
  }
}

TEST_CASE("a host executes no agent in a directory that an access control list opens to other users") {
  // Format 2 of linux/posix_acl_xattr.h: the owner, user 12345, the group, the mask and others.
  struct Entry {
    std::uint16_t tag, permissions;
    std::uint32_t id;
  };
  struct {
    std::uint32_t version = 2;
    Entry entries[5] = {{1, 7, ~0U}, {2, 7, 12345}, {4, 5, ~0U}, {16, 7, ~0U}, {32, 5, ~0U}};
  } const acl;
  for (const std::string& shell : shells()) {
    if (shell == "/bin/busybox") continue;  // its `ls` does not show access control lists
    INFO(shell);
    const LookupHost host(shell);
    if (::setxattr(host.path("opt").c_str(), "system.posix_acl_access", &acl, sizeof acl, 0) != 0)
      SKIP_TEST("this file system has no access control lists");
    CHECK(host.look_up().ends_with(host.runs(kCached)));
    CHECK(distrust_program(host.path("opt/bin/ddplaunchd")) ==
          "other users may write to " + fs::canonical(host.path("opt")).string());
  }
}

TEST_CASE("a host executes no agent of another user, nor one below another user's directory") {
  if (::geteuid() != 0) SKIP_TEST("needs root");
  for (const std::string& shell : shells()) {
    INFO(shell);
    const LookupHost host(shell);
    for (const char* what : {"opt", "opt/bin", "opt/bin/ddplaunchd"}) {
      REQUIRE(::lchown(host.path(what).c_str(), 12345, 0) == 0);
      CHECK(host.look_up().ends_with(host.runs(kCached)));
      REQUIRE(::lchown(host.path(what).c_str(), 0, 0) == 0);
    }
    host.allow("opt", 0775);
    REQUIRE(::lchown(host.path("opt").c_str(), 0, 12345) == 0);
    CHECK(host.look_up().ends_with(host.runs(kCached)));
    // A link into another user's directory is such a path as well.
    fs::create_directories(host.path("his"));
    host.add_agent("his/ddplaunchd", "echo aa11");
    fs::remove(host.path("opt/bin/ddplaunchd"));
    fs::create_symlink("../../his/ddplaunchd", host.path("opt/bin/ddplaunchd"));
    REQUIRE(::lchown(host.path("opt").c_str(), 0, 0) == 0);
    CHECK(host.look_up() == host.runs("his/ddplaunchd"));
    REQUIRE(::lchown(host.path("his").c_str(), 12345, 0) == 0);
    CHECK(host.look_up().ends_with(host.runs(kCached)));
  }
}

TEST_CASE("a host executes no train that other users could replace") {
  for (const std::string& shell : shells()) {
    INFO(shell);
    const LookupHost host(shell);
    host.install_train("opt/libexec/ddplaunch");
    CHECK(host.look_up(true) == host.runs("opt/bin/ddplaunchd"));
    host.allow("opt/libexec", 0777);
    CHECK(host.look_up(true).starts_with("not used: " + host.path("opt/bin/../libexec/ddplaunch/train")));
    CHECK_FALSE(fs::exists(host.path("ran")));
  }
}

TEST_CASE("a given agent that other users could replace is an error") {
  for (const std::string& shell : shells()) {
    INFO(shell);
    const LookupHost host(shell);
    const std::vector<std::string> given = given_lookup({host.path("opt/bin/ddplaunchd"), "--stdio"});
    CHECK(host.run(given) == host.runs("opt/bin/ddplaunchd"));
    host.allow("opt/bin", 0777);
    CHECK(host.run(given) == "ddplaunchd-fail " + host.path("opt/bin/ddplaunchd") +
                                 " is not executed there, since other users could replace " +
                                 host.path("opt/bin") +
                                 "; without --agent and --no-push, ddplaunch copies its own\n");
    // A name without '/' is looked up in PATH.
    fs::create_directories(host.path("tools"));
    host.add_agent("tools/ddplaunchd", "true");
    CHECK(host.run(given_lookup({"ddplaunchd", "--stdio"})) == host.runs("tools/ddplaunchd"));
  }
}

namespace {

/// Writes a program in place of ssh and returns its path. The first `refusals` runs execute `refusal`. Later
/// runs are agents.
std::string fake_ssh(const std::string& directory, int refusals, const std::string& refusal) {
  const std::string path = directory + "/ssh";
  std::ofstream(path) << "#!/bin/sh\necho x >>" << directory << "/runs\n[ $(wc -l <" << directory
                      << "/runs) -gt " << refusals
                      << " ] && { echo ddplaunchd-hello 1 0.1.0; exec cat >/dev/null; }\n"
                      << refusal << "\nexit 255\n";
  ::chmod(path.c_str(), 0755);
  return path;
}

struct StartResult {
  Result<StartedAgent> outcome;
  int runs;
};

StartResult through_command(asio::io_context& loop, int refusals, const std::string& refusal) {
  char directory[] = "/tmp/ddplaunch-ssh-XXXXXX";
  REQUIRE(::mkdtemp(directory) != nullptr);
  CommandTransport transport(loop.get_executor(), {{fake_ssh(directory, refusals, refusal)}, "", false});
  FanOutOptions options;
  options.argv = {"/opt/ddplaunchd", "--stdio"};
  options.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  FanOut fan_out(loop.get_executor(), transport, transport, options);
  Outcomes outcomes;
  run_fan_out(loop, fan_out, {host_named("box")}, outcomes);
  loop.poll();
  std::ifstream file(std::string(directory) + "/runs");
  const auto runs = std::count(std::istreambuf_iterator<char>(file), {}, 'x');
  std::filesystem::remove_all(directory);
  return {std::move(outcomes.at(0)), static_cast<int>(runs)};
}

}  // namespace

TEST_CASE("the ssh program is retried only when the server closed before its greeting") {
  asio::io_context loop(1);
  StartResult good =
      through_command(loop, 3,
                      "echo 'kex_exchange_identification: read: Connection reset by peer' >&2\n"
                      "echo 'Connection reset by 127.0.0.1 port 22' >&2");
  CHECK(good.outcome.has_value());
  CHECK(good.runs == 4);
  good.outcome = Error{ErrorCode::kCancelled, ""};
  let_children_end(loop);
  const StartResult killed = through_command(loop, 3, "kill -KILL $$");
  REQUIRE(killed.outcome.has_error());
  CHECK(killed.outcome.error().code == ErrorCode::kUnreachable);
  CHECK(killed.runs == 1);
  let_children_end(loop);
  // In the last case, a jump host refuses the login.
  for (const char* words : {"echo 'ssh: connect to host a port 22: Connection refused' >&2", "true",
                            "echo 'a@b: Permission denied (publickey).' >&2\n"
                            "echo 'kex_exchange_identification: Connection closed by remote host' >&2"}) {
    const StartResult once = through_command(loop, 3, words);
    REQUIRE(once.outcome.has_error());
    CHECK(once.outcome.error().code == ErrorCode::kUnreachable);
    CHECK(once.runs == 1);
    let_children_end(loop);
  }
}

namespace {

/// Returns whether all processes of the group are zombies. Process 1 of some containers reaps no process.
bool only_zombies(pid_t group) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0])) == 0) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    const std::size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) continue;
    char state = 0;
    int parent = 0;
    int its_group = 0;
    if (std::sscanf(text.c_str() + name_end + 1, " %c %d %d", &state, &parent, &its_group) == 3 &&
        its_group == group && state != 'Z')
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a wrapper that withholds input or files from the agent is reported", "[x86_64]") {
  BundleDirectory files;
  const auto bundle = files.make();
  if (!bundle->set_for("x86_64")) SKIP_TEST("not built for x86_64, so there is no file to send");
  asio::io_context loop(1);
  const std::string here = "HOME=" + files.directory() + "/none; export HOME; unset XDG_CACHE_HOME; ";
  const auto wrapped = [&](const std::string& line) {
    auto outcome = start(loop, bundle, here + line);
    REQUIRE(outcome.has_error());
    let_children_end(loop);
    return outcome.error().text;
  };
  CHECK(wrapped("exec \"$0\" \"$@\" </dev/null") ==
        "box: ddplaunchd is not installed there, and copying it failed: its standard input is closed (docker "
        "exec "
        "without -i?); install the same version there or name it with --agent PATH");
  CHECK(wrapped("ulimit -n 10; exec \"$0\" \"$@\"") ==
        "box: ddplaunchd is not installed there, and copying it failed: too few open files are allowed there "
        "(ulimit "
        "-n 10); install the same version there or name it with --agent PATH");
  CHECK(wrapped("ulimit -f 100; exec \"$0\" \"$@\"").find(" bytes (ulimit -f ") != std::string::npos);
}

TEST_CASE("a wrapper that hangs is killed with all processes that it started") {
  BundleDirectory files;
  const auto bundle = files.make();
  for (const char* line : {"sleep 1000 & wait", "trap '' TERM; sleep 1000 & sleep 1000; sleep 1000"}) {
    pid_t group = 0;
    // The time until the wrapper reports its group depends on the machine, so the limit grows.
    for (std::chrono::seconds limit(1); limit <= std::chrono::seconds(16) && group == 0; limit *= 4) {
      asio::io_context loop(1);
      const auto outcome = start(loop, bundle, std::string("echo group $$ >&2; ") + line, limit);
      REQUIRE(outcome.has_error());
      CHECK(outcome.error().code == ErrorCode::kTimeout);
      const std::string& text = outcome.error().text;
      const std::size_t wrapped = text.rfind("\n  group ");
      if (wrapped != std::string::npos) group = std::stoi(text.substr(wrapped + 9));
      let_children_end(loop);
    }
    REQUIRE(group > 0);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!only_zombies(group) && std::chrono::steady_clock::now() < limit)
      ::usleep(10'000);
    CHECK(only_zombies(group));
  }
}
