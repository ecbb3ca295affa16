#include "launcher/control/history_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace ddp::launcher {
namespace {

constexpr std::string_view kHistorySuffix = ".jsonl";
/// Before the suffix of the older file of a writer. No host name has it.
constexpr char kOlder = '~';
constexpr off_t kFullFile = off_t{128} << 10;
constexpr off_t kReadOfFile = off_t{256} << 10;  ///< its end, if a stranger made it longer
constexpr std::size_t kReadOfAll = std::size_t{16} << 20;
constexpr std::size_t kMostFiles = 2000;
/// Names in a directory in which strangers may create files.
constexpr std::size_t kMostNames = 100'000;
constexpr std::size_t kMachineBytes = 64;

struct HistoryFile {
  uid_t writer = 0;
  std::string name;
  std::size_t turn = 0;  ///< among the files of its writer
};

std::optional<uid_t> writer_of(std::string_view name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos || !name.ends_with(kHistorySuffix) ||
      dot + kHistorySuffix.size() >= name.size())
    return {};
  return parse_number<uid_t>(name.substr(0, dot));
}

/// Returns the files by their names: those of this user, then one of each other writer in turn. So nobody
/// crowds out others with many files.
std::vector<HistoryFile> list_files(const std::string& directory) {
  std::vector<HistoryFile> files;
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(::opendir(directory.c_str()), ::closedir);
  if (!opened) return files;
  for (std::size_t names = 0; names < kMostNames; ++names) {
    const dirent* entry = ::readdir(opened.get());
    if (entry == nullptr) break;
    if (const auto writer = writer_of(entry->d_name)) files.push_back({*writer, entry->d_name});
  }
  const uid_t own = ::geteuid();
  std::ranges::sort(files, {}, [](const HistoryFile& file) { return std::tie(file.writer, file.name); });
  for (std::size_t i = 1; i < files.size(); ++i)
    if (files[i].writer == files[i - 1].writer) files[i].turn = files[i - 1].turn + 1;
  std::ranges::stable_sort(
      files, {}, [own](const HistoryFile& file) { return std::pair(file.writer != own, file.turn); });
  return files;
}

/// Returns the end of the file, from the beginning of a line; nothing if its owner is not `writer`.
std::optional<std::string> read_lines(const std::string& path, uid_t writer) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_uid != writer)
    return std::nullopt;
  const off_t from = std::max<off_t>(0, found.st_size - kReadOfFile);
  std::string text(static_cast<std::size_t>(found.st_size - from), '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count =
        ::pread(file.get(), text.data() + size, text.size() - size, from + static_cast<off_t>(size));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  if (const std::size_t line_end = text.find('\n'); from > 0)
    text.erase(0, line_end == std::string::npos ? line_end : line_end + 1);
  return text;
}

std::string own_file(const std::string& directory, bool older) {
  std::string machine = host_name().substr(0, kMachineBytes);
  constexpr std::string_view kPlain = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_";
  std::ranges::replace_if(
      machine, [&](char c) { return kPlain.find(c) == std::string_view::npos; }, '_');
  return directory + '/' + std::to_string(::geteuid()) + '.' + machine +
         (older ? std::string(1, kOlder) : "") + std::string(kHistorySuffix);
}

/// Opens the file for appending, with what is known of it.
Result<UniqueFd> open_own(const std::string& path, struct stat& found) {
  UniqueFd file(::open(path.c_str(),
                       O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644));
  if (!file || ::fstat(file.get(), &found) != 0) return system_error(errno, path);
  // In a directory that others may write to, a hard link could lead to any file of this user.
  if (!S_ISREG(found.st_mode) || found.st_uid != ::geteuid() || found.st_nlink != 1)
    return Error{ErrorCode::kUsage, path + " is no file of this user alone; remove it"};
  return file;
}

/// Fails with ENOENT or ENOTDIR if the directory is missing. Users who share its group are trusted
/// (base/files.h).
Result<> check_directory(const std::string& directory, struct stat& found) {
  if (::stat(directory.c_str(), &found) != 0) return system_error(errno, directory);
  if (!S_ISDIR(found.st_mode)) return Error{ErrorCode::kUsage, directory + " is no directory"};
  if ((found.st_mode & S_IWOTH) != 0 && (found.st_mode & S_ISVTX) == 0)
    return Error{ErrorCode::kUsage,
                 directory + ": everybody may delete files there; set its sticky bit (chmod +t)"};
  return {};
}

}  // namespace

Result<HostHistory> read_host_history(const std::string& directory, HistoryTime now) {
  HostHistory history(now);
  struct stat place {};
  if (const auto usable = check_directory(directory, place); !usable) {
    if (usable.error().sys == ENOENT || usable.error().sys == ENOTDIR) return history;
    return usable.error();
  }
  std::size_t size = 0;
  std::size_t files = 0;
  std::size_t tried = 0;  // a stranger's names cost time
  for (const HistoryFile& file : list_files(directory)) {
    if (++tried > 10 * kMostFiles) break;
    const auto lines = read_lines(directory + '/' + file.name, file.writer);
    if (!lines) continue;  // whoever made it takes no place of others
    size += lines->size();
    if (size > kReadOfAll || ++files > kMostFiles) break;
    history.add(*lines, file.writer, file.writer == 0 || file.writer == place.st_uid);
  }
  return history;
}

Result<> append_host_history(const std::string& directory, std::string_view lines) {
  std::error_code ignored;  // mkdir reports it
  std::filesystem::create_directories(std::filesystem::path(directory).parent_path(), ignored);
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return system_error(errno, "make " + directory);
  struct stat found {};
  DDP_TRY(check_directory(directory, found));
  const std::string path = own_file(directory, false);
  auto file = DDP_TRY(open_own(path, found));
  if (found.st_size > kFullFile) {
    // Two processes that do this at once may drop the older file. That loses old lines only.
    if (::rename(path.c_str(), own_file(directory, true).c_str()) != 0) return system_error(errno, path);
    file = DDP_TRY(open_own(path, found));
  }
  // Other users of a shared directory read it; the umask is about the user's own files.
  if (found.st_size == 0) ::fchmod(file.get(), 0644);
  // A full disk may have cut the last line.
  char last = '\n';
  if (found.st_size > 0) (void)!::pread(file.get(), &last, 1, found.st_size - 1);
  // One write, so that lines of other processes stay whole.
  return write_bytes(file.get(), (last == '\n' ? "" : "\n") + std::string(lines), path);
}

}  // namespace ddp::launcher
