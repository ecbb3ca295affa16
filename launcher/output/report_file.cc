#include "launcher/output/report_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/files.h"
#include "base/unique_fd.h"

namespace ddp::launcher {
namespace {

std::string reserved_path(const std::string& path) {
  return path + ".reserved";
}

/// Writes into the reserved blocks, and renames the file.
Result<> fill_reserved(const std::string& path, std::string_view text) {
  const std::string reserved = reserved_path(path);
  UniqueFd file(::open(reserved.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file) return system_error(errno, "open " + reserved);
  if (auto written = write_bytes(file.get(), text, reserved); !written) return written;
  if (::ftruncate(file.get(), static_cast<off_t>(text.size())) != 0 || ::close(file.release()) != 0)
    return system_error(errno, "write " + reserved);
  if (::rename(reserved.c_str(), path.c_str()) != 0)
    return system_error(errno, "rename " + reserved + " to " + path);
  return {};
}

Result<> write_one(const ReportFile& file, std::string_view text, std::string_view brief,
                   std::vector<std::string>& warnings) {
  if (!file.reserved) return write_report(file.path, text, file.mode);
  if (fill_reserved(file.path, text)) return {};
  Result<> whole =
      write_report(file.path, text, file.mode);  // also if somebody has deleted the reserved file
  if (whole) {
    ::unlink(reserved_path(file.path).c_str());
  } else if (fill_reserved(file.path, brief)) {
    warnings.push_back("warning: the report has no details: " + whole.error().text);
    return {};
  }
  return whole;
}

}  // namespace

void reserve_report(const std::string& path) {
  const std::string reserved = reserved_path(path);
  const UniqueFd file(::open(reserved.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file && ::posix_fallocate(file.get(), 0, kReservedBytes) != 0) ::unlink(reserved.c_str());
}

Result<> write_report(const std::string& path, std::string_view text, mode_t mode) {
  // A rename would replace a link instead of its target.
  const auto followed = follow_trusted_links(path);
  if (!followed) return followed.error();
  const std::string& target = *followed;
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!file) return system_error(errno, "open " + path);
    return write_bytes(file.get(), text, path);
  }
  const std::string beside = target + ".part" + std::to_string(::getpid());
  // In a directory that others may write to, such as /tmp, another user may have created this file or a link.
  constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  UniqueFd file(::open(beside.c_str(), kNew, mode));
  if (!file && errno == EEXIST) {  // left by a killed run with the same pid, or created by another user
    ::unlink(beside.c_str());
    file.reset(::open(beside.c_str(), kNew, mode));
  }
  if (!file) return system_error(errno, "create " + beside);
  Result<> written = write_bytes(file.get(), text, beside);
  // Some disks report only here that they are full.
  if (::close(file.release()) != 0 && written) written = system_error(errno, "write " + beside);
  if (written && ::rename(beside.c_str(), target.c_str()) != 0) {
    written = system_error(errno, "rename " + beside + " to " + target);
  }
  if (!written) ::unlink(beside.c_str());
  return written;
}

std::vector<std::string> write_reports(std::string_view text, std::string_view brief,
                                       const std::vector<ReportFile>& files, std::atomic<std::size_t>& done) {
  std::vector<std::string> warnings;
  for (const ReportFile& file : files) {
    if (const auto written = write_one(file, text, brief, warnings); !written)
      warnings.push_back("warning: the report was not written: " + written.error().text);
    ++done;
  }
  return warnings;
}

}  // namespace ddp::launcher
