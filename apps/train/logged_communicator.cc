#include "apps/train/logged_communicator.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace ddp::train {

namespace {

std::int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string file_name(int rank, std::uint32_t attempt) {
  return "rank-" + std::to_string(rank) + (attempt == 0 ? "" : ".attempt-" + std::to_string(attempt)) +
         ".jsonl";
}

bool is_log(const std::filesystem::path& path, const std::string& beginning) {
  return path.filename().string().starts_with(beginning) && path.extension() == ".jsonl";
}

void remove_files_of(const std::string& directory, int rank) {
  std::error_code failed;
  std::vector<std::filesystem::path> old;
  for (std::filesystem::directory_iterator at(directory, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (is_log(at->path(), "rank-" + std::to_string(rank) + ".")) old.push_back(at->path());
  }
  for (const auto& path : old)
    std::filesystem::remove(path, failed);
}

}  // namespace

LoggedCommunicator::LoggedCommunicator(std::unique_ptr<Communicator> under, const std::string& directory,
                                       std::uint32_t attempt)
    : under_(std::move(under)),
      path_(directory + "/" + file_name(under_->rank(), attempt)),
      attempt_(attempt) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) {
    std::fprintf(stderr, "train: %s; there will be no log of collectives\n",
                 system_error(failed.value(), "create " + directory).text.c_str());
    path_.clear();
    return;
  }
  // What an earlier job left there would be taken for this one's; what an earlier attempt left is of use.
  std::error_code ignored;
  if (attempt_ == 0) remove_files_of(directory, under_->rank());
  std::filesystem::remove(path_, ignored);
}

std::uint64_t LoggedCommunicator::begin(CollectiveKind kind, std::size_t bytes, std::string_view type) {
  return failed_ ? 0 : log_.start(kind, bytes, type, nanoseconds());
}

template <class T>
Result<T> LoggedCommunicator::end(std::uint64_t sequence, Result<T> result) {
  if (result) {
    log_.finish(sequence, nanoseconds());
  } else if (!failed_) {
    dump(result.error());
  }
  return result;
}

void LoggedCommunicator::dump(const Error& error) {
  failed_ = true;
  if (path_.empty()) return;
  errno = 0;
  std::ofstream file(path_, std::ios::trunc);
  file << dump_text({rank(), world_size(), attempt_, error.text, log_.entries()});
  file.close();
  if (!file) std::fprintf(stderr, "train: %s\n", system_error(errno, "write " + path_).text.c_str());
}

Result<> LoggedCommunicator::all_reduce_sum(std::span<float> values) {
  const auto sequence = begin(CollectiveKind::kAllReduce, values.size_bytes(), "float");
  return end(sequence, under_->all_reduce_sum(values));
}

Result<> LoggedCommunicator::all_reduce_sum(std::span<double> values) {
  const auto sequence = begin(CollectiveKind::kAllReduce, values.size_bytes(), "double");
  return end(sequence, under_->all_reduce_sum(values));
}

Result<> LoggedCommunicator::broadcast(std::span<std::byte> data, int root) {
  const auto sequence = begin(CollectiveKind::kBroadcast, data.size(), "bytes");
  return end(sequence, under_->broadcast(data, root));
}

Result<std::vector<std::uint64_t>> LoggedCommunicator::all_gather(std::span<const std::uint64_t> mine) {
  const auto sequence = begin(CollectiveKind::kAllGather, mine.size_bytes(), "u64");
  return end(sequence, under_->all_gather(mine));
}

Result<> LoggedCommunicator::barrier() {
  const auto sequence = begin(CollectiveKind::kBarrier, 0, "bytes");
  return end(sequence, under_->barrier());
}

Result<> LoggedCommunicator::reduce_scatter_sum(std::span<float> values) {
  const auto sequence = begin(CollectiveKind::kReduceScatter, values.size_bytes(), "float");
  return end(sequence, under_->reduce_scatter_sum(values));
}

Result<> LoggedCommunicator::reduce_scatter_sum(std::span<double> values) {
  const auto sequence = begin(CollectiveKind::kReduceScatter, values.size_bytes(), "double");
  return end(sequence, under_->reduce_scatter_sum(values));
}

Result<> LoggedCommunicator::all_gather_parts(std::span<std::byte> parts) {
  const auto sequence = begin(CollectiveKind::kAllGather, parts.size(), "bytes");
  return end(sequence, under_->all_gather_parts(parts));
}

Result<> LoggedCommunicator::shift(std::span<std::byte> halves) {
  const auto sequence = begin(CollectiveKind::kSendReceive, halves.size(), "bytes");
  return end(sequence, under_->shift(halves));
}

template <class T>
Result<Communicator::Handle> LoggedCommunicator::begun(std::span<T> values, std::string_view type) {
  const auto sequence = begin(CollectiveKind::kAllReduce, values.size_bytes(), type);
  auto handle = under_->start_all_reduce(values);
  if (!handle) return end(sequence, std::move(handle));
  started_.emplace_back(*handle, sequence);
  return handle;
}

Result<Communicator::Handle> LoggedCommunicator::start_all_reduce(std::span<float> values) {
  return begun(values, "float");
}

Result<Communicator::Handle> LoggedCommunicator::start_all_reduce(std::span<double> values) {
  return begun(values, "double");
}

Result<> LoggedCommunicator::wait(Handle handle) {
  std::uint64_t sequence = 0;
  if (!started_.empty() && started_.front().first == handle) {
    sequence = started_.front().second;
    started_.pop_front();
  }
  return end(sequence, under_->wait(handle));
}

Result<> LoggedCommunicator::progress() {
  auto moved = under_->progress();
  if (!moved && !failed_) dump(moved.error());
  return moved;
}

std::unique_ptr<Communicator> with_log(std::unique_ptr<Communicator> under, const std::string& directory,
                                       std::uint32_t attempt) {
  if (directory.empty() || !under) return under;
  return std::make_unique<LoggedCommunicator>(std::move(under), directory, attempt);
}

Result<std::string> read_collective_logs(const std::string& directory) {
  std::vector<CollectiveDump> dumps;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(directory, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (!is_log(at->path(), "rank-")) continue;
    std::ifstream file(at->path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    auto dump = parse_dump(text);
    if (!dump)
      return Error{ErrorCode::kUsage, at->path().string() + " is no log that --collective-log wrote"};
    dumps.push_back(std::move(*dump));
  }
  if (failed) return system_error(failed.value(), "read " + directory, ErrorCode::kUsage);
  if (dumps.empty()) return Error{ErrorCode::kUsage, directory + " holds no rank-R.jsonl"};
  return missing_collective(dumps);
}

}  // namespace ddp::train
