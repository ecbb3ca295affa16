// Compiles Asio once for all (BOOST_ASIO_SEPARATE_COMPILATION).
#include "base/asio.h"

#include <boost/asio/impl/src.hpp>

namespace ddp {

Awaitable<> pause_for(asio::any_io_executor executor, std::chrono::nanoseconds time) {
  asio::steady_timer timer(executor, time);
  co_await timer.async_wait(kUseTuple);
}

Awaitable<error_code> until_readable(asio::posix::stream_descriptor& descriptor) {
  for (;;) {
    const auto [error] = co_await descriptor.async_wait(asio::posix::descriptor_base::wait_read, kUseTuple);
    if (error || is_readable(descriptor.native_handle())) co_return error;
  }
}

}  // namespace ddp
