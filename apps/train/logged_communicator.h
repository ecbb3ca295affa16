#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "apps/train/collective_log.h"
#include "apps/train/communicator.h"

namespace ddp::train {

/// Another communicator that keeps a log of its operations, and writes it to `directory`/rank-R.jsonl (of a
/// later attempt A: rank-R.attempt-A.jsonl) when one fails. What cannot be written is said once on stderr.
class LoggedCommunicator final : public Communicator {
 public:
  LoggedCommunicator(std::unique_ptr<Communicator> under, const std::string& directory,
                     std::uint32_t attempt);

  int rank() const override { return under_->rank(); }
  int world_size() const override { return under_->world_size(); }
  int lost_rank() const override { return under_->lost_rank(); }
  Result<> all_reduce_sum(std::span<float> values) override;
  Result<> all_reduce_sum(std::span<double> values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override;
  Result<> barrier() override;
  Result<> reduce_scatter_sum(std::span<float> values) override;
  Result<> reduce_scatter_sum(std::span<double> values) override;
  Result<> all_gather_parts(std::span<std::byte> parts) override;
  Result<> shift(std::span<std::byte> halves) override;
  std::span<std::byte> share_memory(std::size_t bytes) override { return under_->share_memory(bytes); }
  Result<Handle> start_all_reduce(std::span<float> values) override;
  Result<Handle> start_all_reduce(std::span<double> values) override;
  Result<> wait(Handle handle) override;
  Result<> progress() override;

 private:
  std::uint64_t begin(CollectiveKind kind, std::size_t bytes, std::string_view type);
  template <class T>
  Result<T> end(std::uint64_t sequence, Result<T> result);
  template <class T>
  Result<Handle> begun(std::span<T> values, std::string_view type);
  void dump(const Error& error);

  std::unique_ptr<Communicator> under_;
  std::string path_;  ///< empty: it cannot be written
  std::uint32_t attempt_;
  CollectiveLog log_;
  std::deque<std::pair<Handle, std::uint64_t>> started_;  ///< in the order of their starts
  bool failed_ = false;                                   ///< after the first failure nothing is an operation
};

/// `under` itself where no directory is named.
std::unique_ptr<Communicator> with_log(std::unique_ptr<Communicator> under, const std::string& directory,
                                       std::uint32_t attempt);

/// What the logs in a directory say together (missing_collective()), for a person.
Result<std::string> read_collective_logs(const std::string& directory);

}  // namespace ddp::train
