#include "remote/shells/socket_pair.h"

#include <sys/socket.h>

#include <cerrno>

namespace ddp::remote {

Result<SocketPair> make_socket_pair(int flags, int send_buffer) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0, ends) != 0)
    return system_error(errno, "make a local socket");
  for (const int end : ends)
    ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
  return SocketPair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Result<asio::local::stream_protocol::socket> as_socket(const asio::any_io_executor& loop, UniqueFd fd) {
  asio::local::stream_protocol::socket socket(loop);
  error_code error;
  socket.assign(asio::local::stream_protocol(), fd.get(), error);
  if (error) return system_error(error.value(), "register a socket with the loop");
  fd.release();
  return socket;
}

}  // namespace ddp::remote
