#include "apps/train/gloo_communicator.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <cstring>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddp::train {

namespace {

/// Gloo's addresses through the directory. Gloo knows errors as exceptions only.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(PeerDirectory& directory, std::chrono::milliseconds timeout)
      : directory_(directory), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    if (auto done = directory_.share("gloo/" + key, {data.begin(), data.end()}); !done)
      throw std::runtime_error(done.error().text);
  }
  std::vector<char> get(const std::string& key) override { return find(key, timeout_); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys)
      (void)find(key, timeout);
  }

 private:
  std::vector<char> find(const std::string& key, std::chrono::milliseconds timeout) {
    const auto found = directory_.find("gloo/" + key, timeout);
    if (!found) throw std::runtime_error(found.error().text);
    return {found->begin(), found->end()};
  }

  PeerDirectory& directory_;
  std::chrono::milliseconds timeout_;
};

class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}

  int rank() const override { return context_->rank; }
  int world_size() const override { return context_->size; }

  Result<> all_reduce_sum(std::span<float> values) override { return reduce(values); }
  Result<> all_reduce_sum(std::span<double> values) override { return reduce(values); }

  Result<> broadcast(std::span<std::byte> data, int root) override {
    if (data.empty()) return {};
    return guarded("broadcast", [&] {
      gloo::BroadcastOptions options(context_);
      options.setRoot(root);
      options.setTag(++tag_);
      options.setOutput(reinterpret_cast<char*>(data.data()), data.size());
      gloo::broadcast(options);
    });
  }

  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override {
    std::vector<std::uint64_t> own(mine.begin(), mine.end());
    std::vector<std::uint64_t> all(own.size() * static_cast<std::size_t>(context_->size));
    if (own.empty()) return all;
    auto done = guarded("all-gather", [&] { gather(own.data(), own.size(), all.data(), all.size()); });
    if (!done) return done.error();
    return all;
  }

  Result<> all_gather_parts(std::span<std::byte> parts) override {
    const std::size_t size = parts.size() / static_cast<std::size_t>(context_->size);
    if (size == 0) return {};
    const auto own = parts.subspan(static_cast<std::size_t>(context_->rank) * size, size);
    std::vector<char> mine(size);
    std::memcpy(mine.data(), own.data(), size);
    return guarded("all-gather",
                   [&] { gather(mine.data(), size, reinterpret_cast<char*>(parts.data()), parts.size()); });
  }

  Result<> barrier() override {
    return guarded("barrier", [&] {
      gloo::BarrierOptions options(context_);
      options.setTag(++tag_);
      gloo::barrier(options);
    });
  }

 private:
  template <class T>
  Result<> reduce(std::span<T> values) {
    if (values.empty()) return {};
    return guarded("all-reduce", [&] {
      gloo::AllreduceOptions options(context_);  // its default algorithm, as torch calls it
      options.setTag(++tag_);
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<T>));
      options.setOutput(values.data(), values.size());
      gloo::allreduce(options);
    });
  }

  template <class T>
  void gather(T* mine, std::size_t count, T* all, std::size_t total) {
    gloo::AllgatherOptions options(context_);
    options.setTag(++tag_);
    options.setInput(mine, count);
    options.setOutput(all, total);
    gloo::allgather(options);
  }

  template <class Call>
  Result<> guarded(const std::string& what, const Call& call) {
    if (failed_) return *failed_;
    try {
      call();
      return {};
    } catch (const std::exception& error) {
      failed_ = Error{ErrorCode::kLinkLost, "rank " + std::to_string(context_->rank) +
                                                " over Gloo: " + error.what() + " during " + what};
      return *failed_;
    }
  }

  std::shared_ptr<gloo::Context> context_;
  std::uint32_t tag_ = 0;
  std::optional<Error> failed_;
};

}  // namespace

Result<> gloo_is_here() {
  return {};
}

Result<std::unique_ptr<Communicator>> connect_gloo(int rank, int world_size,
                                                   std::chrono::milliseconds timeout,
                                                   PeerDirectory& directory) {
  const auto address = directory.local_address();
  if (!address) return address.error();
  try {
    gloo::transport::tcp::attr attr;
    attr.hostname = *address;
    auto device = gloo::transport::tcp::CreateDevice(attr);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, world_size);
    context->setTimeout(timeout);
    GlooStore store(directory, timeout);
    context->connectFullMesh(store, device);
    return std::make_unique<GlooCommunicator>(std::move(context));
  } catch (const std::exception& error) {
    return Error{ErrorCode::kLinkLost,
                 "rank " + std::to_string(rank) + " over Gloo: " + error.what() + " while connecting"};
  }
}

}  // namespace ddp::train
