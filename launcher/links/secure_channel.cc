#include "launcher/links/secure_channel.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "base/unique_fd.h"
#include "remote/shells/socket_pair.h"

namespace ddp::launcher {
namespace {

using Socket = remote::Channel::Socket;

/// Buffer of an idle link: a heartbeat fits.
constexpr std::size_t kSmall = 512;
/// Buffer of a busy link: a TLS record.
constexpr std::size_t kBlock = 16u << 10;
/// Limit of the kernel's memory for bytes that wait between this object and the owner.
constexpr int kSocketMemory = 64 << 10;
constexpr std::chrono::seconds kPatience{2};

}  // namespace

/// The remote stream, for an owner that needs no socket. As on a socket, every end is an end of file; the
/// channel's end() knows more.
class SecureLine::Direct final : public ByteStream {
 public:
  explicit Direct(std::shared_ptr<SecureLine> line) : line_(std::move(line)) {}

  Awaitable<Transferred> read_some(asio::mutable_buffer buffer) override {
    const std::shared_ptr<SecureLine> line = line_;
    const auto [error, count] = co_await line->stream_->read_some(buffer);
    if (count > 0) line->last_heard_ = Clock::now();
    if (error) line->finish(error);
    co_return Transferred{error ? error_code(asio::error::eof) : error, count};
  }
  Awaitable<Transferred> write_some(asio::const_buffer buffer) override {
    return line_->stream_->write_some(buffer);
  }
  void close() override { line_->close(); }

 private:
  std::shared_ptr<SecureLine> line_;
};

SecureLine::SecureLine(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream)
    : stream_(std::move(stream)), local_(loop), over_(loop, Clock::time_point::max()), patience_(loop) {}

Result<Socket> SecureLine::carry() {
  const asio::any_io_executor loop = local_.get_executor();
  auto pair = remote::make_socket_pair(SOCK_NONBLOCK, kSocketMemory);
  if (!pair) return pair.error();
  auto ours = remote::as_socket(loop, std::move(pair->ours));
  if (!ours) return ours.error();
  auto theirs = remote::as_socket(loop, std::move(pair->theirs));
  if (!theirs) return theirs.error();
  local_ = std::move(*ours);
  spawn(loop, inbound(shared_from_this()));
  spawn(loop, outbound(shared_from_this()));
  return theirs;
}

std::unique_ptr<ByteStream> SecureLine::direct() {
  return std::make_unique<Direct>(shared_from_this());
}

/// Call when the owner has nothing more to send or to receive.
void SecureLine::close() {
  silent_ = true;
  stream_->close();
  finish(asio::error::operation_aborted);
}

Awaitable<> SecureLine::inbound(std::shared_ptr<SecureLine> self) {
  std::array<char, kSmall> small;
  std::unique_ptr<char[]> block;
  error_code end;
  while (!end) {
    const asio::mutable_buffer space =
        block ? asio::buffer(block.get(), kBlock) : asio::buffer(small.data(), small.size());
    const auto [failed, count] = co_await self->stream_->read_some(space);
    end = failed;
    if (count == 0) continue;
    self->last_heard_ = Clock::now();
    // No one reads after the owner's end. The peer's bytes are still received, so that the last bytes of both
    // sides do not turn into a reset.
    if (!self->dropped_) {
      const auto [refused, taken] =
          co_await asio::async_write(self->local_, asio::buffer(space.data(), count), kUseTuple);
      (void)refused, (void)taken;
    }
    if (!block && count == kSmall)
      block = std::make_unique_for_overwrite<char[]>(kBlock);
    else if (count < kSmall)
      block.reset();
  }
  self->finish(end);
}

Awaitable<> SecureLine::outbound(std::shared_ptr<SecureLine> self) {
  while (!self->silent_) {
    const auto [error] = co_await self->local_.async_wait(Socket::wait_read, kUseTuple);
    if (error) break;
    const auto block = std::make_unique_for_overwrite<char[]>(kBlock);
    for (;;) {
      const ssize_t count = ::recv(self->local_.native_handle(), block.get(), kBlock, MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) break;
      if (count <= 0) {
        self->silent_ = true;
        break;
      }
      co_await self->write_whole(block.get(), static_cast<std::size_t>(count));
    }
  }
  self->patience_.cancel();
  self->stream_->close();
}

Awaitable<> SecureLine::write_whole(const char* bytes, std::size_t size) {
  while (size > 0 && !unheard_) {
    const auto [error, count] = co_await stream_->write_some(asio::buffer(bytes, size));
    bytes += count;
    size -= count;
    if (error) unheard_ = true;  // the reading task sees the error, too, and its reason
  }
}

void SecureLine::finish(const error_code& error) {
  if (std::exchange(ended_, true)) return;
  if (error != asio::error::eof && !silent_ && !broken_)
    broken_ = Error{ErrorCode::kLinkLost, error.message(), error.value()};
  error_code ignored;
  local_.shutdown(Socket::shutdown_send, ignored);
  over_.cancel();
  if (const auto handler = std::exchange(on_end_, nullptr)) handler();
}

void SecureLine::cut(Error why) {
  if (ended_) return;
  if (!broken_) broken_ = std::move(why);
  stream_->close();
}

void SecureLine::drop() {
  dropped_ = true;
  patience_.expires_after(kPatience);
  patience_.async_wait([self = shared_from_this()](const error_code& cancelled) {
    if (!cancelled) self->stream_->close();
  });
}

SecureChannel::SecureChannel(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream,
                             std::string address)
    : line_(std::make_shared<SecureLine>(loop, std::move(stream))),
      link_(loop),
      errors_(loop),
      address_(std::move(address)) {}

SecureChannel::~SecureChannel() {
  if (!line_->local_.is_open())
    line_->close();
  else if (!line_->silent_)
    line_->drop();
}

remote::Channel::Socket& SecureChannel::link() {
  if (link_.is_open() || line_->local_.is_open() || line_->silent_) return link_;
  auto local = line_->carry();
  if (local) link_ = std::move(*local);
  return link_;
}

std::unique_ptr<ByteStream> SecureChannel::stream() {
  return line_->local_.is_open() ? stream_over(link_) : line_->direct();
}

Awaitable<remote::ChannelEnd> SecureChannel::end() {
  const bool over = co_await wait_until(line_->over_, [this] { return line_->ended_; });
  if (!over) co_return remote::ChannelEnd{std::nullopt, Error{ErrorCode::kCancelled, "cancelled", 0}};
  co_return remote::ChannelEnd{std::nullopt, line_->broken_};
}

}  // namespace ddp::launcher
