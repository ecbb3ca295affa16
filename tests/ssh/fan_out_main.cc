// Measures the cost of starting a command on many hosts at once. It waits until all commands have ended, and
// prints the wall time and its own CPU time.
//   ssh_fan_out ssh|command|local SSH_CONFIG HOSTS_FILE COMMAND [ARGUMENT…]
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "remote/ssh/ssh_transport.h"
#include "remote/transports/command_transport.h"

using namespace ddp;
using namespace ddp::remote;

namespace {

using Clock = std::chrono::steady_clock;

struct Totals {
  int failed = 0;
  std::size_t bytes = 0;
  double last_open_ms = 0;
};

Awaitable<void> read_all(std::shared_ptr<Channel> channel, bool errors, Totals& totals) {
  std::array<char, 65536> buffer;
  Channel::Socket& socket = errors ? channel->errors() : channel->socket();
  for (;;) {
    const auto [error, size] = co_await socket.async_read_some(asio::buffer(buffer), kUseTuple);
    totals.bytes += size;
    if (error) break;
  }
}

Awaitable<void> run_one(asio::io_context& loop, Transport& transport, Host host,
                        std::vector<std::string> argv, Clock::time_point start, Totals& totals) {
  auto opened = co_await transport.open(std::move(host), std::move(argv), start + std::chrono::seconds(60));
  if (!opened) {
    std::fprintf(stderr, "%s\n", opened.error().text.c_str());
    ++totals.failed;
    co_return;
  }
  totals.last_open_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  std::shared_ptr<Channel> channel = std::move(*opened);
  asio::co_spawn(loop, read_all(channel, false, totals), asio::detached);
  asio::co_spawn(loop, read_all(channel, true, totals), asio::detached);
  const ChannelEnd end = co_await channel->end();
  if (end.broken) std::fprintf(stderr, "%s\n", end.broken->text.c_str());
  if (end.status != 0) ++totals.failed;
}

double cpu_ms(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s ssh|command|local SSH_CONFIG HOSTS_FILE COMMAND [ARGUMENT...]\n",
                 argv[0]);
    return 2;
  }
  const std::string kind = argv[1];
  const std::string config = argv[2];
  std::ifstream list(argv[3]);
  const std::vector<std::string> command(argv + 4, argv + argc);

  asio::io_context loop(1);
  std::unique_ptr<Transport> transport;
  if (kind == "ssh") {
    SshTransportOptions options;
    options.config = config;
    options.notice = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
    transport = std::make_unique<SshTransport>(loop.get_executor(), options);
  } else if (kind == "command") {
    transport = std::make_unique<CommandTransport>(loop.get_executor(),
                                                   CommandTransportOptions{{"ssh"}, config, false});
  } else {
    transport = std::make_unique<LocalTransport>(loop.get_executor());
  }
  Totals totals;
  int hosts = 0;
  const auto start = Clock::now();
  for (Host host; list >> host.name; ++hosts) {
    asio::co_spawn(loop, run_one(loop, *transport, host, command, start, totals),
                   [](std::exception_ptr broken) {
                     if (broken) std::rethrow_exception(broken);
                   });
  }
  loop.run();
  const double wall = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  transport.reset();
  const double own = cpu_ms(RUSAGE_SELF);
  const double children = cpu_ms(RUSAGE_CHILDREN);
  std::printf(
      "%s: %d hosts, %d failed, %zu bytes, all open after %.0f ms, wall %.0f ms, cpu %.1f ms own + %.1f ms "
      "children",
      kind.c_str(), hosts, totals.failed, totals.bytes, totals.last_open_ms, wall, own, children);
  std::printf(" = %.2f ms a host\n", (own + children) / (hosts > 0 ? hosts : 1));
  return totals.failed == 0 ? 0 : 1;
}
