#pragma once

#include <chrono>
#include <string>

#include "base/result.h"

namespace ddp::train {

/// Lets the ranks of one attempt exchange addresses and similar texts.
class PeerDirectory {
 public:
  virtual ~PeerDirectory() = default;
  /// Returns this machine's address as the others reach it, without port.
  virtual Result<std::string> local_address() = 0;
  virtual Result<> share(const std::string& name, const std::string& text) = 0;
  /// Waits until a rank has shared `name`; fails with kTimeout otherwise.
  virtual Result<std::string> find(const std::string& name, std::chrono::milliseconds timeout) = 0;
};

}  // namespace ddp::train
