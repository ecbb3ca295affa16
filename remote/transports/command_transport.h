#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "remote/transports/transport.h"

namespace ddp::remote {

/// Both ends of a local stream, closed on exec.
struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;
};

/// A larger buffer needs fewer context switches between two processes. The kernel grants as much as the
/// administrator allows.
inline constexpr int kSendBuffer = 256 << 10;

/// `flags`: SOCK_NONBLOCK or 0. `send_buffer`: bytes that wait in each direction.
Result<SocketPair> make_socket_pair(int flags, int send_buffer = kSendBuffer);

/// Registers a socket with the loop.
Result<asio::local::stream_protocol::socket> as_socket(const asio::any_io_executor& loop, UniqueFd fd);

/// A program on this machine, whose three streams become a Channel.
struct ChildCommand {
  enum class Kind {
    kProgram,    ///< the command itself: its exit status is the result; only end of file asks it to end
    kSshClient,  ///< carries a command of another host (srun as well): 255 is its own failure, SIGTERM ends
                 ///< it
  };
  std::string host;               ///< for messages
  std::vector<std::string> argv;  ///< argv[0] is searched in PATH if it has no slash
  Kind kind = Kind::kProgram;
  std::vector<std::string> unset{};  ///< names of variables that are not inherited
  std::shared_ptr<void>
      held{};            ///< released at Channel::greeted(), at the end of the process, or with the channel
  std::string advice{};  ///< for an SSH client that fails before greeted(): "; what to do"
};

/// Reads "Unable to negotiate with …: no matching KIND found. Their offer: A,B" in the words of the ssh
/// program (packet.c and ssherr.c of OpenSSH). Returns "; what the server offers, and the option that allows
/// it", or an empty text.
std::string mismatch_advice(std::string_view words);

/// Starts the program in a process group of its own, so that Ctrl-C on the terminal does not reach it.
/// Errors: kExec with the errno when the program cannot be executed, kSystem. Loop thread only.
///
/// A Channel that is destroyed before greeted() ends the whole group with SIGTERM and then SIGKILL.
/// Afterwards a kProgram is ended by end of file alone. The loop reaps the process, even after the Channel
/// has gone. If the loop is destroyed first, the group is killed and the process is reaped at once.
Result<std::unique_ptr<Channel>> open_child(const asio::any_io_executor& loop, ChildCommand command);

/// Runs commands as children on this machine; the host's address is ignored. It never waits, so the deadline
/// is not used.
class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(asio::any_io_executor loop) : loop_(std::move(loop)) {}

  /// Errors: kExec with the errno when the program cannot be executed, kSystem.
  Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                   Deadline) override {
    co_return open_child(loop_, ChildCommand{host.name, std::move(argv), ChildCommand::Kind::kProgram});
  }
  const char* intermediary() const override { return nullptr; }

 private:
  asio::any_io_executor loop_;
};

struct CommandTransportOptions {
  std::vector<std::string> words{"ssh"};  ///< --ssh-command, split: a program with OpenSSH's options
  std::string config;                     ///< as in `ssh -F FILE`; empty: the user's files
  bool accept_new_host_keys = false;
  unsigned jump_window = 8;  ///< concurrent logins through one jump host
};

/// Runs commands through the OpenSSH program, one process per host. It serves hosts that libssh cannot serve
/// (jump hosts, host certificates, PKCS#11, Kerberos). The cost is about 15 ms of CPU per host.
///
/// open() returns as soon as the program runs. Channel::end() reports a failed connection or login as
/// kUnreachable with the last lines of stderr (exit status 255, which a remote command can also have).
class CommandTransport final : public Transport {
 public:
  CommandTransport(asio::any_io_executor loop, CommandTransportOptions options)
      : loop_(loop), options_(std::move(options)), window_(std::move(loop), options_.jump_window) {}

  Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                   Deadline deadline) override {
    return open_through({}, std::move(host), std::move(argv), deadline);
  }

  /// open() does not wait for the login.
  const char* step(const std::string& /*host*/, bool /*opened*/) const override {
    return "SSH login, or starting ddplaunchd";
  }

  /// Known parts of a host's configuration. All may be empty.
  struct Route {
    std::string proxy;       ///< any text that identifies the jump host or proxy, whose concurrent logins are
                             ///< limited
    std::string proxy_jump;  ///< ProxyJump as written
    int connect_timeout = 0;            ///< seconds; 0: the time until the deadline
    std::vector<std::string> settings;  ///< further "Option=value", which take precedence
  };
  /// Opens a channel to a host with this configuration. Channel::greeted() releases the slot at the proxy.
  Awaitable<Result<std::unique_ptr<Channel>>> open_through(Route route, Host host,
                                                           std::vector<std::string> argv, Deadline deadline);

  /// Returns the whole command line for a host. `remote_line` goes through the login shell there; `seconds`
  /// is the time left for connecting.
  static std::vector<std::string> command_line(const CommandTransportOptions& options, const Route& route,
                                               const Host& host, const std::string& remote_line,
                                               long seconds);
  /// Returns the command that a user types to reach the host in the same way: program, -F FILE, port,
  /// address, user, name.
  static std::string by_hand(const CommandTransportOptions& options, const Host& host);

 private:
  asio::any_io_executor loop_;
  CommandTransportOptions options_;
  LoginWindow window_;
};

/// Runs commands on the nodes of a Slurm allocation with one `srun`, and so one job step, per host. It works
/// only inside the allocation: srun takes the job from SLURM_JOB_ID. srun executes the command itself,
/// without a shell. The command's environment has the variables for the user and PATH, and the step's own
/// SLURM_*.
///
/// open() returns as soon as srun runs. Channel::end() and stderr report why srun could not start the
/// command.
class SrunTransport final : public Transport {
 public:
  explicit SrunTransport(asio::any_io_executor loop) : loop_(std::move(loop)) {}

  /// Errors: kUnreachable when there is no srun, kSystem. The caller enforces the deadline.
  Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                   Deadline deadline) override;
  const char* intermediary() const override { return "srun"; }

  /// Returns the whole command line for a host, whose address, else name, is the node's name in Slurm.
  static std::vector<std::string> command_line(const Host& host, const std::vector<std::string>& argv);

 private:
  asio::any_io_executor loop_;
};

}  // namespace ddp::remote
