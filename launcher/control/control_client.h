#pragma once

#include <chrono>
#include <string>

#include "base/result.h"

namespace ddp::launcher {

/// Sends one request to the control socket of a job, with `body` unless it is empty, and returns the reply's
/// body. Blocks for `limit` at most.
/// kUnreachable: nobody listens there. kTimeout: no reply in time. kProtocol: the reply is no success.
Result<std::string> ask_job(const std::string& socket, const std::string& method, const std::string& target,
                            std::chrono::milliseconds limit, std::string body = {});

}  // namespace ddp::launcher
