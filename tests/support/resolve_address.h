#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/link/secure_link.h"

namespace ddp::test {

/// A `resolve` for secure_join whose `host` is an address.
inline Awaitable<Result<std::vector<asio::ip::tcp::endpoint>>> resolve_address(
    std::string host, std::uint16_t port, std::chrono::steady_clock::time_point) {
  co_return std::vector<asio::ip::tcp::endpoint>{{asio::ip::make_address(host), port}};
}

}  // namespace ddp::test
