#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/asio.h"

namespace ddp {

/// A two-way stream of bytes: a socket, a pair of pipes, or a TLS session. The control link uses it, so the
/// link does not depend on how a node was reached. At most one read and one write may be in progress at a
/// time.
class ByteStream {
 public:
  using Transferred = std::tuple<error_code, std::size_t>;

  virtual ~ByteStream() = default;
  virtual Awaitable<Transferred> read_some(asio::mutable_buffer buffer) = 0;
  virtual Awaitable<Transferred> write_some(asio::const_buffer buffer) = 0;
  /// Returns the socket that write_some writes to, or -1 if there is none. The caller may write to it
  /// directly while no write_some is in progress; that write may block.
  virtual int socket() { return -1; }
  /// Waits until the socket has enough room to make a write worthwhile.
  virtual Awaitable<error_code> writable() = 0;
  /// Ends both directions; operations in progress complete with an error.
  virtual void close() = 0;
};

/// A ByteStream over Asio objects: one socket for both directions, or one descriptor for each.
template <class In, class Out>
class AsioStream final : public ByteStream {
 public:
  AsioStream(In in, Out out) : in_(std::forward<In>(in)), out_(std::forward<Out>(out)) {}

  Awaitable<Transferred> read_some(asio::mutable_buffer buffer) override {
    co_return co_await in_.async_read_some(buffer, kUseTuple);
  }
  Awaitable<Transferred> write_some(asio::const_buffer buffer) override {
    co_return co_await out_.async_write_some(buffer, kUseTuple);
  }
  int socket() override {
    struct stat status {};
    const int fd = out_.native_handle();
    return ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) ? fd : -1;
  }
  Awaitable<error_code> writable() override {
    const auto [error] = co_await out_.async_wait(std::remove_reference_t<Out>::wait_write, kUseTuple);
    co_return error;
  }
  void close() override {
    error_code ignored;
    in_.close(ignored);
    out_.close(ignored);
  }

 private:
  In in_;  // with a reference type the object belongs to the caller
  Out out_;
};

/// Wraps a socket that the caller owns and keeps alive.
template <class Socket>
std::unique_ptr<ByteStream> stream_over(Socket& socket) {
  return std::make_unique<AsioStream<Socket&, Socket&>>(socket, socket);
}

}  // namespace ddp
