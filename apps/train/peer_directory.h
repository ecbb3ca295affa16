#pragma once

#include <chrono>
#include <string>

#include "base/result.h"

namespace ddp::train {

/// Where the ranks of one attempt tell each other their addresses.
class PeerDirectory {
 public:
  virtual ~PeerDirectory() = default;
  /// The address of this machine towards the others, without port.
  virtual Result<std::string> local_address() = 0;
  virtual Result<> publish(int rank, const std::string& address) = 0;
  /// Waits until that rank has published; kTimeout otherwise.
  virtual Result<std::string> lookup(int rank, std::chrono::milliseconds timeout) = 0;
};

}  // namespace ddp::train
