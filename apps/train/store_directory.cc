#include "apps/train/store_directory.h"

#include <utility>

namespace ddp::train {

StoreDirectory::StoreDirectory(rendezvous::TcpStoreClient client, const std::string& run_id,
                               std::uint32_t attempt)
    : client_(std::move(client)),
      prefix_("ddp_train/" + run_id + "/" + std::to_string(attempt) + "/address/") {}

Result<std::string> StoreDirectory::local_address() {
  return client_.local_address();
}

Result<> StoreDirectory::publish(int rank, const std::string& address) {
  return client_.set(prefix_ + std::to_string(rank), address);
}

Result<std::string> StoreDirectory::lookup(int rank, std::chrono::milliseconds timeout) {
  return client_.get(prefix_ + std::to_string(rank), timeout);
}

}  // namespace ddp::train
