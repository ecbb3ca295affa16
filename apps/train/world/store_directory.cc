#include "apps/train/world/store_directory.h"

#include <utility>

namespace ddp::train {

Result<std::unique_ptr<StoreDirectory>> StoreDirectory::open(rendezvous::TcpStoreClient client,
                                                             const std::string& run_id, std::uint32_t attempt,
                                                             int rank, std::chrono::milliseconds timeout) {
  const std::string prefix = "ddp_train/" + run_id + "/" + std::to_string(attempt) + "/";
  const auto run = client.add(prefix + "runs/" + std::to_string(rank), 1, timeout);
  if (!run) return run.error();
  return std::unique_ptr<StoreDirectory>(
      new StoreDirectory(std::move(client), prefix + std::to_string(*run) + "/"));
}

StoreDirectory::StoreDirectory(rendezvous::TcpStoreClient client, std::string prefix)
    : client_(std::move(client)), prefix_(std::move(prefix)) {}

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
