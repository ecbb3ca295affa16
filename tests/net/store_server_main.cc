// A store for the tests with real clients. It prints "port N" and serves on loopback until its standard input
// ends. Exit 0; 1 when a client was disconnected for invalid data.
#include <cstdio>

#include "rendezvous/store_tcp/tcp_store_server.h"

int main() {
  ddp::asio::io_context loop(1);
  bool broken = false;
  ddp::rendezvous::TcpStoreOptions options;
  options.scope = ddp::rendezvous::ListenScope::kLoopback;
  options.on_broken = [&broken](const ddp::asio::ip::address& peer, const ddp::Error& error) {
    broken = true;
    std::fprintf(stderr, "store: closed %s: %s\n", peer.to_string().c_str(), error.text.c_str());
  };
  auto server = ddp::rendezvous::TcpStoreServer::open(loop.get_executor(), std::move(options));
  if (!server) {
    std::fprintf(stderr, "%s\n", server.error().text.c_str());
    return 1;
  }
  std::printf("port %u\n", static_cast<unsigned>(server->port()));
  std::fflush(stdout);

  ddp::asio::posix::stream_descriptor input(loop, 0);
  input.async_wait(ddp::asio::posix::stream_descriptor::wait_read,
                   [&](const ddp::error_code&) { server->stop(); });
  loop.run();
  input.release();
  return broken ? 1 : 0;
}
