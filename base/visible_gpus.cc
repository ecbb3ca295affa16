#include "base/visible_gpus.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/files.h"
#include "base/text.h"

namespace ddp {

namespace {

/// Returns the number in a name such as "gi3" or "nvidia0"; empty if it is none.
std::string_view number_after(std::string_view name, std::string_view start) {
  if (!name.starts_with(start)) return {};
  name.remove_prefix(start.size());
  return is_digits(name) ? name : std::string_view();
}

/// The driver's file has lines such as "GPU UUID: \t GPU-77…" and "Device Minor: \t 0".
std::string value_in(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t begin = line.find_first_not_of(" \t", key.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

/// Returns the compute instances of a divided GPU. Their folders are …/gpu0/mig/gi3/ci0.
std::vector<std::string> mig_instances(const std::string& proc, const std::string& gpu) {
  const std::string minor = value_in(gpu + "/information", "Device Minor:");
  const std::string uuid = value_in(gpu + "/information", "GPU UUID:");
  std::vector<std::string> names;
  for (const auto& part : list_directory(proc + "/driver/nvidia/capabilities/gpu" + minor + "/mig")) {
    const std::string part_name = part.filename().string();
    const std::string_view part_number = number_after(part_name, "gi");
    if (part_number.empty()) continue;
    for (const auto& instance : list_directory(part)) {
      const std::string name = instance.filename().string();
      if (const std::string_view number = number_after(name, "ci"); !number.empty())
        names.push_back("MIG-" + uuid + "/" + std::string(part_number) + "/" + std::string(number));
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::vector<std::string> visible_gpus(const char* visible, const std::string& proc, const std::string& dev) {
  std::vector<std::string> names;
  if (visible != nullptr) {
    // CUDA stops at the first invalid entry, so "0,1,-1,2" means two devices.
    std::istringstream list(visible);
    for (std::string entry; std::getline(list, entry, ',');) {
      if (entry.empty() || entry[0] == '-' || entry == "NoDevFiles") break;
      names.push_back(entry);
    }
    return names;
  }
  auto gpus = list_directory(proc + "/driver/nvidia/gpus");
  std::ranges::sort(gpus);
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const auto instances = mig_instances(proc, gpus[i].string());
    if (instances.empty()) names.push_back(std::to_string(i));
    names.insert(names.end(), instances.begin(), instances.end());
  }
  if (!names.empty()) return names;
  // A container may have the devices without the driver's directory.
  for (const auto& device : list_directory(dev)) {
    const std::string name = device.filename().string();
    if (!number_after(name, "nvidia").empty()) names.push_back(std::to_string(names.size()));
  }
  return names;
}

}  // namespace ddp
