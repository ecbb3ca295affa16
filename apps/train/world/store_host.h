#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"

namespace ddp::train {

/// A store served by this process on its own thread. It is for launchers that leave the store to rank 0
/// (torchrun without its agent's store, ddplaunch --store worker, a hand-made environment). It ends with the
/// object.
class StoreHost {
 public:
  /// Listens on all interfaces, like PyTorch's rank 0. kSystem when the port is taken.
  static Result<std::unique_ptr<StoreHost>> open(std::uint16_t port);

  ~StoreHost();
  StoreHost(const StoreHost&) = delete;
  StoreHost& operator=(const StoreHost&) = delete;

  std::uint16_t port() const;  ///< the kernel's choice if 0 was requested

 private:
  struct Server;
  explicit StoreHost(std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

}  // namespace ddp::train
