#pragma once

#include <sys/types.h>

#include <string>

namespace ddp::remote::test {

/// An sshd on 127.0.0.2 and the following addresses (tests/support/nodes). It ends with this process, even
/// after a crash.
class Nodes {
 public:
  /// `settings` are NAME=value words for tests/support/nodes. If no sshd can run here, the test program exits
  /// with 77, which ctest shows as skipped.
  explicit Nodes(int count, const std::string& settings = {});
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  const std::string& dir() const { return dir_; }
  std::string file(const std::string& name) const { return dir_ + "/" + name; }
  int port() const { return port_; }
  /// Returns the number of processes below the sshd: sessions and their commands.
  int processes() const;

  /// Writes a file into dir() and returns its path.
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::string dir_;
  int port_ = 0;
  pid_t keeper_ = -1;
  int keeper_pipe_ = -1;
};

/// Returns the output of a shell line without its last newlines. Throws if the exit status is not 0.
std::string output_of(const std::string& line);

}  // namespace ddp::remote::test
