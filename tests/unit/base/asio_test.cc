#include "base/asio.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <optional>

#include "tests/support/catch.h"

using ddp::Awaitable;
using ddp::error_code;
using Descriptor = ddp::asio::posix::stream_descriptor;

namespace {

int event(unsigned count) {
  return eventfd(count, EFD_CLOEXEC | EFD_NONBLOCK);
}

/// Two descriptors whose events lie in one batch of the reactor. The handler that runs first closes the other
/// descriptor, whose event is queued, and opens a quiet one in its place.
class Batch {
 public:
  explicit Batch(ddp::asio::io_context& loop)
      : loop_(loop), first_(loop, event(1)), second_(loop, event(1)), quiet_(loop) {}

  template <class Wait>
  void run(Wait wait) {
    for (Descriptor* one : {&first_, &second_}) {
      one->async_wait(Descriptor::wait_read, [this, one, wait](const error_code& error) {
        if (error || quiet_.is_open()) return;
        Descriptor& other = one == &first_ ? second_ : first_;
        other.close();
        quiet_.assign(event(0));
        wait(quiet_);
      });
    }
    loop_.run_for(std::chrono::milliseconds(500));
  }

  void make_readable() {
    const std::uint64_t one = 1;
    REQUIRE(write(quiet_.native_handle(), &one, sizeof one) == sizeof one);
    loop_.restart();
    loop_.run_for(std::chrono::seconds(10));
  }

 private:
  ddp::asio::io_context& loop_;
  Descriptor first_, second_, quiet_;
};

/// A free function: g++ 12 breaks coroutines that are capturing lambdas.
Awaitable<> note_readable(Descriptor* descriptor, std::optional<error_code>* result) {
  *result = co_await ddp::until_readable(*descriptor);
}

}  // namespace

TEST_CASE("a queued event of a closed descriptor does not make a new one readable") {
  ddp::asio::io_context loop;
  Batch batch(loop);
  std::optional<error_code> result;
  batch.run([&](Descriptor& quiet) {
    ddp::asio::co_spawn(loop, note_readable(&quiet, &result), ddp::asio::detached);
  });
  CHECK_FALSE(result);
  batch.make_readable();
  REQUIRE(result);
  CHECK_FALSE(*result);
}

TEST_CASE("a wait for a descriptor that is closed ends with an error") {
  ddp::asio::io_context loop;
  Descriptor quiet(loop, event(0));
  std::optional<error_code> result;
  ddp::asio::co_spawn(loop, note_readable(&quiet, &result), ddp::asio::detached);
  ddp::asio::post(loop, [&quiet] { quiet.close(); });
  loop.run_for(std::chrono::seconds(10));
  REQUIRE(result);
  CHECK(*result == ddp::asio::error::operation_aborted);
}

TEST_CASE("a descriptor that holds bytes or has ended is readable") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  CHECK_FALSE(ddp::is_readable(ends[0]));
  close(ends[1]);
  CHECK(ddp::is_readable(ends[0]));
  close(ends[0]);
}
