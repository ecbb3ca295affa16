#include "launcher/output/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

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
      share = share_of_part(bytes, room, line_start_ && size_ > 0);
      if (share == 0) {
        outcome.error = next_part();
        continue;
      }
    }
    std::string_view piece = bytes.substr(0, share);
    outcome.error = write_all(piece);
    bytes.remove_prefix(share - piece.size());
  }
  if (outcome.error.sys != 0) {
    lose(bytes.size());
    line_start_ = bytes.empty() ? line_start_ : bytes.back() == '\n';
    fd_.reset();  // the next write opens the file again: ESTALE and a read-only remount need that
  }
  return outcome;
}

}  // namespace ddp::launcher
