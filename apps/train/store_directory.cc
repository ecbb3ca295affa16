#include "apps/train/store_directory.h"

#include <utility>

namespace ddp::train {

StoreDirectory::StoreDirectory(rendezvous::TcpStoreClient client, const std::string& run_id,
                               std::uint32_t attempt)
    : client_(std::move(client)), prefix_("ddp_train/" + run_id + "/" + std::to_string(attempt) + "/") {}

Result<std::string> StoreDirectory::local_address() {
  return client_.local_address();
}

Result<> StoreDirectory::share(const std::string& name, const std::string& text) {
  return client_.set(prefix_ + name, text);
}

Result<std::string> StoreDirectory::find(const std::string& name, std::chrono::milliseconds timeout) {
  return client_.get(prefix_ + name, timeout);
}

}  // namespace ddp::train
