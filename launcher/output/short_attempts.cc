#include "launcher/output/short_attempts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <vector>

#include "base/files.h"
#include "base/unique_fd.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = 64u << 10;

/// Returns the files of a short attempt in the order of their names; unset: it stays as it is.
std::optional<std::vector<fs::path>> short_files(const fs::path& attempt) {
  std::error_code failed;
  std::vector<fs::path> files = list_directory(attempt, failed);
  std::uintmax_t bytes = 0;
  for (const fs::path& file : files) {
    if (fs::symlink_status(file, failed).type() != fs::file_type::regular) return std::nullopt;
    if (file.filename() == "lines.jsonl") return std::nullopt;
    bytes += fs::file_size(file, failed);
  }
  if (failed || bytes > kMostBytes) return std::nullopt;
  std::sort(files.begin(), files.end());
  return files;
}

/// Appends all of `text`, or nothing.
bool append(const fs::path& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  const off_t before = file ? ::lseek(file.get(), 0, SEEK_END) : -1;
  if (before < 0) return false;
  if (::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) return true;
  (void)!::ftruncate(file.get(), before);  // the files of the attempt are still there
  return false;
}

}  // namespace

void pack_short_attempt(const std::string& job_dir, std::uint32_t attempt) {
  const std::string name = "attempt_" + std::to_string(attempt);
  const fs::path directory = fs::path(job_dir) / name;
  const auto files = short_files(directory);
  if (!files) return;
  std::string text;
  for (const fs::path& path : *files) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (!file) return;
    text += "==> " + name + '/' + path.filename().string() + ", " + std::to_string(bytes.size()) +
            " bytes <==\n" + bytes;
    if (!bytes.ends_with('\n')) text += '\n';
  }
  std::error_code ignored;
  if (append(fs::path(job_dir) / "short_attempts.txt", text)) fs::remove_all(directory, ignored);
}

}  // namespace ddp::launcher
