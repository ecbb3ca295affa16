#include "apps/train/flight_recorder/flight_recorder_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/unique_fd.h"
#include "rendezvous/flight_recorder/desync_analysis.h"

namespace ddp::train {

using rendezvous::FlightRecorderMemory;

namespace {

std::string file_name(int rank, std::uint32_t attempt) {
  return "rank-" + std::to_string(rank) + (attempt == 0 ? "" : ".attempt-" + std::to_string(attempt)) +
         ".jsonl";
}

bool is_log(const std::filesystem::path& path, const std::string& beginning) {
  return path.filename().string().starts_with(beginning) && path.extension() == ".jsonl";
}

void remove_files_of(const std::string& directory, int rank) {
  std::error_code ignored;
  for (const auto& path : list_directory(directory))
    if (is_log(path, "rank-" + std::to_string(rank) + ".")) std::filesystem::remove(path, ignored);
}

}  // namespace

void FlightRecorderFile::Unmap::operator()(FlightRecorderMemory* memory) const {
  if (mapped)
    ::munmap(memory, sizeof *memory);
  else
    delete memory;
}

/// Maps the agent's memory, if any: the agent can read it even after this process has died.
FlightRecorderFile::Memory FlightRecorderFile::find_memory(const LogLocation& location) {
  const UniqueFd file(location.memory.empty() ? -1 : ::open(location.memory.c_str(), O_RDWR | O_CLOEXEC));
  struct stat facts {};
  const off_t offset = static_cast<off_t>(FlightRecorderMemory::kStride) * location.local_rank;
  // A sealed file belongs to the agent and cannot shrink. Any other file may be somebody else's: do not write
  // to it.
  const int seals = file ? ::fcntl(file.get(), F_GET_SEALS) : -1;
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(file.get(), &facts) == 0 &&
      facts.st_size >= offset + static_cast<off_t>(sizeof(FlightRecorderMemory))) {
    void* const memory =
        ::mmap(nullptr, sizeof(FlightRecorderMemory), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), offset);
    if (memory != MAP_FAILED) return Memory(static_cast<FlightRecorderMemory*>(memory), Unmap{true});
  }
  return Memory(new FlightRecorderMemory(), Unmap{false});
}

FlightRecorderFile::FlightRecorderFile(const LogLocation& location, int rank, int world_size,
                                       std::uint32_t attempt)
    : memory_(find_memory(location)) {
  begin_collectives(*memory_, rank, world_size, attempt);
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
  FlightRecorderMemory::Group* const group = add_collective_group(*memory_, name, first, ranks);
  return groups_.emplace_back(group != nullptr ? *group : unseen_);
}

void FlightRecorderFile::fail(const Error& error) {
  if (std::exchange(failed_, true) || path_.empty()) return;
  auto dump = read_collectives(*memory_);
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
    if (!dump) return Error{ErrorCode::kUsage, path.string() + " is not a file that --flight-recorder wrote"};
    dumps.push_back(std::move(*dump));
  }
  if (failed) return system_error(failed.value(), "read " + directory, ErrorCode::kUsage);
  if (dumps.empty())
    return Error{ErrorCode::kUsage, directory + " contains no flight recorder files (rank-R.jsonl)"};
  return rendezvous::analyze_desync(dumps).text;
}

}  // namespace ddp::train
