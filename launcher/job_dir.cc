#include "launcher/job_dir.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace ddp::launcher {
namespace {

/// Descriptors kept for everything else: links, pipes, sessions.
constexpr std::size_t kReserved = 256;

Result<> write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(errno, "write");
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

}  // namespace

Result<JobDir> JobDir::create(std::string path) {
  std::error_code error;
  const std::filesystem::path directory(path);
  if (directory.has_parent_path()) std::filesystem::create_directories(directory.parent_path(), error);
  if (::mkdir(path.c_str(), 0700) != 0 &&
      (errno != EEXIST || !std::filesystem::is_directory(directory, error))) {
    Error failure = system_error(errno, "the job directory " + path);
    failure.text += "; choose another with --job-dir";
    return failure;
  }
  // Two runs in one directory would be mixed in its files.
  if (std::filesystem::exists(directory / "attempt_0", error)) {
    return Error{ErrorCode::kUsage,
                 "the job directory " + path +
                     " holds the output of an earlier run; choose another with --job-dir or --job-id"};
  }
  JobDir job;
  job.path_ = std::move(path);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  job.max_open_ =
      std::max<std::size_t>(64, limit.rlim_cur > 4 * kReserved ? limit.rlim_cur / 2 - kReserved : 64);
  return job;
}

std::string JobDir::file(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream) const {
  char name[64];
  std::snprintf(name, sizeof name, "/attempt_%u/rank_%05u.%s", attempt, rank,
                stream == 1 ? "stdout" : "stderr");
  return path_ + name;
}

Result<> JobDir::append(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream,
                        std::string_view bytes) {
  const auto report = [this](Error error) -> Result<> {
    if (std::exchange(failed_, true)) return {};
    return error;
  };
  if (attempt_ != attempt) {
    open_.clear();
    attempt_ = attempt;
    const std::string directory = path_ + "/attempt_" + std::to_string(attempt);
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
      return report(system_error(errno, directory));
  }
  UniqueFd& fd = open_[{rank, stream}];
  if (!fd) {
    if (open_.size() > max_open_) {  // cheap and rare: files are opened again when their next bytes come
      open_.clear();
      return append(attempt, rank, stream, bytes);
    }
    const std::string name = file(attempt, rank, stream);
    fd.reset(::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!fd) return report(system_error(errno, name));
  }
  if (auto written = write_all(fd.get(), bytes); !written) {
    return report(within(file(attempt, rank, stream), written.error()));
  }
  return {};
}

}  // namespace ddp::launcher
