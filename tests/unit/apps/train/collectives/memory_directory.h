#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "apps/train/collectives/communicator.h"

namespace ddp::train {

/// A store in memory that all ranks of a test share.
class MemoryDirectory final : public PeerDirectory {
 public:
  Result<std::string> local_address() override { return std::string("127.0.0.1"); }
  Result<> share(const std::string& name, const std::string& text) override {
    const std::lock_guard lock(mutex_);
    texts_[name] = text;
    changed_.notify_all();
    return {};
  }
  Result<std::string> find(const std::string& name, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return texts_.contains(name); })) {
      return Error{ErrorCode::kTimeout, "no such key"};
    }
    return texts_[name];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> texts_;
};

}  // namespace ddp::train
