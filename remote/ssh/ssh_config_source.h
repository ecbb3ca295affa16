#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "remote/hosts/host.h"
#include "remote/ssh/ssh_config.h"
#include "remote/ssh/ssh_config_shape.h"

namespace ddp::remote {

/// Finds the effective SSH configuration of hosts by asking `ssh -G`, as seldom as the user's files allow and
/// at most eight at a time. Without an ssh program on this machine it gives OpenSSH's defaults. Loop thread
/// only.
class SshConfigSource : public std::enable_shared_from_this<SshConfigSource> {
 public:
  /// `file` as in `ssh -F`: only that file is read; empty: the user's and the system's.
  SshConfigSource(asio::any_io_executor loop, std::string program, std::string file);
  SshConfigSource(const SshConfigSource&) = delete;
  SshConfigSource& operator=(const SshConfigSource&) = delete;

  /// The configuration with what the host's own entry overrides: user, port, address, identity. Errors:
  /// kUnreachable with the program's words when it refuses the configuration, and when `file` cannot be read;
  /// kTimeout at `deadline`.
  Awaitable<Result<SshConfig>> find(Host host, std::chrono::steady_clock::time_point deadline);

  int questions() const { return questions_; }  ///< how often ssh -G was run

 private:
  struct Answer;
  void read_files();
  void read_file(const std::string& path, int depth);
  static Awaitable<void> ask(std::shared_ptr<SshConfigSource> self, std::shared_ptr<Answer> answer,
                             Host host);
  Awaitable<Result<SshConfig>> run(Host host);
  Awaitable<Result<SshConfig>> run_program(Host host, bool with_command);
  Result<SshConfig> without_program() const;

  asio::any_io_executor loop_;
  std::string program_;
  std::string file_;
  bool files_read_ = false;
  SshConfigShape shape_;
  std::map<std::string, std::shared_ptr<Answer>> answers_;
  int questions_ = 0;
  int running_ = 0;
  asio::steady_timer slot_free_;  ///< never expires; cancelled when a question has ended
};

/// Home directory and name of the user who runs this program (HOME, else the user database).
struct LocalUser {
  std::string name;
  std::string home;
};
LocalUser local_user();

/// The content of a file that keys or hosts are read from, at most 16 MiB of it. Empty: it is not there, may
/// not be read, or is a directory, a device or a pipe, which could give bytes for ever or none. Blocking.
std::optional<std::string> read_regular_file(const std::string& path);

}  // namespace ddp::remote
