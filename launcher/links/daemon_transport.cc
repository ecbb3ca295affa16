#include "launcher/links/daemon.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "base/unique_fd.h"
#include "remote/transports/command_transport.h"

namespace ddp::launcher {

Awaitable<error_code> DaemonLine::send(std::string frame) {
  while (busy_ && !broken_)
    co_await free_.async_wait(kUseTuple);
  if (broken_) co_return broken_;
  busy_ = true;
  const error_code error = co_await rendezvous::write_line(*stream_, std::move(frame));
  if (!broken_) broken_ = error;
  busy_ = false;
  free_.cancel();
  co_return broken_;
}

void DaemonLine::close() {
  if (!broken_) broken_ = asio::error::operation_aborted;
  stream_->close();
  free_.cancel();
}

Awaitable<bool> DaemonLine::carry(DaemonFrame kind, LocalSocket& socket) {
  for (;;) {
    const auto [waited] = co_await socket.async_wait(LocalSocket::wait_read, kUseTuple);
    if (waited) co_return true;
    std::string bytes(kMaxDaemonPayload, '\0');
    const auto [error, size] = co_await socket.async_read_some(asio::buffer(bytes), kUseTuple);
    if (error) co_return true;
    std::string frame = daemon_frame(kind, std::string_view(bytes).substr(0, size));
    const error_code failed = co_await send(std::move(frame));
    if (failed) co_return false;
  }
}

void end_both_directions(LocalSocket& socket) {
  error_code ignored;
  socket.shutdown(LocalSocket::shutdown_both, ignored);
}

namespace {

using remote::Channel;
using remote::ChannelEnd;

constexpr std::chrono::seconds kFarewell{2};  ///< time for a node to see that the channel has closed
constexpr std::size_t kQuiet = 512;           ///< buffer of an idle link: a heartbeat fits
constexpr std::size_t kBusy = kDaemonFrameHead + kMaxDaemonPayload;

/// The two tasks between the link and the local sockets, and how the channel ended. Lives until both the
/// channel and the tasks have ended.
class DaemonPump : public std::enable_shared_from_this<DaemonPump> {
 public:
  DaemonPump(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream, std::string host,
             std::string where)
      : loop_(loop),
        line_(loop, std::move(stream)),
        host_(std::move(host)),
        where_(std::move(where)),
        stdio(loop),
        errors(loop),
        ended_(loop, std::chrono::steady_clock::time_point::max()),
        patience_(loop) {}

  void start() {
    spawn(loop_, carry_input(shared_from_this()));
    spawn(loop_, carry_output(shared_from_this()));
  }

  /// Call when the owner is gone: its closed socket ends become the end of the agent's input.
  void drop() {
    if (end_) return;
    patience_.expires_after(kFarewell);
    patience_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) self->line_.close();
    });
  }

  const std::optional<ChannelEnd>& end() const { return end_; }
  asio::steady_timer& ended() { return ended_; }
  const std::string& host() const { return host_; }

 private:
  static Awaitable<> carry_input(std::shared_ptr<DaemonPump> self) {
    const bool all = co_await self->line_.carry(DaemonFrame::kInput, self->stdio);
    if (!all || self->end_) co_return;
    (void)co_await self->line_.send(daemon_frame(DaemonFrame::kInputEnd, {}));
  }

  static Awaitable<> carry_output(std::shared_ptr<DaemonPump> self) {
    std::vector<char> buffer(kQuiet);
    while (!self->end_) {
      const auto [error, size] = co_await self->line_.read_some(asio::buffer(buffer));
      std::string_view bytes(buffer.data(), size);
      while (!self->end_) {
        const auto piece = self->reader_.next(bytes);
        if (!piece) break;
        if (!piece->bytes.empty()) {
          // A slow owner makes this task wait, and so the node: nothing is stored in between.
          LocalSocket& socket = piece->kind == DaemonFrame::kOutput ? self->stdio : self->errors;
          // If the owner stopped reading, the rest is still received until the agent has ended.
          (void)co_await asio::async_write(socket, asio::buffer(piece->bytes), kUseTuple);
        } else {
          self->on_frame(*piece);
        }
      }
      if (!self->reader_.failure().empty()) {
        self->finish(self->broken(ErrorCode::kProtocol, "the daemon there sent " + self->reader_.failure()));
      } else if (error && !self->end_) {
        self->finish(self->broken(ErrorCode::kLinkLost, "the link to the daemon at " + self->where_ +
                                                            " broke: " + self->reason(error)));
      }
      // A busy link gets a large buffer, and an idle one gives it back.
      if ((size == buffer.size()) != (buffer.size() == kBusy))
        buffer = std::vector<char>(size == buffer.size() ? kBusy : kQuiet);
    }
  }

  void on_frame(const DaemonFrameReader::FramePiece& piece) {
    if (piece.kind == DaemonFrame::kOutputEnd) {
      error_code ignored;
      stdio.shutdown(LocalSocket::shutdown_send, ignored);
    } else if (piece.kind == DaemonFrame::kEnded) {
      finish(ChannelEnd{piece.status, std::nullopt});
    }
  }

  std::string reason(const error_code& error) const {
    // Which of these comes depends on what was under way when the node closed the link.
    const bool closed = error == asio::error::eof || error == asio::error::connection_reset ||
                        error == asio::error::broken_pipe;
    if (!closed) return error.message();
    const std::string how = error == asio::error::eof ? "" : " (" + error.message() + ")";
    return "the node closed it" + how + "; check whether the daemon's session for this job was killed";
  }

  ChannelEnd broken(ErrorCode code, const std::string& text) const {
    return ChannelEnd{std::nullopt, Error{code, host_ + ": " + text, 0}};
  }

  void finish(ChannelEnd end) {
    end_ = std::move(end);
    end_both_directions(stdio);
    end_both_directions(errors);
    line_.close();
    patience_.cancel();
    ended_.cancel();
  }

  asio::any_io_executor loop_;
  DaemonLine line_;
  DaemonFrameReader reader_{DaemonFrameReader::FrameSender::kNode};
  std::string host_;
  std::string where_;

 public:
  LocalSocket stdio;  ///< this side's ends of the owner's two sockets
  LocalSocket errors;

 private:
  asio::steady_timer ended_;  ///< never expires; cancelled when `end_` is set
  asio::steady_timer patience_;
  std::optional<ChannelEnd> end_;
};

class DaemonChannel final : public Channel {
 public:
  DaemonChannel(std::shared_ptr<DaemonPump> pump, Socket socket, Socket errors, std::string address,
                std::uint16_t port)
      : pump_(std::move(pump)),
        socket_(std::move(socket)),
        errors_(std::move(errors)),
        address_(std::move(address)),
        port_(port) {}
  ~DaemonChannel() override { pump_->drop(); }

  std::string address() const override { return address_; }
  std::uint16_t port() const override { return port_; }
  Socket& socket() override { return socket_; }
  Socket& errors() override { return errors_; }

  Awaitable<ChannelEnd> end() override {
    const bool over = co_await wait_until(pump_->ended(), [this] { return pump_->end().has_value(); });
    co_return over ? *pump_->end() : remote::cancelled_end(pump_->host());
  }

 private:
  std::shared_ptr<DaemonPump> pump_;
  Socket socket_;
  Socket errors_;
  std::string address_;
  std::uint16_t port_;
};

Result<> connect_ends(LocalSocket& ours, LocalSocket& theirs) {
  auto pair = DDP_TRY(remote::make_socket_pair(SOCK_NONBLOCK));
  ours = DDP_TRY(remote::as_socket(ours.get_executor(), std::move(pair.ours)));
  theirs = DDP_TRY(remote::as_socket(theirs.get_executor(), std::move(pair.theirs)));
  return {};
}

/// Adds to a connection error what it means for a daemon.
Error daemon_error(const std::string& host, std::uint16_t port, Error error) {
  const std::string at_port = std::to_string(port);
  if (error.sys == ECONNREFUSED) {
    error.text = host + ": connection refused on port " + at_port +
                 "; check that ddplaunchd --listen runs there: systemctl --user start ddplaunchd "
                 "(docs/users/daemon.md)";
    return error;
  }
  if (error.sys == ETIMEDOUT) {
    error.text += "; is the machine up, and does a firewall let port " + at_port + " through?";
  }
  return within(host, std::move(error));
}

}  // namespace

Result<std::unique_ptr<Channel>> make_daemon_channel(const asio::any_io_executor& loop,
                                                     std::unique_ptr<ByteStream> stream, std::string host,
                                                     std::string where, std::string address,
                                                     std::uint16_t port) {
  auto pump = std::make_shared<DaemonPump>(loop, std::move(stream), host, std::move(where));
  LocalSocket socket(loop);
  LocalSocket errors(loop);
  DDP_TRY(within(host, connect_ends(pump->stdio, socket)));
  DDP_TRY(within(host, connect_ends(pump->errors, errors)));
  pump->start();
  return std::unique_ptr<Channel>(std::make_unique<DaemonChannel>(
      std::move(pump), std::move(socket), std::move(errors), std::move(address), port));
}

rendezvous::Resolve resolve_by(remote::Resolver& resolver, std::chrono::nanoseconds limit) {
  using Endpoints = std::vector<asio::ip::tcp::endpoint>;
  // The coroutine uses the lambda itself, which its caller keeps (secure_join).
  return [&resolver, limit](std::string host, std::uint16_t port,
                            remote::Deadline deadline) -> Awaitable<Result<Endpoints>> {
    const remote::Deadline until =
        std::min<remote::Deadline>(deadline, std::chrono::steady_clock::now() + limit);
    auto found = co_await resolver.resolve(std::move(host), port, AF_UNSPEC, until);
    if (!found) co_return found.error();
    Endpoints endpoints(found->size());
    for (std::size_t i = 0; i < found->size(); ++i) {
      endpoints[i].resize((*found)[i].size);
      std::memcpy(endpoints[i].data(), &(*found)[i].address, (*found)[i].size);
    }
    co_return endpoints;
  };
}

Awaitable<Result<std::unique_ptr<remote::Channel>>> DaemonTransport::open(remote::Host host,
                                                                          std::vector<std::string>,
                                                                          remote::Deadline deadline) {
  co_await asio::this_coro::throw_if_cancelled(false);
  if (!host.wrapper.empty()) {
    co_return Error{ErrorCode::kUsage, host.name +
                                           ": a daemon starts its own ddplaunchd and no wrapper; run "
                                           "the daemon inside the container, or use --launcher ssh"};
  }
  auto goal = rendezvous::link_goal(
      host.address.empty() ? host.name : host.address, host.port != 0 ? host.port : options_.port,
      {rendezvous::LinkRole::kMaster, options_.job, rendezvous::link_name_of(host.name), {}}, options_.token,
      options_.hello);
  if (!goal) co_return within(host.name, goal.error());
  const rendezvous::Resolve resolve = resolve_by(resolver_, deadline - std::chrono::steady_clock::now());
  rendezvous::JoinOutcome outcome = co_await rendezvous::secure_join(resolve, *goal, deadline);
  if (!outcome.stream) co_return daemon_error(host.name, goal->port, std::move(outcome.error));
  co_return make_daemon_channel(loop_, std::move(outcome.stream), host.name,
                                format_endpoint(goal->host, goal->port), std::move(outcome.address),
                                goal->port);
}

}  // namespace ddp::launcher
