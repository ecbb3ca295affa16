#include "tests/ssh/nodes.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace ddp::remote::test {
namespace {

const std::string kScript = std::string(DDP_SOURCE_DIR) + "/tests/support/nodes";

struct Shelled {
  std::string output;
  int status;
};

Shelled shell(const std::string& line) {
  FILE* pipe = ::popen(line.c_str(), "re");
  if (pipe == nullptr) throw std::runtime_error("popen: " + line);
  Shelled result;
  std::array<char, 4096> buffer;
  while (std::size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe))
    result.output.append(buffer.data(), size);
  const int status = ::pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  while (!result.output.empty() && result.output.back() == '\n')
    result.output.pop_back();
  return result;
}

}  // namespace

std::string output_of(const std::string& line) {
  Shelled result = shell(line);
  if (result.status != 0)
    throw std::runtime_error("exit status " + std::to_string(result.status) + ": " + line);
  return result.output;
}

Nodes::Nodes(int count, const std::string& settings) {
  const Shelled up = shell(settings + " '" + kScript + "' up " + std::to_string(count));
  if (up.status == 77) {
    std::fputs("skipped: no sshd can be run here\n", stderr);
    std::_Exit(77);
  }
  if (up.status != 0) throw std::runtime_error("tests/support/nodes failed");
  dir_ = up.output;
  std::ifstream(file("port")) >> port_;

  // The keeper's input ends with this process, even after a crash. The keeper then stops the sshd.
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  const std::string line = "cat; '" + kScript + "' down '" + dir_ + "'; rm -r '" + dir_ + "'";
  keeper_ = ::fork();
  if (keeper_ == 0) {
    ::setsid();
    ::dup2(ends[0], STDIN_FILENO);
    ::execl("/bin/sh", "sh", "-c", line.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(ends[0]);
  keeper_pipe_ = ends[1];
}

Nodes::~Nodes() {
  ::close(keeper_pipe_);
  ::waitpid(keeper_, nullptr, 0);
}

int Nodes::processes() const {
  // Zombies do not count, because process 1 may reap them late.
  const std::string line =
      "below() { for c in $(cat /proc/$1/task/*/children 2>/dev/null); do "
      "grep -qs '^State:[[:space:]]*Z' /proc/$c/status || echo $c; below $c; done; }; "
      "below $(cat '" +
      dir_ + "/sshd.pid') | wc -l";
  return std::stoi(output_of(line));
}

std::string Nodes::write(const std::string& name, const std::string& text) const {
  std::ofstream(file(name)) << text;
  return file(name);
}

}  // namespace ddp::remote::test
