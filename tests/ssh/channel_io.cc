#include "tests/ssh/channel_io.h"

#include <dirent.h>
#include <unistd.h>

#include <array>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/run_until.h"

namespace ddp::remote::test {
namespace {

struct Work {
  Transport& transport;
  Host host;
  std::vector<std::string> argv;
  std::string input;
  Deadline deadline;
  Ran ran;
  std::unique_ptr<Channel> channel;
  int open_ends = 4;  // the command, stdout, stderr, stdin
};

Awaitable<void> write_input(Work& work) {
  auto& socket = work.channel->socket();
  co_await asio::async_write(socket, asio::buffer(work.input), kUseTuple);
  error_code ignored;
  socket.shutdown(asio::socket_base::shutdown_send, ignored);
  --work.open_ends;
}

Awaitable<void> read_all(Work& work, Channel::Socket& from, std::string& into) {
  std::array<char, 65536> buffer;
  for (;;) {
    const auto [error, size] = co_await from.async_read_some(asio::buffer(buffer), kUseTuple);
    into.append(buffer.data(), size);
    if (error) break;
  }
  --work.open_ends;
}

Awaitable<void> run_all(asio::io_context& loop, Work& work) {
  auto opened = co_await work.transport.open(work.host, work.argv, work.deadline);
  if (!opened) {
    work.ran.opened = opened.error();
    work.open_ends = 0;
    co_return;
  }
  work.ran.opened = Result<>();
  work.channel = std::move(*opened);
  Channel& channel = *work.channel;
  work.ran.address = channel.address();
  asio::co_spawn(loop, write_input(work), asio::detached);
  asio::co_spawn(loop, read_all(work, channel.socket(), work.ran.out), asio::detached);
  asio::co_spawn(loop, read_all(work, channel.errors(), work.ran.errors), asio::detached);
  work.ran.end = co_await channel.end();
  --work.open_ends;
}

std::size_t entries(const std::string& folder) {
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) return 0;
  std::size_t count = 0;
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_name[0] != '.') ++count;
  }
  ::closedir(dir);
  return count;
}

}  // namespace

Ran run_command(asio::io_context& loop, Transport& transport, const Host& host, std::vector<std::string> argv,
                std::string input, std::chrono::milliseconds limit) {
  const Deadline deadline = std::chrono::steady_clock::now() + limit;
  Work work{transport, host, std::move(argv), std::move(input), deadline, {}, {}};
  std::exception_ptr broken;
  asio::co_spawn(loop, run_all(loop, work), [&broken](std::exception_ptr error) { broken = error; });
  loop.restart();
  while (work.open_ends > 0 && !broken &&
         std::chrono::steady_clock::now() < deadline + std::chrono::seconds(5)) {
    loop.run_one_for(std::chrono::milliseconds(200));
  }
  if (broken) std::rethrow_exception(broken);
  if (work.open_ends > 0) {
    throw std::runtime_error("the command did not end in time; stdout so far: " + work.ran.out +
                             "; stderr: " + work.ran.errors);
  }
  return std::move(work.ran);
}

Host host_named(const std::string& name) {
  Host host;
  host.name = name;
  return host;
}

std::string mebibyte() {
  std::string bytes(1 << 20, '\0');
  unsigned x = 12345;
  for (char& c : bytes)
    c = static_cast<char>((x = x * 1103515245 + 12345) >> 16);
  return bytes;
}

void run_fan_out(asio::io_context& loop, FanOut& fan_out, std::vector<Host> hosts, Outcomes& outcomes,
                 const std::function<void()>& at_outcome) {
  bool returned = false;
  asio::co_spawn(loop,
                 fan_out.run(std::move(hosts),
                             [&](std::size_t host, Result<StartedAgent> outcome) {
                               outcomes.emplace(host, std::move(outcome));
                               at_outcome();
                             }),
                 [&returned](std::exception_ptr broken) {
                   if (broken) std::rethrow_exception(broken);
                   returned = true;
                 });
  loop.restart();
  while (!returned)
    REQUIRE(loop.run_one_for(std::chrono::minutes(2)) > 0);
}

std::size_t open_descriptors() {
  return entries("/proc/self/fd");
}

std::size_t children() {
  std::ifstream list("/proc/self/task/" + std::to_string(::getpid()) + "/children");
  return static_cast<std::size_t>(std::distance(std::istream_iterator<std::string>(list), {}));
}

void let_children_end(asio::io_context& loop) {
  CHECK(ddp::test::run_until(loop, [] { return children() == 0; }));
}

}  // namespace ddp::remote::test
