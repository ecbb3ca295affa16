#pragma once

#include <sys/types.h>

#include <string>

namespace ddp::remote::test {

/// An sshd of our own on 127.0.0.2 and the following addresses (tests/support/nodes). It ends with this
/// process, however that ends.
class Nodes {
 public:
  /// `settings` as NAME=value words for tests/support/nodes. Ends the whole test program with 77, which is a
  /// skip, where no sshd can be run.
  explicit Nodes(int count, const std::string& settings = {});
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  const std::string& dir() const { return dir_; }
  std::string file(const std::string& name) const { return dir_ + "/" + name; }
  int port() const { return port_; }
  /// Processes below the sshd: sessions and what they run.
  int processes() const;

  /// Writes a file into the directory and returns its path.
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::string dir_;
  int port_ = 0;
  pid_t keeper_ = -1;
  int keeper_pipe_ = -1;
};

/// The output of a shell line; fails the program when its exit status is not 0.
std::string output_of(const std::string& line);

}  // namespace ddp::remote::test
