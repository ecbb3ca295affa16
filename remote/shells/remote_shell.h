#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/byte_stream.h"
#include "base/result.h"
#include "remote/hosts/host.h"

namespace ddp::remote {

/// How a remote command ended. `status` is missing when the connection broke before the far side told it.
struct ChannelEnd {
  std::optional<int> status;    ///< exit status, 128+n for a signal
  std::optional<Error> broken;  ///< why the connection ended, when it was not the command's own end
  bool closed_early = false;    ///< the server closed before its greeting: worth another try
};

/// One command running on a host, seen as two byte streams. Owned by the caller, used on the loop thread
/// only. Whatever carries it (libssh session on an I/O thread, the ssh program, a child process) hands over
/// the same two local sockets, so that everything above knows a single kind of AsyncStream; for the link it
/// is enough to know a ByteStream.
class Channel {
 public:
  using Socket = asio::local::stream_protocol::socket;

  virtual ~Channel() = default;  ///< ends the connection without waiting; the remote command sees end of file

  /// Numeric address of the host as it was reached; empty when nothing was connected (a child) or it is not
  /// known.
  virtual std::string address() const { return {}; }

  virtual Socket& link() = 0;    ///< the command's stdin (write) and stdout (read); EOF when it has ended
  virtual Socket& errors() = 0;  ///< the command's stderr (read); not open: it has no way here
  /// What link() carries, for one reader and one writer; the channel outlives it. A channel over a socket of
  /// its own saves the local one then. Either link() or this is used, not both.
  virtual std::unique_ptr<ByteStream> stream() { return stream_over(link()); }

  /// The far side has answered: the channel gives back what only its start needed (a turn at a jump host).
  /// May be called at most once; not calling it is no fault.
  virtual void greeted() {}

  /// Waits until the command has ended and both streams were delivered. May be called once.
  virtual Awaitable<ChannelEnd> end() = 0;
};

using Deadline = std::chrono::steady_clock::time_point;

/// Starts commands on hosts. One object serves all hosts of a job; any number of calls may be under way at
/// once.
class RemoteShell {
 public:
  virtual ~RemoteShell() = default;

  /// Runs `argv` on `host`. The command line is made of words that need no quoting in any login shell, or is
  /// quoted so that sh, csh and fish read it alike. Errors: kUnreachable (resolve, connect, host key,
  /// authentication), kTimeout at `deadline`, kSystem. The text names the step that failed and what to do.
  /// Loop thread only.
  virtual Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                           Deadline deadline) = 0;

  /// What stands between an open channel and the command, in words; null: nothing.
  virtual const char* intermediary() const { return "the login shell there"; }
};

}  // namespace ddp::remote
