// Measures the cost of TLS 1.3 joins with a pre-shared key. A second process joins the server.
// tests/bench/rendezvous runs this program.
//
// secure_join_bench SERVER JOINS HELD
//   Prints "SERVER JOINS CPU_US WALL_US BYTES": the server's CPU time and the wall time per join, and its
//   memory per joined connection. JOINS joins give the times; HELD open connections give the memory. SERVER
//   is one of:
//     ours   SecureAcceptor
//     link   SecureAcceptor and a Connection that waits for frames
//     asio   boost::asio::ssl::stream with the same settings
//     floor  SSL_accept on a blocking socket
//
// secure_join_bench storm 0 HELD
//   HELD nodes join the server of `link` at once. Prints "storm HELD CPU_US WALL_US BYTES"; WALL_US is the
//   time until all have joined.
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/ssl.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/link/connection.h"
#include "rendezvous/link/secure_link.h"
#include "tests/support/resolve_address.h"

namespace {

using namespace ddp;
using namespace ddp::rendezvous;
using asio::ip::tcp;

constexpr int kAtOnce = 16;
const std::string kToken = "0123456789abcdef0123456789abcdef";

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "secure_join_bench: %s\n", what.c_str());
  std::exit(1);
}

double seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::size_t resident() {
  long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return static_cast<std::size_t>(pages) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

LinkIdentity who() {
  return {LinkRole::kAgent, "bench", "gpu02", {}};
}
Secret key_of_all() {
  const Secret token{std::string_view(kToken)};
  return session_key(link_key(token, LinkRole::kAgent, "bench", "gpu02").value(), who()).value();
}

// Joining process

struct Joiner {
  asio::io_context loop{1};
  std::uint16_t port = 0;
  int left = 0;
  bool hold = false;
  std::vector<std::unique_ptr<SecureStream>> held;
};

Awaitable<> join_some(Joiner* all) {
  while (all->left-- > 0) {
    tcp::socket socket(all->loop);
    const auto [failed] =
        co_await socket.async_connect({asio::ip::address_v4::loopback(), all->port}, kUseTuple);
    if (failed) fail("connect: " + failed.message());
    socket.set_option(tcp::no_delay(true));
    auto stream = SecureStream::make(
        SecureStream::TlsRole::kClient,
        {asio::posix::stream_descriptor(all->loop, socket.release()), who(), key_of_all()});
    const HandshakeEnd end = co_await (*stream)->handshake();
    if (end.refusal) fail("a join failed: " + end.detail);
    std::string hello = hello_line({1, "0.1.0"});
    (void)co_await write_line(**stream, std::move(hello));
    if (all->hold)
      all->held.push_back(std::move(*stream));
    else
      (*stream)->close();
  }
}

Awaitable<> join_at_once(Joiner* all, const LinkGoal* goal) {
  const Resolve by_address = test::resolve_address;
  auto joined =
      co_await secure_join(by_address, *goal, std::chrono::steady_clock::now() + std::chrono::minutes(2));
  if (!joined.stream) fail(joined.error.text);
  char byte = 0;
  (void)co_await joined.stream->read_some(asio::buffer(&byte, 1));
}

/// Forks a child in which `count` nodes join at once. The child runs until it is killed.
pid_t start_storm(std::uint16_t port, int count) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child > 0) return child;
  if (::getppid() != parent) ::_exit(1);
  Joiner joiner;
  joiner.port = port;
  const LinkToken token{Secret{std::string_view(kToken)}, "here"};
  const LinkGoal goal =
      link_goal("127.0.0.1", port, {LinkRole::kAgent, "bench", "gpu02", {}}, token, {1, "0.1.0"}).value();
  for (int i = 0; i < count; ++i)
    asio::co_spawn(joiner.loop, join_at_once(&joiner, &goal), [](const std::exception_ptr& e) {
      if (e) fail("exception");
    });
  joiner.loop.run();
  ::_exit(0);
}

/// Forks a child that joins `count` times. With `hold` it keeps the connections until it is killed.
pid_t start_joiner(std::uint16_t port, int count, bool hold) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child > 0) return child;
  if (::getppid() != parent) ::_exit(1);
  Joiner joiner;
  joiner.port = port;
  joiner.left = count;
  joiner.hold = hold;
  for (int i = 0; i < kAtOnce; ++i)
    asio::co_spawn(joiner.loop, join_some(&joiner), [](const std::exception_ptr& e) {
      if (e) fail("exception");
    });
  joiner.loop.run();
  if (hold) ::pause();
  ::_exit(0);
}

void end_joiner(pid_t child) {
  ::kill(child, SIGTERM);
  ::waitpid(child, nullptr, 0);
}

// Servers

/// accept_joins() accepts `count` joins and keeps their connections open if `keep` is set.
struct Server {
  virtual ~Server() = default;
  virtual std::uint16_t port() = 0;
  virtual void accept_joins(int count, bool keep) = 0;
};

struct Ours final : Server {
  asio::io_context loop{1};
  std::shared_ptr<SecureAcceptor> acceptor;
  std::uint16_t number = 0;
  int joined = 0;
  bool keeps = false;
  bool with_link;
  std::vector<std::unique_ptr<ByteStream>> kept;
  std::vector<std::unique_ptr<Connection>> links;

  explicit Ours(bool link) : with_link(link) {
    auto listener = listen_tcp(ListenScope::kLoopback, 0).value();
    number = listener.port;
    SecureAcceptorOptions options;
    options.listener = std::move(listener);
    options.where = "the bench's port";
    options.token = make_token(kToken, "here").value();
    options.limits.silent_per_address = options.limits.waiting;  // all nodes share one address here
    options.on_joined = [this](JoinedPeer peer) {
      asio::co_spawn(loop, answer(this, std::move(peer.stream)), asio::detached);
    };
    options.on_note = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
    acceptor = SecureAcceptor::start(loop.get_executor(), std::move(options)).value();
  }
  static Awaitable<> answer(Ours* self, std::unique_ptr<ByteStream> stream) {
    std::string line = answer_line({1, "bench"});
    (void)co_await write_line(*stream, std::move(line));
    ++self->joined;
    if (self->keeps) self->keep(std::move(stream));
  }
  std::uint16_t port() override { return number; }
  void keep(std::unique_ptr<ByteStream> stream) {
    if (with_link) {
      links.push_back(std::make_unique<Connection>(loop.get_executor(), std::move(stream)));
      asio::co_spawn(loop, links.back()->write_all(), asio::detached);
      asio::co_spawn(loop, read_link(links.back().get()), asio::detached);
    } else {
      kept.push_back(std::move(stream));
      asio::co_spawn(loop, read(kept.back().get()), asio::detached);
    }
  }
  static Awaitable<> read(ByteStream* stream) {
    char byte = 0;
    (void)co_await stream->read_some(asio::buffer(&byte, 1));
  }
  static Awaitable<> read_link(Connection* link) { (void)co_await link->read_more(); }
  void accept_joins(int count, bool keep) override {
    keeps = keep;
    for (const int until = joined + count; joined < until;)
      loop.run_one();
  }
};

int find_fixed(SSL* ssl, const unsigned char*, std::size_t, SSL_SESSION** session) {
  static const Secret key = key_of_all();
  const unsigned char suite[] = {0x13, 0x01};
  *session = SSL_SESSION_new();
  SSL_SESSION_set1_master_key(*session, reinterpret_cast<const unsigned char*>(key.reveal().data()),
                              key.size());
  SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, suite));
  SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
  return 1;
}

struct Floor final : Server {
  ssl_ctx_st* context = secure_context().value();
  TcpListener listener = listen_tcp(ListenScope::kLoopback, 0).value();
  std::vector<SSL*> kept;

  Floor() { SSL_CTX_set_psk_find_session_callback(context, find_fixed); }
  std::uint16_t port() override { return listener.port; }
  void accept_joins(int count, bool keep) override {
    const int fd = listener.fds[0].get();
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    while (count-- > 0) {
      const int socket = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
      const int on = 1;
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      SSL* ssl = SSL_new(context);
      SSL_set_fd(ssl, socket);
      if (SSL_accept(ssl) != 1) fail("SSL_accept");
      if (keep) {
        char byte = 0;
        ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
        (void)SSL_read(ssl, &byte, 1);
        kept.push_back(ssl);
      } else {
        SSL_shutdown(ssl);
        SSL_free(ssl);
        ::close(socket);
      }
    }
  }
};

struct AsioSsl final : Server {
  using Stream = asio::ssl::stream<tcp::socket>;
  asio::io_context loop{1};
  ssl_ctx_st* settings = secure_context().value();
  asio::ssl::context context{settings};
  tcp::acceptor acceptor{loop, {asio::ip::address_v4::loopback(), 0}};
  std::vector<std::shared_ptr<Stream>> kept;
  int joined = 0;
  bool keeps = false;

  AsioSsl() {
    SSL_CTX_up_ref(settings);  // which `context` frees
    SSL_CTX_set_psk_find_session_callback(context.native_handle(), find_fixed);
    asio::co_spawn(loop, accept(this), asio::detached);
  }
  std::uint16_t port() override { return acceptor.local_endpoint().port(); }
  static Awaitable<> accept(AsioSsl* self) {
    for (;;) {
      auto [error, socket] = co_await self->acceptor.async_accept(kUseTuple);
      if (error) co_return;
      socket.set_option(tcp::no_delay(true));
      asio::co_spawn(self->loop, serve(self, std::make_shared<Stream>(std::move(socket), self->context)),
                     asio::detached);
    }
  }
  static Awaitable<> serve(AsioSsl* self, std::shared_ptr<Stream> stream) {
    const auto [error] = co_await stream->async_handshake(asio::ssl::stream_base::server, kUseTuple);
    if (error) fail("asio: " + error.message());
    ++self->joined;
    if (!self->keeps) co_return;
    self->kept.push_back(stream);
    char byte = 0;
    (void)co_await stream->async_read_some(asio::buffer(&byte, 1), kUseTuple);
  }
  void accept_joins(int count, bool keep) override {
    keeps = keep;
    for (const int until = joined + count; joined < until;)
      loop.run_one();
  }
};

std::unique_ptr<Server> make_server(const std::string& name) {
  if (name == "ours" || name == "link" || name == "storm") return std::make_unique<Ours>(name != "ours");
  if (name == "asio") return std::make_unique<AsioSsl>();
  if (name == "floor") return std::make_unique<Floor>();
  fail("no server " + name);
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) fail("usage: secure_join_bench ours|link|asio|floor JOINS HELD");
  const int joins = std::atoi(words[2]);
  const int held = std::atoi(words[3]);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const auto server = make_server(words[1]);
  const auto run = [&](int number, bool keep) {
    const pid_t child = start_joiner(server->port(), number, keep);
    server->accept_joins(number, keep);
    return child;
  };
  end_joiner(run(200, false));  // warms up
  if (std::string(words[1]) == "storm") {
    const std::size_t empty = resident();
    const double began = seconds(CLOCK_MONOTONIC);
    const double used = seconds(CLOCK_PROCESS_CPUTIME_ID);
    const pid_t nodes = start_storm(server->port(), held);
    server->accept_joins(held, true);
    const double took = seconds(CLOCK_MONOTONIC) - began;
    std::printf("storm %d %.1f %.1f %zu\n", held, (seconds(CLOCK_PROCESS_CPUTIME_ID) - used) * 1e6 / held,
                took * 1e6, (resident() - empty) / static_cast<std::size_t>(held));
    std::fflush(stdout);
    end_joiner(nodes);
    ::_exit(0);
  }
  const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
  const double wall = seconds(CLOCK_MONOTONIC);
  const pid_t child = run(joins, false);
  const double cpu_us = (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) * 1e6 / joins;
  const double wall_us = (seconds(CLOCK_MONOTONIC) - wall) * 1e6 / joins;
  end_joiner(child);
  const std::size_t before = resident();
  const pid_t holder = run(held, true);
  const std::size_t bytes = (resident() - before) / static_cast<std::size_t>(held);
  std::printf("%s %d %.1f %.1f %zu\n", words[1], joins, cpu_us, wall_us, bytes);
  std::fflush(stdout);
  end_joiner(holder);
  ::_exit(0);
}
