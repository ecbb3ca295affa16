#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "rendezvous/flight_recorder/torch_record.h"

namespace ddp::launcher {

/// The time that a server gets.
inline constexpr std::chrono::seconds kServerTime{3};
/// As many that do not answer leave time for no other.
inline constexpr int kServersAtOnce = 16;

enum class ServerQuestion : std::uint8_t { kAll, kStacks, kRecord };

/// Asks the worker server of PyTorch that the hook has started at `path`, a Unix socket
/// (WorkerSockets::server). Its C++ threads answer while Python waits. Blocks until `deadline` at most; call
/// it on a thread of BlockingCalls. An answer that does not come, or is too long, is left empty.
rendezvous::TorchAnswers ask_worker_server(const std::string& path, ServerQuestion question,
                                           std::chrono::steady_clock::time_point deadline);

/// Bytes of a record. 2,000 operations, PyTorch's default, have 0.9 MB.
inline constexpr std::size_t kRecordBytes = 4u << 20;

}  // namespace ddp::launcher
