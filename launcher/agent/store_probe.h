#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/result.h"

namespace ddp::launcher {

/// The way to the store that a node found.
struct StoreWay {
  std::string address;   ///< the first of those asked for that leads there; empty: none does
  std::string local;     ///< our own address on this way
  std::string failures;  ///< of the addresses before it: "10.0.0.1:29500: Connection refused; …"
};

/// Connects to `port` of all `addresses` (numeric, best first) at once and asks who is there: only the store
/// whose token is `token` (OpenStore's answer) counts, any store where it is empty. Takes `timeout` at most,
/// and half of it where a worse address leads there and a better one is silent.
Awaitable<StoreWay> find_store(asio::any_io_executor executor, std::vector<std::string> addresses,
                               std::uint16_t port, std::string token, std::chrono::milliseconds timeout);

}  // namespace ddp::launcher
