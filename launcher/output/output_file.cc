// One file of output with its parts and gaps; and the report's file, whose space is reserved at the start.
#include "launcher/output/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "base/unique_fd.h"

namespace ddp::launcher {
namespace {

/// Larger writes get larger pieces of kernel memory that is not yet in use. On a virtual machine, copying
/// into these costs up to ten times as much (docs/developers/measurements_io.md).
constexpr std::size_t kOneWrite = 64u << 10;

/// Limit of the gaps. An unreliable disk makes one with each piece; further losses are added to the last one.
constexpr std::size_t kMaxGaps = 1000;

/// Returns how many of `bytes` go into a part with `room` bytes left: whole lines only. If no line fits,
/// returns 0 when `may_be_none`, else one line that exceeds the room.
std::size_t share_of_part(std::string_view bytes, std::uint64_t room, bool may_be_none) {
  if (bytes.size() <= room) return bytes.size();
  const std::size_t last = bytes.substr(0, static_cast<std::size_t>(room)).rfind('\n');
  if (last != std::string_view::npos) return last + 1;
  if (may_be_none) return 0;
  return std::min(bytes.find('\n'), bytes.size() - 1) + 1;
}

}  // namespace

std::string OutputFile::part_path(std::uint32_t part) const {
  return part == 0 ? path_ : path_ + '.' + std::to_string(part);
}

Error OutputFile::open() {
  const std::string path = part_path(part_);
  const auto open_file = [&path] {
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
  };
  int fd = open_file();
  if (fd < 0 && errno == ENOENT) {
    std::error_code ignored;  // the second open_file() reports the error
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    fd = open_file();
  }
  if (fd < 0) return system_error(errno, path);
  fd_.reset(fd);
  struct stat status {};
  const bool known = ::fstat(fd, &status) == 0;
  size_ = known ? static_cast<std::uint64_t>(status.st_size) : 0;
  made_ = true;
  return {};
}

/// The file or its directory was removed, so written bytes would be lost.
bool OutputFile::deleted() const {
  struct stat status {};
  // Asked before each write: a file without a name would take the bytes without an error.
  if (fd_) return ::fstat(fd_.get(), &status) != 0 || status.st_nlink == 0;
  return made_ && ::stat(part_path(part_).c_str(), &status) != 0 && errno == ENOENT;
}

Error OutputFile::write_all(std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_.get(), bytes.data(), std::min(bytes.size(), kOneWrite));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(errno, part_path(part_));
    size_ += static_cast<std::uint64_t>(count);
    line_start_ = bytes[static_cast<std::size_t>(count) - 1] == '\n';
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

Error OutputFile::next_part() {
  fd_.reset();
  if (!limits_.rename) {
    ++part_;
  } else if (::rename(path_.c_str(), part_path(1).c_str()) != 0) {
    return system_error(errno, path_);
  }
  size_ = 0;
  made_ = false;
  // Parts are only named upwards (decision 0010), so the one to delete is always the same distance behind.
  if (!limits_.rename && limits_.keep_parts != 0 && part_ >= limits_.keep_parts)
    ::unlink(part_path(part_ - limits_.keep_parts).c_str());
  return open();
}

void OutputFile::lose(std::uint64_t bytes) {
  const std::string path = part_path(part_);
  const bool goes_on = !gaps_.empty() && gaps_.back().path == path && gaps_.back().offset == size_;
  if (goes_on || gaps_.size() >= kMaxGaps) {
    gaps_.back().bytes += bytes;
  } else {
    gaps_.push_back({path, size_, bytes});
  }
}

OutputFile::WriteOutcome OutputFile::write(std::string_view bytes) {
  WriteOutcome outcome;
  if (deleted()) {
    outcome.vanished = true;
    fd_.reset();
    made_ = false;
  }
  if (!fd_) outcome.error = open();
  while (outcome.error.sys == 0 && !bytes.empty()) {
    std::size_t share = bytes.size();
    if (limits_.part_size != 0) {
      const std::uint64_t room = limits_.part_size - std::min(size_, limits_.part_size);
      // A part ends at a line end, so that each can be read alone. Only a line that is longer than a part
      // makes it larger.
      share = share_of_part(bytes, room, line_start_ && size_ > 0);
      if (share == 0) {
        outcome.error = next_part();
        continue;
      }
    }
    std::string_view piece = bytes.substr(0, share);
    const std::uint64_t before = size_;
    outcome.error = write_all(piece);
    if (outcome.error.sys != 0 && limits_.whole && ::ftruncate(fd_.get(), static_cast<off_t>(before)) == 0) {
      piece = bytes.substr(0, share);
      size_ = before;
    }
    bytes.remove_prefix(share - piece.size());
  }
  if (outcome.error.sys != 0) {
    lose(bytes.size());
    line_start_ = bytes.empty() ? line_start_ : bytes.back() == '\n';
    fd_.reset();  // the next write opens the file again: ESTALE and a read-only remount need that
  }
  return outcome;
}

namespace {

std::string reserved_path(const std::string& path) {
  return path + ".reserved";
}

/// Writes into the reserved blocks, and renames the file.
Result<> fill_reserved(const std::string& path, std::string_view text) {
  const std::string reserved = reserved_path(path);
  UniqueFd file(::open(reserved.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file) return system_error(errno, "open " + reserved);
  DDP_TRY(write_bytes(file.get(), text, reserved));
  if (::ftruncate(file.get(), static_cast<off_t>(text.size())) != 0 || ::close(file.release()) != 0)
    return system_error(errno, "write " + reserved);
  if (::rename(reserved.c_str(), path.c_str()) != 0)
    return system_error(errno, "rename " + reserved + " to " + path);
  return {};
}

Result<> write_one(const ReportFile& file, std::string_view text, std::string_view brief,
                   std::vector<std::string>& warnings) {
  if (!file.reserved) return write_report(file.path, text, file.mode);
  // First into the blocks that were reserved: they are there even if the disk has filled up meanwhile.
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

Result<> reserve_report(const std::string& path) {
  const std::string reserved = reserved_path(path);
  const UniqueFd file(::open(reserved.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return system_error(errno, reserved);
  // posix_fallocate returns the error and leaves errno alone.
  const int failed = ::posix_fallocate(file.get(), 0, kReservedBytes);
  if (failed == 0) return {};
  ::unlink(reserved.c_str());
  return system_error(failed, reserved);
}

Result<> write_report(const std::string& path, std::string_view text, mode_t mode) {
  // A rename would replace a link instead of its target.
  const auto followed = DDP_TRY(follow_trusted_links(path));
  const std::string& target = followed;
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!file) return system_error(errno, "open " + path);
    return write_bytes(file.get(), text, path);
  }
  // Written beside the target and renamed: a reader sees the whole old file or the whole new one.
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
