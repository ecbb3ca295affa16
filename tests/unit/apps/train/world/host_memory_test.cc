#include "apps/train/world/node_data.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/text.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace ddp::train;
namespace fs = std::filesystem;

namespace {

/// Fake files of a kernel.
class Kernel {
 public:
  Kernel() {
    std::string name = (fs::temp_directory_path() / "host-memory-XXXXXX").string();
    place_ = ::mkdtemp(name.data());
  }
  ~Kernel() { fs::remove_all(place_); }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((place_ / path).parent_path());
    std::ofstream(place_ / path) << text;
  }
  auto available() const { return available_memory(place_ / "proc", place_ / "groups"); }

 private:
  fs::path place_;
};

}  // namespace

TEST_CASE("free memory is the host's, or that of the tightest control group above this process") {
  const Kernel kernel;
  CHECK_FALSE(kernel.available());
  kernel.write("proc/meminfo", "MemTotal:       9000 kB\nMemFree:  10 kB\nMemAvailable:    8000 kB\n");
  CHECK(kernel.available() == 8'000u << 10);
  kernel.write("proc/self/cgroup", "1:name=x:/other\n0::/jobs/one\n");
  kernel.write("groups/jobs/memory.max", "6000000\n");
  kernel.write("groups/jobs/memory.stat", "anon 1000000\nfile 4000000\nshmem 500000\n");
  CHECK(kernel.available() == 4'500'000u);  // memory of cached files counts as free
  kernel.write("groups/jobs/one/memory.max", "max\n");
  CHECK(kernel.available() == 4'500'000u);
  kernel.write("groups/jobs/one/memory.max", "300\n");
  CHECK(kernel.available() == 300u);
  kernel.write("groups/jobs/one/memory.stat", "anon 301\n");
  CHECK(kernel.available() == 0u);
}

TEST_CASE("the memory need of all ranks of a host is checked as a sum") {
  const auto left = available_memory();
  if (!left) SKIP_TEST("this kernel does not report free memory");
  CHECK(lacking_memory(0, 0).empty());
  const std::size_t each = *left * 2;
  const std::string text = lacking_memory(each, 3);
  CHECK(text.starts_with(ddp::format_bytes(each) + " of memory for each rank, and host "));
  CHECK(text.ends_with(" left for its 3 ranks"));
  CHECK(lacking_memory(each, 0).ends_with(" left for its rank"));
}
