#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"
#include "tests/unit/rendezvous/store/store_bytes.h"

namespace ddp::test {

/// A socket that sends exactly the given bytes, for requests that a correct client never sends.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }

  /// Takes over a connection that the test has accepted.
  explicit RawClient(UniqueFd connection) : fd_(std::move(connection)), connected_(true) {}

  bool connected() const { return connected_; }
  bool say(const std::string& text) {
    std::string_view bytes = text;
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  /// Returns exactly `size` bytes, or fewer when the peer closes or ten seconds pass.
  std::string hear(std::size_t size) {
    std::string out(size, '\0');
    std::size_t have = 0;
    while (have < size && readable(10000)) {
      const ssize_t got = ::recv(fd_.get(), out.data() + have, size - have, 0);
      if (got <= 0) break;
      have += static_cast<std::size_t>(got);
    }
    out.resize(have);
    return out;
  }
  bool readable(int milliseconds) {
    pollfd entry{fd_.get(), POLLIN, 0};
    return ::poll(&entry, 1, milliseconds) == 1;
  }
  /// Returns whether the peer has closed, by an end or a reset.
  bool closed() {
    char byte = 0;
    return readable(10000) && ::recv(fd_.get(), &byte, 1, 0) <= 0;
  }
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  bool connected_ = false;
};

/// Returns whether the store at `port` holds exactly `count` keys.
inline bool holds_keys(std::uint16_t port, int count) {
  RawClient client(port);
  client.say(greeting() + RequestBytes(rendezvous::StoreOp::kNumKeys).str());
  return client.hear(8) == RequestBytes().number(count).str();
}

}  // namespace ddp::test
