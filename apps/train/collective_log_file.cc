#include "apps/train/collective_log_file.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

namespace ddp::train {

namespace {

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

CollectiveLogFile::CollectiveLogFile(const std::string& directory, int rank, int world_size,
                                     std::uint32_t attempt)
    : path_(directory + "/" + file_name(rank, attempt)),
      rank_(rank),
      world_size_(world_size),
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
  if (attempt_ == 0) remove_files_of(directory, rank_);
  std::filesystem::remove(path_, ignored);
}

CollectiveLog& CollectiveLogFile::open_group(const std::string& name, int ranks) {
  return groups_.emplace_back(Group{name, ranks, {}}).log;
}

void CollectiveLogFile::fail(const Error& error) {
  if (std::exchange(failed_, true) || path_.empty()) return;
  CollectiveDump dump{rank_, world_size_, attempt_, error.text, {}};
  for (const Group& group : groups_)
    dump.groups.push_back({group.name, group.ranks, group.log.entries()});
  errno = 0;
  std::ofstream file(path_, std::ios::trunc);
  file << dump_text(dump);
  file.close();
  if (!file) std::fprintf(stderr, "train: %s\n", system_error(errno, "write " + path_).text.c_str());
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
