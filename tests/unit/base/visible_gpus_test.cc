#include "base/program.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// A directory with the files of another machine.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (fs::temp_directory_path() / "ddp_gpus_XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()));
    path_ = pattern;
  }
  ~FakeRoot() { fs::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void file(const std::string& name, const std::string& text = "") {
    fs::create_directories(fs::path(path_ + name).parent_path());
    std::ofstream(path_ + name) << text;
  }
  Names gpus(const char* visible) const { return visible_gpus(visible, path_ + "/proc", path_ + "/dev"); }

 private:
  std::string path_;
};

TEST_CASE("GPUs are those of CUDA_VISIBLE_DEVICES, else of the driver, else of device files") {
  FakeRoot root;
  CHECK(root.gpus(nullptr).empty());
  for (const char* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia"})
    root.file(std::string("/dev/") + name);
  CHECK(root.gpus(nullptr) == Names{"0", "1", "2"});
  root.file("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Device Minor: \t 1\n");
  root.file("/proc/driver/nvidia/gpus/0000:02:00.0/information", "GPU UUID: \t GPU-77\nDevice Minor: \t 0\n");
  CHECK(root.gpus(nullptr) == Names{"0", "1"});
  CHECK(root.gpus("3") == Names{"3"});
  CHECK(root.gpus("0,MIG-3f5c,GPU-77") == Names{"0", "MIG-3f5c", "GPU-77"});
  CHECK(root.gpus("0,1,-1,2") == Names{"0", "1"});
  for (const char* none : {"", "-1", "NoDevFiles"})
    CHECK(root.gpus(none).empty());
}

TEST_CASE("Each instance of a divided GPU counts") {
  FakeRoot root;
  root.file("/proc/driver/nvidia/gpus/0000:01:00.0/information", "GPU UUID: \t GPU-11\nDevice Minor: \t 1\n");
  root.file("/proc/driver/nvidia/gpus/0000:02:00.0/information", "GPU UUID: \t GPU-77\nDevice Minor: \t 0\n");
  for (const char* instance : {"gi1/ci0", "gi2/ci0", "gi2/ci1"})
    root.file(std::string("/proc/driver/nvidia/capabilities/gpu0/mig/") + instance + "/access");
  root.file("/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access");
  root.file("/proc/driver/nvidia/capabilities/mig/config");
  CHECK(root.gpus(nullptr) == Names{"0", "MIG-GPU-77/1/0", "MIG-GPU-77/2/0", "MIG-GPU-77/2/1"});
}

}  // namespace
}  // namespace ddp
