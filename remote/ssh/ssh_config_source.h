#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "remote/hosts/host.h"
#include "remote/ssh/ssh_config.h"
#include "remote/ssh/ssh_config_shape.h"
#include "remote/start/name_service.h"

namespace ddp::remote {

/// Finds the effective SSH configuration of hosts with `ssh -G`, run as rarely as the user's files allow and
/// at most eight at a time. It returns OpenSSH's defaults if this machine has no ssh program. Loop thread
/// only.
class SshConfigSource : public std::enable_shared_from_this<SshConfigSource> {
 public:
  /// `file` as in `ssh -F`: only that file is read. Empty: the user's and the system's files.
  SshConfigSource(asio::any_io_executor loop, std::string program, std::string file);
  SshConfigSource(const SshConfigSource&) = delete;
  SshConfigSource& operator=(const SshConfigSource&) = delete;

  /// Returns the configuration after the overrides of the host's entry: user, port, address, identity.
  /// Errors: kUnreachable with the program's text when it refuses the configuration, and when `file` cannot
  /// be read; kTimeout at `deadline`.
  Awaitable<Result<SshConfig>> find(Host host, std::chrono::steady_clock::time_point deadline);

  /// SshConfigShape::without_effect; complete after the first answer of find().
  const std::set<std::string>& without_effect() const { return shape_.without_effect(); }

  int questions() const { return questions_; }  ///< number of ssh -G runs

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
  asio::steady_timer slot_free_;  ///< never expires; cancelled when a query has ended
};

/// Returns the user who runs this program (user database, else HOME). The first call may wait for the name
/// service. Thread-safe.
const User& local_user();

/// Returns the content of a file with keys or hosts, at most 16 MiB. Returns nullopt if the file is missing,
/// may not be read, or is a directory, a device or a pipe: these could give endless bytes or none. Blocking.
std::optional<std::string> read_regular_file(const std::string& path);

}  // namespace ddp::remote
