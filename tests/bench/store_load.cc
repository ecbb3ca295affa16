// Loads a store with clients that use the request numbers of torch <= 2.0. Our store and Debian's torch both
// accept these numbers. tests/bench/rendezvous runs this program.
//
// store_load PORT CONNECTIONS SECONDS SETS
//   Each connection repeats rounds of SETS SET requests and one GET, and waits for the GET's answer.
//   Prints "ROUNDS SECONDS": the completed rounds and the elapsed time.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kValue = 32;  // size of an address that Gloo or NCCL publishes

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

std::string number(std::uint64_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

struct Client {
  int fd = -1;
  std::string set;
  std::string get;
  std::size_t got = 0;
};

Client connected(std::uint16_t port, int index) {
  Client client;
  client.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(client.fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("connect");
  const int on = 1;
  ::setsockopt(client.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const std::string key = "/init//rank" + std::to_string(index);
  const std::string sized_key = number(key.size()) + key;
  client.set = std::string(1, '\0') + sized_key + number(kValue) + std::string(kValue, 'v');
  client.get = '\2' + sized_key;
  return client;
}

void say(const Client& client, const std::string& request) {
  if (::send(client.fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
    fail("send");
}

void ask(const Client& client, int sets) {
  for (int i = 0; i < sets; ++i)
    say(client, client.set);
  say(client, client.get);
}

/// Receives without blocking. Returns true once the answer is complete.
bool hear(Client& client) {
  char buffer[64];
  const ssize_t count = ::recv(client.fd, buffer, sizeof buffer, MSG_DONTWAIT);
  if (count < 0 && errno == EAGAIN) return false;
  if (count <= 0) fail("the store closed a connection");
  client.got += static_cast<std::size_t>(count);
  if (client.got < 8 + kValue) return false;
  if (client.got > 8 + kValue) fail("the store answered too much");
  client.got = 0;
  return true;
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) return 2;
  const auto port = static_cast<std::uint16_t>(std::atoi(words[1]));
  const int sets = std::atoi(words[4]);
  std::vector<Client> clients;
  for (int i = 0; i < std::atoi(words[2]); ++i)
    clients.push_back(connected(port, i));
  const int poller = ::epoll_create1(EPOLL_CLOEXEC);
  for (Client& client : clients) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &client;
    if (::epoll_ctl(poller, EPOLL_CTL_ADD, client.fd, &event) != 0) fail("epoll_ctl");
    ask(client, 1);
  }
  const auto began = Clock::now();
  const auto until = began + std::chrono::duration<double>(std::atof(words[3]));
  std::uint64_t rounds = 0;
  std::vector<epoll_event> events(256);
  while (Clock::now() < until) {
    const int ready = ::epoll_wait(poller, events.data(), static_cast<int>(events.size()), 1000);
    for (int i = 0; i < ready; ++i) {
      Client& client = *static_cast<Client*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (!hear(client)) continue;
      ++rounds;
      ask(client, sets);
    }
  }
  std::printf("%llu %.3f\n", static_cast<unsigned long long>(rounds),
              std::chrono::duration<double>(Clock::now() - began).count());
  return 0;
}
