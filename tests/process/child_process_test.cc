#include "base/child_process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <thread>

#include "launcher/job/worker_env.h"
#include "tests/process/process_probe.h"

namespace ddp {
namespace {

using namespace process_test;

ChildSpec shell(const std::string& script) {
  ChildSpec spec;
  spec.path = "/bin/sh";
  spec.argv = {"sh", "-c", script};
  return spec;
}

/// A directory that is removed after the test.
class Directory {
 public:
  Directory() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name, const std::string& text, mode_t mode) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path) << text;
    REQUIRE(chmod(path.c_str(), mode) == 0);
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/ddp_child_XXXXXX";
};

Error failure_of(ChildSpec spec) {
  if (spec.argv.empty()) spec.argv = {spec.path};
  const std::size_t before = open_descriptors();
  auto child = spawn(spec);
  REQUIRE(!child.has_value());
  CHECK(descriptors_come_down_to(before));
  return child.error();
}

Error failure_of_path(const std::string& path) {
  ChildSpec spec;
  spec.path = path;
  return failure_of(spec);
}

}  // namespace

TEST_CASE("a child gets its arguments and environment byte for byte, and its directory") {
  ChildSpec spec = shell("printf '%s|' \"$@\"; printf '%s|' \"$V\"; pwd");
  spec.argv.insert(spec.argv.end(), {"sh", "", "a b", "'\"$x\\", "\xff\x01\n"});
  spec.env = {"V=one\ntwo = \xc3\x28"};
  spec.cwd = "/proc";
  CHECK(output_of(spec) == "|a b|'\"$x\\|\xff\x01\n|one\ntwo = \xc3\x28|/proc\n");
}

TEST_CASE("a child inherits only the named environment") {
  ChildSpec spec;
  spec.path = "/usr/bin/env";
  spec.argv = {"env"};
  spec.env = {"ONLY=this"};
  CHECK(output_of(spec) == "ONLY=this\n");
}

TEST_CASE("the exit of a child is a value with text") {
  auto end_of = [](const std::string& script) {
    auto child = spawn(shell(script));
    REQUIRE(child.has_value());
    return wait_end(*child);
  };
  CHECK(end_of("exit 0").success());
  CHECK(end_of("exit 3").text() == "exited 3");
  CHECK(end_of("kill -KILL $$").text() == "killed by SIGKILL");
  CHECK(end_of("kill -KILL $$").exit_code() == 137);
}

TEST_CASE("a program that cannot be executed is reported with the reason") {
  Directory directory;
  const Error missing = failure_of_path("/nonexistent/program");
  CHECK(missing.code == ErrorCode::kExec);
  CHECK(missing.sys == ENOENT);
  CHECK(missing.text == "execute /nonexistent/program: No such file or directory");

  const std::string plain = directory.file("plain", "#!/bin/sh\n", 0644);
  CHECK(failure_of_path(plain).sys == EACCES);
  CHECK(failure_of_path(plain).text ==
        "execute " + plain + ": Permission denied: it is not executable (chmod +x)");
  CHECK(failure_of_path("/tmp").text == "execute /tmp: Permission denied: it is a directory");

  const std::string lost = directory.file("lost", "#!/opt/none/python3 -u\n", 0755);
  CHECK(failure_of_path(lost).text == "execute " + lost +
                                          ": No such file or directory: its first line names the interpreter "
                                          "/opt/none/python3, which does not exist");
  const std::string windows = directory.file("windows", "#!/bin/sh\r\n", 0755);
  CHECK(failure_of_path(windows).text == "execute " + windows +
                                             ": No such file or directory: its first line has a Windows line "
                                             "ending; save the file with Unix line endings");
  const std::string text = directory.file("text", "hello\n", 0755);
  CHECK(failure_of_path(text).sys == ENOEXEC);
  CHECK(failure_of_path(text).text == "execute " + text +
                                          ": Exec format error: it is not a program for this machine; a "
                                          "script needs a first line #!INTERPRETER");
}

TEST_CASE("a script with a path relative to the child's directory is explained in the error") {
  Directory directory;
  directory.file("run", "#!/opt/none/sh\n", 0755);
  ChildSpec spec;
  spec.path = "./run";
  spec.cwd = directory.path();
  CHECK(failure_of(spec).text ==
        "execute ./run: No such file or directory: its first line names the interpreter /opt/none/sh, which "
        "does not exist");
}

TEST_CASE("an environment that is too long is an exec error") {
  ChildSpec spec = shell("exit 0");
  spec.env = {"LONG=" + std::string(200 * 1024, 'x')};
  const Error error = failure_of(spec);
  CHECK(error.sys == E2BIG);
  CHECK(error.text ==
        "execute /bin/sh: Argument list too long: arguments and environment together are too long for the "
        "kernel");
}

TEST_CASE("a missing working directory is distinguished from a missing program") {
  ChildSpec spec = shell("exit 0");
  spec.cwd = "/nonexistent/place";
  const Error error = failure_of(spec);
  CHECK(error.code == ErrorCode::kRefused);
  CHECK(error.sys == ENOENT);
  CHECK(error.text == "enter working directory /nonexistent/place: No such file or directory");
}

TEST_CASE("a descriptor that is not open is a system error") {
  ChildSpec spec = shell("exit 0");
  spec.inherit = {{999, 3}};
  const Error error = failure_of(spec);
  CHECK(error.code == ErrorCode::kSystem);
  CHECK(error.text == "pass descriptors to /bin/sh: Bad file descriptor");
}

TEST_CASE("without a free descriptor the start fails and runs nothing") {
  const Directory files;
  ChildSpec spec = shell("touch " + files.path() + "/ran");
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const UniqueFd next(open("/dev/null", O_RDWR | O_CLOEXEC));
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next.get());  // every lower number is taken
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  auto no_null = spawn(spec);
  spec.in = spec.out = spec.err = null.get();
  auto no_end = spawn(spec);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(!no_null.has_value());
  CHECK(no_null.error().text == "start /bin/sh: open /dev/null: Too many open files");
  REQUIRE(!no_end.has_value());
  CHECK(no_end.error().sys == EMFILE);
  CHECK(no_end.error().code == ErrorCode::kSystem);
  for (const auto& info : launcher::list_processes())
    CHECK(info.parent != getpid());
  CHECK_FALSE(std::filesystem::exists(files.path() + "/ran"));
}

TEST_CASE("a child has the named descriptors and no other, not even leaked ones") {
  const UniqueFd forgotten(open("/dev/null", O_RDONLY));  // without close-on-exec
  const UniqueFd high(fcntl(forgotten.get(), F_DUPFD, 700));
  ChildSpec spec;
  spec.path = "/bin/ls";
  spec.argv = {"ls", "/proc/self/fd"};
  spec.inherit = {{forgotten.get(), 5}};
  CHECK(output_of(spec) == "0\n1\n2\n3\n5\n");  // 3 is the directory that ls reads
}

TEST_CASE("descriptors may be swapped or keep their number") {
  Pipe first = make_pipe();
  Pipe second = make_pipe();
  const int a = first.write_end.get();
  const int b = second.write_end.get();
  ChildSpec spec = shell("echo a >&" + std::to_string(a) + "; echo b >&" + std::to_string(b));
  SECTION("descriptors are swapped") {
    spec.inherit = {{a, b}, {b, a}};
  }
  SECTION("a descriptor keeps its number") {
    spec.inherit = {{b, b}, {a, a}};
  }
  const bool swapped = spec.inherit[0].fd != spec.inherit[0].as;
  auto child = spawn(spec);
  REQUIRE(child.has_value());
  first.write_end.reset();
  second.write_end.reset();
  CHECK(read_all(first.read_end.get()) == (swapped ? "b\n" : "a\n"));
  CHECK(read_all(second.read_end.get()) == (swapped ? "a\n" : "b\n"));
  wait_end(*child);
}

TEST_CASE("the parent's standard streams may be passed on in any order") {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  // The child's stdout and stderr are this process's descriptors 2 and 1. The plan sees a swap.
  const UniqueFd saved_out(fcntl(1, F_DUPFD_CLOEXEC, 10)), saved_err(fcntl(2, F_DUPFD_CLOEXEC, 10));
  dup2(out.write_end.get(), 1);
  dup2(err.write_end.get(), 2);
  ChildSpec spec = shell("echo out; echo err >&2");
  spec.out = 2;
  spec.err = 1;
  auto child = spawn(spec);
  dup2(saved_out.get(), 1);
  dup2(saved_err.get(), 2);
  out.write_end.reset();
  err.write_end.reset();
  REQUIRE(child.has_value());
  CHECK(read_all(out.read_end.get()) == "err\n");
  CHECK(read_all(err.read_end.get()) == "out\n");
  wait_end(*child);
}

TEST_CASE("a child has default dispositions and no blocked signal, regardless of its parent") {
  struct sigaction old_pipe, old_user;
  struct sigaction ignore = {}, handle = {};
  ignore.sa_handler = SIG_IGN;
  handle.sa_handler = [](int) {};
  sigaction(SIGPIPE, &ignore, &old_pipe);
  sigaction(SIGUSR2, &handle, &old_user);
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  ChildSpec spec;
  spec.path = "/bin/grep";
  spec.argv = {"grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"};
  const std::string plain = output_of(spec);
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGUSR1);
  spec.signal_mask = wanted;
  const std::string with_mask = output_of(spec);
  sigset_t now;
  sigprocmask(SIG_SETMASK, &before, &now);
  sigaction(SIGPIPE, &old_pipe, nullptr);
  sigaction(SIGUSR2, &old_user, nullptr);

  CHECK(plain == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  CHECK(with_mask == "SigBlk:\t0000000000000200\nSigIgn:\t0000000000000000\n");
  CHECK(sigismember(&now, SIGUSR1) == 1);  // the own mask is unchanged
  CHECK(sigismember(&now, SIGINT) == 0);
}

TEST_CASE("a child leads its own session and group, or stays in its parent's") {
  for (const bool own : {true, false}) {
    ChildSpec spec = shell("kill -STOP $$");
    spec.new_session = own;
    auto child = spawn(spec);
    REQUIRE(child.has_value());
    const auto info = launcher::read_process(child->pid());
    REQUIRE(info.has_value());
    CHECK(getsid(child->pid()) == (own ? child->pid() : getsid(0)));
    CHECK(getpgid(child->pid()) == (own ? child->pid() : getpgrp()));
  }
}

TEST_CASE("a child gets its own soft limit of open files") {
  ChildSpec spec = shell("ulimit -Sn");
  spec.nofile_soft = 123;
  CHECK(output_of(spec) == "123\n");
}

TEST_CASE("an ended child is seen before it is reaped, and its group can still be killed") {
  Started started = start({DDP_PROCESS_WORKER, "orphan"}, {}, 1);
  ChildProcess* const child = &started.process;
  REQUIRE(wait_readable(child->end_fd()));
  CHECK(child->peek() == ExitStatus::exited(0));
  CHECK(child->running());
  CHECK(child->send_group_signal(SIGKILL).has_value());  // reaches the remaining processes
  CHECK(started.all_gone());
  CHECK(child->try_wait() == ExitStatus::exited(0));
  CHECK(child->try_wait() == ExitStatus::exited(0));
  CHECK(!child->running());
  CHECK(child->send_signal(SIGKILL).error().sys == ESRCH);
  CHECK(child->send_group_signal(SIGKILL).error().sys == ESRCH);
}

TEST_CASE("destroying a running child kills its group and reaps it") {
  const std::size_t before = open_descriptors();
  {
    Started started = start({DDP_PROCESS_WORKER, "stubborn"}, {}, 1);
    const pid_t pid = started.process.pid();
    CHECK(!started.process.try_wait().has_value());
    {
      const ChildProcess moved = std::move(started.process);
      CHECK(!started.process);
      CHECK(moved.pid() == pid);
    }
    CHECK(started.all_gone());
    CHECK(!launcher::read_process(pid).has_value());
  }
  CHECK(descriptors_come_down_to(before));
}

TEST_CASE("a child with a death signal ends with its parent") {
  Started parent = start({DDP_PROCESS_HOST, "parent", DDP_PROCESS_WORKER, "stubborn"}, {}, 1);
  REQUIRE(parent.process.send_signal(SIGKILL).has_value());
  CHECK(parent.all_gone());
  CHECK(wait_end(parent.process) == ExitStatus::signaled(SIGKILL));
}

TEST_CASE("many threads may start children at the same time") {
  const std::size_t before = open_descriptors();
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&good] {
      for (int i = 0; i < 20; ++i) {
        ChildSpec spec;
        spec.path = i % 2 == 0 ? "/bin/true" : "/nonexistent";
        spec.argv = {"true"};
        auto child = spawn(spec);
        if (i % 2 != 0) {
          if (!child && child.error().sys == ENOENT) ++good;
          continue;
        }
        if (!child || !wait_readable(child->end_fd())) continue;
        const auto end = child->try_wait();
        if (end && end->success()) ++good;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  CHECK(good == 80);
  CHECK(descriptors_come_down_to(before));
}

TEST_CASE("the limit of one variable is the kernel's") {
  ChildSpec spec;
  spec.path = "/bin/true";
  spec.argv = {"true"};
  spec.env = {"A=" + std::string(launcher::kMaxEnvString - 3, 's')};  // "A=" and NUL
  CHECK(spawn(spec).has_value());
  spec.env.front() += 's';
  CHECK(failure_of(spec).sys == E2BIG);
}

}  // namespace ddp
