#pragma once

#include <cstddef>
#include <memory>
#include <tuple>
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
