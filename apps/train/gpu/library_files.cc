#include "apps/train/gpu/library_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/files.h"
#include "base/find_program.h"

namespace ddp::train {

std::vector<std::string> library_files(const std::string& name, const std::vector<std::string>& wheel_folders,
                                       const std::function<const char*(const char*)>& get) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::vector<std::string> found;
  const auto add = [&](const fs::path& path) {
    if (fs::exists(path, ignored) && std::ranges::find(found, path.string()) == found.end())
      found.push_back(path.string());
  };
  const auto value = [&get](const char* variable) {
    const char* text = get(variable);
    return std::string(text != nullptr ? text : "");
  };
  for (const std::string& toolkit :
       {value("CUDA_HOME"), value("CUDA_PATH"), std::string("/usr/local/cuda")}) {
    if (!toolkit.empty()) add(fs::path(toolkit) / "lib64" / name);
  }
  const fs::path conda = value("CONDA_PREFIX");
  if (!conda.empty()) add(conda / "lib" / name);
  std::vector<fs::path> prefixes{value("VIRTUAL_ENV"), conda};
  if (const auto python = find_program("python3", value("PATH"))) {
    prefixes.push_back(fs::path(*python).parent_path().parent_path());
    const fs::path real = fs::canonical(*python, ignored);  // empty if it fails
    if (!real.empty()) {
      prefixes.push_back(real.parent_path().parent_path());
      prefixes.push_back(prefixes.back() / "local");  // Debian: /usr/local/lib/python3.11/dist-packages
    }
  }
  if (!value("HOME").empty()) prefixes.push_back(fs::path(value("HOME")) / ".local");
  for (const fs::path& prefix : prefixes) {
    if (prefix.empty()) continue;
    for (const fs::path& python : list_directory(prefix / "lib")) {
      if (!python.filename().string().starts_with("python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        for (const std::string& folder : wheel_folders)
          add(python / packages / folder / name);
      }
    }
  }
  return found;
}

}  // namespace ddp::train
