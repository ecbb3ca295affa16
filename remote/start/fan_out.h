#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/blocking_calls.h"
#include "base/result.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/transports/transport.h"

namespace ddp::remote {

/// The files for one kind of machine, as they are sent. All hosts that need them share one copy.
struct PushSet {
  std::string key;  ///< names the set in the caches of the nodes
  std::vector<PushedFile> files;
  std::vector<std::string> bytes;  ///< content of each file
};

/// The agents that can be pushed: ddplaunchd beside this program for machines of the same kind, and
/// ../libexec/ddplaunch/ddplaunchd-MACHINE for others (docs/users/nodes.md). `train` and train-MACHINE are
/// found alike. The constructor reads only the heads of the files.
class AgentBundle {
 public:
  struct BundleRequest {
    std::string bin_dir;  ///< directory of this program
    AgentHello hello;
    bool train = false;  ///< the job's worker is `train`
  };

  explicit AgentBundle(BundleRequest request);

  /// The agent that a host needs: the installed one is expected at this program's own path.
  const AgentWanted& wanted() const { return wanted_; }

  /// Returns the files for a machine (`uname -m`). kAgentMissing: no file runs on it; the text says where the
  /// search looked, behind "HOST: ". kSystem: a file cannot be read. The first call for a machine reads and
  /// hashes the files, so call it off the loop (BlockingCalls). Any thread.
  Result<std::shared_ptr<const PushSet>> set_for(const std::string& machine);

 private:
  struct Paths {
    std::string agent;
    std::string train;
    std::string key;
  };

  void add_program(const std::string& machine, const std::string& agent, const std::string& train);
  Error none_for(const std::string& machine) const;

  std::string libexec_;
  AgentWanted wanted_;
  std::map<std::string, Paths> paths_;                            ///< by machine
  std::map<std::string, std::string> lacks_;                      ///< by machine: why it is not in paths_
  std::mutex loading_;                                            ///< guards loaded_
  std::map<std::string, std::shared_ptr<const PushSet>> loaded_;  ///< by machine
};

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
  bool ssh_localhost = false;           ///< localhost entries go over the remote transport too
  Deadline deadline = Deadline::max();  ///< for every host: connected, logged in, hello received
  std::optional<AgentHello> expected;   ///< set: another protocol or version is kAgentMismatch
  /// If set, hosts without an agent of this build receive one, except plain children of this machine. argv is
  /// for the hosts that receive none.
  std::shared_ptr<AgentBundle> bundle;
  bool remote_is_here = false;  ///< the remote transport starts children as well (--launcher local)
};

/// Starts the agent on many hosts at once, and reports each outcome separately as soon as it is known. Loop
/// thread only. FanOut and the transports must outlive run().
class FanOut {
 public:
  /// `host` is the index in the list given to run(). It is called once for each host, on the loop.
  using ReportHost = std::function<void(std::size_t host, Result<StartedAgent> outcome)>;

  struct PendingHost {
    std::size_t host = 0;
    const char* step = "";  ///< Transport::step, or "copying ddplaunchd"
  };

  FanOut(asio::any_io_executor loop, Transport& remote, Transport& local, FanOutOptions options);
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
  Transport& remote_;
  Transport& local_;
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
