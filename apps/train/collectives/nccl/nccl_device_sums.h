#pragma once

#include <memory>
#include <utility>

#include "apps/train/collectives/device_sums.h"

struct ncclComm;

namespace ddp::train {

class NcclLink;

/// DeviceSums of one communicator of a link.
class NcclDeviceSums final : public DeviceSums {
 public:
  NcclDeviceSums(std::shared_ptr<NcclLink> link, ncclComm* comm) : link_(std::move(link)), comm_(comm) {}

  Result<> enqueue(void* numbers, std::size_t count, DeviceType type, void* stream) override;
  Result<> wait(const Done& done, std::string_view operation) override;
  void on_end(std::function<void()> callback) override;
  std::span<std::byte> share_memory(std::size_t bytes) override;

 private:
  std::shared_ptr<NcclLink> link_;
  ncclComm* comm_;
};

}  // namespace ddp::train
