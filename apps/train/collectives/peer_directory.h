#pragma once

#include <chrono>
#include <string>

#include "base/result.h"

namespace ddp::train {

/// Where the ranks of one attempt tell each other their addresses and the like.
class PeerDirectory {
 public:
  virtual ~PeerDirectory() = default;
  /// The address of this machine towards the others, without port.
  virtual Result<std::string> local_address() = 0;
  virtual Result<> share(const std::string& name, const std::string& text) = 0;
  /// Waits until a rank has shared that name; kTimeout otherwise.
  virtual Result<std::string> find(const std::string& name, std::chrono::milliseconds timeout) = 0;
};

}  // namespace ddp::train
