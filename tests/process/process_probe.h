#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/child_process.h"
#include "launcher/keeper/process_table.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

namespace Catch {
template <>
struct StringMaker<ddp::ExitStatus> {
  static std::string convert(const ddp::ExitStatus& status) { return status.text(); }
};
}  // namespace Catch

namespace ddp::process_test {

inline constexpr std::chrono::seconds kPatience{20};

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

inline Pipe make_pipe() {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

inline bool wait_readable(int fd, std::chrono::milliseconds limit = kPatience) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(limit.count())) == 1;
}

/// Polls an event of another process that no descriptor announces. Returns false after kPatience.
template <class Condition>
bool wait_until(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Steps a kill until it reports its end, with `meanwhile` after each wait. Returns false after kPatience.
template <class Kill, class Meanwhile>
bool step_to_end(Kill& kill, std::chrono::milliseconds wait, Meanwhile meanwhile) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!kill.step()) {
    if (std::chrono::steady_clock::now() > end) return false;
    kill.wait(wait);
    meanwhile();
  }
  return true;
}

template <class Kill>
bool step_to_end(Kill& kill, std::chrono::milliseconds wait) {
  return step_to_end(kill, wait, [] {});
}

/// Reads exactly `count` bytes, or fewer at the end of the stream or after kPatience.
inline std::string read_bytes(int fd, std::size_t count) {
  std::string text;
  char byte;
  while (text.size() < count && wait_readable(fd) && read(fd, &byte, 1) == 1)
    text += byte;
  return text;
}

inline std::string read_all(int fd) {
  return read_bytes(fd, static_cast<std::size_t>(-1));
}

/// Returns whether every holder of the write end is gone: the stream ends after the remaining bytes.
inline bool reaches_end(int fd) {
  char chunk[256];
  while (wait_readable(fd)) {
    if (read(fd, chunk, sizeof chunk) <= 0) return true;
  }
  return false;
}

inline ExitStatus wait_end(ChildProcess& child) {
  REQUIRE(wait_readable(child.end_fd()));
  const auto status = child.try_wait();
  REQUIRE(status.has_value());
  return *status;
}

/// Starts the child, and returns what it wrote to stdout.
inline std::string output_of(ChildSpec spec) {
  Pipe out = make_pipe();
  spec.out = out.write_end.get();
  auto child = spawn(spec);
  INFO((child ? std::string() : child.error().text));
  REQUIRE(child.has_value());
  out.write_end.reset();
  std::string text = read_all(out.read_end.get());
  wait_end(*child);
  return text;
}

/// A process, and the stream that ends with the last process below it.
struct Started {
  Pipe liveness;
  ChildProcess process;

  bool all_gone() { return reaches_end(liveness.read_end.get()); }
};

/// Starts the process with the stream as descriptor 3, and waits until `ready` processes have written a byte
/// to it.
inline Started start(ChildSpec spec, std::size_t ready) {
  Started started{make_pipe(), {}};
  spec.path = spec.argv.at(0);
  spec.inherit = {{started.liveness.write_end.get(), 3}};
  auto child = spawn(spec);
  REQUIRE(child.has_value());
  started.process = std::move(*child);
  started.liveness.write_end.reset();
  REQUIRE(read_bytes(started.liveness.read_end.get(), ready).size() == ready);
  return started;
}

inline Started start(std::vector<std::string> argv, std::vector<std::string> env, std::size_t ready) {
  ChildSpec spec;
  spec.argv = std::move(argv);
  spec.env = std::move(env);
  return start(std::move(spec), ready);
}

/// Runs `body` in another process, and returns its exit code. It is a sibling of the processes that this one
/// has started, so that its tree has none of them.
inline int in_another_process(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    try {
      _exit(body());
    } catch (...) {  // a failed REQUIRE must not go on with the test here
      _exit(99);
    }
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

/// Returns whether no more descriptors than these come to be open. Without pidfds a thread that watched a
/// child closes its own after the child's end was seen.
inline bool descriptors_come_down_to(std::size_t count) {
  return wait_until([count] { return open_descriptors() <= count; });
}

inline std::string process_environment(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns the live processes (no zombies) that have this NAME=value in their environment.
inline std::vector<launcher::ProcessInfo> live_processes_of(const std::string& entry) {
  std::vector<launcher::ProcessInfo> alive;
  for (auto& info : launcher::list_processes()) {
    if (info.state != 'Z' && launcher::has_entry(process_environment(info.pid), entry)) alive.push_back(info);
  }
  return alive;
}

/// Returns a NAME=value that only this test has.
inline std::string unique_mark(const std::string& name) {
  static int count = 0;
  return name + "=" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

}  // namespace ddp::process_test
