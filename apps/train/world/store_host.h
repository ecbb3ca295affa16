#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"

namespace ddp::train {

/// A store served by this process on a thread of its own, for launchers that leave it to rank 0 (torchrun
/// without its agent's store, ddplaunch --store worker, a hand-made environment). Ends with the object.
class StoreHost {
 public:
  /// On all interfaces, as PyTorch's rank 0 does. kSystem when the port is taken.
  static Result<std::unique_ptr<StoreHost>> open(std::uint16_t port);

  ~StoreHost();
  StoreHost(const StoreHost&) = delete;
  StoreHost& operator=(const StoreHost&) = delete;

  std::uint16_t port() const;  ///< the kernel's choice where 0 was asked for

 private:
  struct Server;
  explicit StoreHost(std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

}  // namespace ddp::train
