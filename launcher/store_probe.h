#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/asio.h"
#include "base/result.h"

namespace ddp::launcher {

/// Connects to `address`:`port`, says the store's greeting and waits for its echo: proof that this way leads
/// to the store of this job's node 0 and that it takes connections from here. Error kUnreachable,
/// "10.0.0.1:29500: Connection refused", after `timeout` at the latest.
Awaitable<Result<>> probe_store(asio::any_io_executor executor, std::string address, std::uint16_t port,
                                std::chrono::milliseconds timeout);

}  // namespace ddp::launcher
