// A minimal store with one thread, as the lower bound for the cost of a store: mostly the kernel's share. The
// store makes one receive and one send per wakeup, parses only the lengths of requests, and answers each GET
// with the same bytes. The requests are those of torch <= 2.0, as store_load sends them.
// tests/bench/rendezvous runs this program.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

constexpr std::size_t kValue = 32;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

std::uint64_t number_at(const std::string& bytes, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// Removes the whole requests from `bytes` and returns the number of GETs among them.
int gets_in(std::string& bytes) {
  int gets = 0;
  std::size_t at = 0;
  while (bytes.size() - at >= 9) {
    const bool get = bytes[at] == 2;
    const std::size_t size = 9 + number_at(bytes, at + 1) + (get ? 0 : 8 + kValue);
    if (bytes.size() - at < size) break;
    at += size;
    gets += get ? 1 : 0;
  }
  bytes.erase(0, at);
  return gets;
}

void watch(int poller, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
}

}  // namespace

int main() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener, 128) != 0)
    fail("listen");
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::printf("port %d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  std::string answer(8 + kValue, 'v');
  const std::uint64_t length = kValue;
  std::memcpy(answer.data(), &length, sizeof length);
  std::map<int, std::string> waiting;
  std::array<char, 65536> buffer;
  std::array<epoll_event, 256> events;
  const int poller = ::epoll_create1(EPOLL_CLOEXEC);
  watch(poller, listener);
  for (;;) {
    const int ready = ::epoll_wait(poller, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < ready; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener) {
        const int one = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        const int on = 1;
        ::setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        watch(poller, one);
        continue;
      }
      const ssize_t count = ::recv(fd, buffer.data(), buffer.size(), 0);
      if (count <= 0) {
        ::close(fd);
        waiting.erase(fd);
        continue;
      }
      std::string& bytes = waiting[fd];
      bytes.append(buffer.data(), static_cast<std::size_t>(count));
      const int gets = gets_in(bytes);
      std::string out;
      for (int n = 0; n < gets; ++n)
        out += answer;
      if (!out.empty() && ::send(fd, out.data(), out.size(), MSG_NOSIGNAL) < 0) fail("send");
    }
  }
}
