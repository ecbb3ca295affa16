#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/blocking_calls.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/shells/remote_shell.h"
#include "remote/start/agent_bundle.h"

namespace ddp::remote {

/// An agent that has sent its hello. The channel's link carries the framed protocol, whose first bytes may
/// already be in `first_bytes`. The owner must read both streams of the channel.
struct StartedAgent {
  std::unique_ptr<Channel> channel;
  AgentHello hello;
  std::string first_bytes;        ///< read from the link after the hello
  std::deque<std::string> noise;  ///< the host's stdout before the hello; the last 20 lines
  std::string errors;             ///< stderr up to the hello; at most 64 KiB
  std::size_t pushed = 0;         ///< bytes of ddplaunchd (and train) sent to the host; 0: it had them
};

/// The beginning of the line that a host prints on stderr if it keeps the agent elsewhere than in the cache
/// of the account.
inline constexpr std::string_view kKeptElsewhere = "ddplaunchd is kept in ";

struct FanOutOptions {
  std::vector<std::string> argv;        ///< the agent's command line; argv[0] is its path on the nodes
  bool ssh_localhost = false;           ///< localhost entries go over the remote shell too
  Deadline deadline = Deadline::max();  ///< for every host: connected, logged in, hello received
  std::optional<AgentHello> expected;   ///< set: another protocol or version is kAgentMismatch
  /// If set, hosts without an agent of this build receive one, except plain children of this machine. argv is
  /// for the hosts that receive none.
  std::shared_ptr<AgentBundle> bundle;
  bool remote_is_here = false;  ///< the remote shell starts children as well (--launcher local)
};

/// Starts the agent on many hosts at once, and reports each outcome separately as soon as it is known. Loop
/// thread only. FanOut and the shells must outlive run().
class FanOut {
 public:
  /// `host` is the index in the list given to run(). It is called once for each host, on the loop.
  using ReportHost = std::function<void(std::size_t host, Result<StartedAgent> outcome)>;

  struct PendingHost {
    std::size_t host = 0;
    const char* step = "";  ///< RemoteShell::step, or "copying ddplaunchd"
  };

  FanOut(asio::any_io_executor loop, RemoteShell& remote, RemoteShell& local, FanOutOptions options);
  ~FanOut();
  FanOut(const FanOut&) = delete;
  FanOut& operator=(const FanOut&) = delete;

  /// Returns when every host was reported: started, failed, kTimeout at the deadline, or kCancelled. Call it
  /// once.
  Awaitable<void> run(std::vector<Host> hosts, ReportHost report);

  /// Gives up every host that is not yet reported; run() returns soon after. May be called at any time.
  void cancel();

  std::vector<PendingHost> waiting() const;

 private:
  struct Start;

  Awaitable<Result<StartedAgent>> start(std::shared_ptr<Start> start);
  Awaitable<Result<StartedAgent>> try_once(std::shared_ptr<Start> start);
  Awaitable<Result<StartedAgent>> greet(std::shared_ptr<Start> start);
  static Awaitable<void> send(std::shared_ptr<Start> start, std::string_view bytes);
  Awaitable<std::optional<Error>> answer(std::shared_ptr<Start> start);
  Awaitable<Result<std::shared_ptr<const PushSet>>> load(std::shared_ptr<Start> start);
  static Awaitable<void> drain_errors(std::shared_ptr<Start> start);
  static Awaitable<Error> explain_end(std::shared_ptr<Start> start);
  void finished(const std::shared_ptr<Start>& start, Result<StartedAgent> outcome);
  void on_deadline();

  asio::any_io_executor loop_;
  BlockingCalls disk_;  ///< reads the agents of `bundle`
  RemoteShell& remote_;
  RemoteShell& local_;
  FanOutOptions options_;
  ReportHost report_;
  std::vector<std::shared_ptr<Start>> starts_;  ///< by host index; empty once reported
  std::size_t missing_ = 0;
  bool cancelled_ = false;
  std::minstd_rand random_;
  asio::steady_timer deadline_;
  asio::steady_timer all_reported_;
};

}  // namespace ddp::remote
