#include "apps/train/flight_recorder/recorded_communicator.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/unique_fd.h"
#include "rendezvous/flight_recorder/flight_recorder.h"

namespace ddp::train {

using rendezvous::FlightRecorderMemory;

namespace {

std::string file_name(int rank, std::uint32_t attempt) {
  return concat("rank-", rank, (attempt == 0 ? "" : ".attempt-" + std::to_string(attempt)), ".jsonl");
}

bool is_log(const std::filesystem::path& path, const std::string& beginning) {
  return path.filename().string().starts_with(beginning) && path.extension() == ".jsonl";
}

void remove_files_of(const std::string& directory, int rank) {
  std::error_code ignored;
  for (const auto& path : list_directory(directory))
    if (is_log(path, concat("rank-", rank, "."))) std::filesystem::remove(path, ignored);
}

/// Maps the agent's memory, if any: the agent can read it even after this process has died.
MappedBytes find_memory(const FlightRecorderFile::LogLocation& location) {
  constexpr std::size_t kSize = sizeof(FlightRecorderMemory);
  const UniqueFd file(location.memory.empty() ? -1 : ::open(location.memory.c_str(), O_RDWR | O_CLOEXEC));
  struct stat facts {};
  const off_t offset = static_cast<off_t>(FlightRecorderMemory::kStride) * location.local_rank;
  // A sealed file belongs to the agent and cannot shrink. Any other file may be somebody else's: do not write
  // to it.
  const int seals = file ? ::fcntl(file.get(), F_GET_SEALS) : -1;
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(file.get(), &facts) == 0 &&
      facts.st_size >= offset + static_cast<off_t>(kSize)) {
    auto memory = map_file(file.get(), kSize, PROT_READ | PROT_WRITE, MAP_SHARED, offset);
    if (memory) return memory;
  }
  return map_file(-1, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
}

}  // namespace

FlightRecorderFile::FlightRecorderFile(const LogLocation& location, int rank, int world_size,
                                       std::uint32_t attempt)
    : memory_(find_memory(location)) {
  begin_collectives(memory(), rank, world_size, attempt);
  if (location.directory.empty()) return;
  std::error_code failed;
  std::filesystem::create_directories(location.directory, failed);
  if (failed) {
    std::fprintf(stderr, "train: flight recorder: %s; no file will be written\n",
                 system_error(failed.value(), "create " + location.directory).text.c_str());
    return;
  }
  path_ = location.directory + "/" + file_name(rank, attempt);
  // A file of an earlier job would be taken for this job's. Files of an earlier attempt are useful and stay.
  std::error_code ignored;
  if (attempt == 0) remove_files_of(location.directory, rank);
  std::filesystem::remove(path_, ignored);
}

rendezvous::FlightRecorder& FlightRecorderFile::open_group(const std::string& name, int first, int ranks) {
  FlightRecorderMemory::Group* const group = add_collective_group(memory(), name, first, ranks);
  return groups_.emplace_back(group != nullptr ? *group : unseen_);
}

void FlightRecorderFile::fail(const Error& error) {
  if (std::exchange(failed_, true) || path_.empty()) return;
  auto dump = read_collectives(memory());
  if (!dump) return;  // another process has overwritten the log
  dump->reason = error.text;
  errno = 0;
  std::ofstream file(path_, std::ios::trunc);
  file << dump_text(*dump);
  file.close();
  if (!file) std::fprintf(stderr, "train: %s\n", system_error(errno, "write " + path_).text.c_str());
}

Result<std::string> read_flight_recorders(const std::string& directory) {
  std::vector<rendezvous::FlightRecorderDump> dumps;
  std::error_code failed;
  for (const auto& path : list_directory(directory, failed)) {
    if (!is_log(path, "rank-")) continue;
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    auto dump = rendezvous::parse_dump(text);
    if (!dump) return usage_error(path.string(), " is not a file that --flight-recorder wrote");
    dumps.push_back(std::move(*dump));
  }
  if (failed) return system_error(failed.value(), "read " + directory, ErrorCode::kUsage);
  if (dumps.empty()) return usage_error(directory, " contains no flight recorder files (rank-R.jsonl)");
  return rendezvous::analyze_desync(dumps).text;
}

RecordedCommunicator::RecordedCommunicator(std::unique_ptr<Communicator> under,
                                           std::shared_ptr<FlightRecorderFile> file, const std::string& group,
                                           int first, int ranks)
    : under_(std::move(under)), file_(std::move(file)), log_(file_->open_group(group, first, ranks)) {}

std::uint64_t RecordedCommunicator::begin(std::string_view kind, std::size_t bytes, std::string_view type) {
  return file_->has_failed() ? 0 : log_.start(kind, bytes, type, read_clock(CLOCK_REALTIME).count());
}

template <class T>
Result<T> RecordedCommunicator::end(std::uint64_t sequence, Result<T> result) {
  if (result) {
    log_.finish(sequence, read_clock(CLOCK_REALTIME).count());
  } else {
    file_->fail(result.error());
  }
  return result;
}

template <class Operation>
auto RecordedCommunicator::logged(CollectiveKind kind, std::size_t bytes, std::string_view type,
                                  const Operation& operation) {
  const auto sequence = begin(kind_text(kind), bytes, type);
  return end(sequence, operation());
}

Result<> RecordedCommunicator::all_reduce_sum(NumberSpan values) {
  return logged(CollectiveKind::kAllReduce, values.bytes.size(), type_text(values.type),
                [&] { return under_->all_reduce_sum(values); });
}

Result<> RecordedCommunicator::broadcast(std::span<std::byte> data, int root) {
  return logged(CollectiveKind::kBroadcast, data.size(), "bytes",
                [&] { return under_->broadcast(data, root); });
}

Result<std::vector<std::uint64_t>> RecordedCommunicator::all_gather(std::span<const std::uint64_t> mine) {
  return logged(CollectiveKind::kAllGather, mine.size_bytes(), "u64",
                [&] { return under_->all_gather(mine); });
}

Result<> RecordedCommunicator::barrier() {
  return logged(CollectiveKind::kBarrier, 0, "bytes", [&] { return under_->barrier(); });
}

Result<> RecordedCommunicator::reduce_scatter_sum(NumberSpan values) {
  return logged(CollectiveKind::kReduceScatter, values.bytes.size(), type_text(values.type),
                [&] { return under_->reduce_scatter_sum(values); });
}

Result<> RecordedCommunicator::all_gather_parts(std::span<std::byte> parts) {
  return logged(CollectiveKind::kAllGather, parts.size(), "bytes",
                [&] { return under_->all_gather_parts(parts); });
}

Result<> RecordedCommunicator::gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) {
  return logged(CollectiveKind::kGather, mine.size(), "bytes",
                [&] { return under_->gather(mine, all, root); });
}

Result<Communicator::Handle> RecordedCommunicator::start_all_reduce(NumberSpan values) {
  const auto sequence =
      begin(kind_text(CollectiveKind::kAllReduce), values.bytes.size(), type_text(values.type));
  auto handle = under_->start_all_reduce(values);
  if (!handle) return end(sequence, std::move(handle));
  started_.emplace_back(*handle, sequence);
  return handle;
}

Result<> RecordedCommunicator::wait(Handle handle) {
  std::uint64_t sequence = 0;
  if (!started_.empty() && started_.front().first == handle) {
    sequence = started_.front().second;
    started_.pop_front();
  }
  return end(sequence, under_->wait(handle));
}

Result<> RecordedCommunicator::progress() {
  auto moved = under_->progress();
  if (!moved) file_->fail(moved.error());
  return moved;
}

Result<> RecordedCommunicator::enqueue_on_device(const DeviceOperation& operation, void* stream) {
  auto done = under_->enqueue_on_device(operation, stream);
  if (!done) file_->fail(done.error());
  return done;
}

void RecordedCommunicator::launched(const DeviceOperation& operation) {
  launched_.push_back(
      begin(kind_text(operation.kind), operation.count * size_of(operation.type), type_text(operation.type)));
  under_->launched(operation);
}

Result<> RecordedCommunicator::wait_for_device(const IsDeviceDone& done, std::string_view operation) {
  std::uint64_t sequence = 0;
  if (!launched_.empty()) {
    sequence = launched_.front();
    launched_.pop_front();
  }
  return end(sequence, under_->wait_for_device(done, operation));
}

}  // namespace ddp::train
