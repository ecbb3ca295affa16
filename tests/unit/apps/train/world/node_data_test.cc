#include "apps/train/world/node_data.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/unit/apps/train/collectives/thread_world.h"

namespace ddp::train {
namespace {

void write_idx(const std::filesystem::path& path, const std::vector<std::uint8_t>& sizes, std::size_t bytes,
               int first) {
  std::string text{0, 0, 8, static_cast<char>(sizes.size())};
  for (const std::uint8_t size : sizes)
    text += std::string{0, 0, 0, static_cast<char>(size)};
  for (std::size_t i = 0; i < bytes; ++i)
    text += static_cast<char>((static_cast<std::size_t>(first) + i) % 10);
  std::ofstream(path) << text;
}

/// A folder with 20 training and 6 test images, or a path that does not exist.
struct DataFolder {
  std::filesystem::path root, data, missing;

  DataFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "ddp_data_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root = name;
    data = root / "data";
    missing = root / "missing";
    std::filesystem::create_directory(data);
    write_idx(data / "train-images-idx3-ubyte", {20, 28, 28}, 20 * 784, 3);
    write_idx(data / "train-labels-idx1-ubyte", {20}, 20, 5);
    write_idx(data / "t10k-images-idx3-ubyte", {6, 28, 28}, 6 * 784, 1);
    write_idx(data / "t10k-labels-idx1-ubyte", {6}, 6, 2);
  }
  ~DataFolder() { std::filesystem::remove_all(root); }
};

/// Two ranks on each node. `has` says which nodes have the folder.
std::vector<std::unique_ptr<NodeData>> share(const DataFolder& folder, const std::vector<bool>& has) {
  const std::size_t ranks = has.size() * 2;
  std::vector<std::unique_ptr<NodeData>> all(ranks);
  ThreadWorld world(static_cast<int>(ranks));
  std::vector<std::string> errors(ranks);
  world.run([&](ThreadWorld::Rank& rank) {
    const auto at = static_cast<std::size_t>(rank.rank());
    WorkerEnvironment environment;
    environment.rank = rank.rank();
    environment.world_size = static_cast<int>(ranks);
    environment.node = rank.rank() / 2;
    environment.local_rank = rank.rank() % 2;
    environment.local_world_size = 2;
    all[at] = std::make_unique<NodeData>(kAutoData, 12, has[at / 2] ? folder.data : folder.missing);
    ddp::Result<> done;
    if (NodeData::reads_first(environment)) done = all[at]->load();
    if (done) done = all[at]->share(rank, environment);
    if (!done) errors[at] = done.error().text;
  });
  CHECK(errors == std::vector<std::string>(ranks));
  return all;
}

void check_equal(const DataSplit& a, const DataSplit& b) {
  CHECK(std::ranges::equal(a.training.images, b.training.images));
  CHECK(std::ranges::equal(a.training.labels, b.training.labels));
  CHECK(std::ranges::equal(a.test.images, b.test.images));
  CHECK(std::ranges::equal(a.test.labels, b.test.labels));
  CHECK(a.checksums == b.checksums);
}

TEST_CASE("Nodes without the data set receive it from the first rank that has it") {
  const DataFolder folder;
  const auto expected = load_data(folder.data, 12);
  REQUIRE(expected.has_value());
  REQUIRE(expected->training.size() == 12);
  for (const std::vector<bool>& has :
       {std::vector{true, false, false}, {false, true, false}, {true, false, true}}) {
    const auto all = share(folder, has);
    for (const auto& one : all)
      check_equal(one->split(), *expected);
    const int root = has[0] ? 0 : 2;
    const std::string lacking = std::ranges::count(has, false) == 2 ? "4" : "2";
    CHECK(all[0]->line() == "data " + (has[0] ? folder.data : folder.missing).string() + " of rank " +
                                std::to_string(root) + ", sent to " + lacking + " ranks without it");
  }
}

TEST_CASE("Nothing is sent if every node has the data set") {
  const DataFolder folder;
  for (const auto& one : share(folder, {true, true})) {
    CHECK(one->split().training.size() == 12);
    CHECK(one->line().empty());
  }
}

TEST_CASE("All ranks draw the same synthetic images if no node has the data set") {
  const DataFolder folder;
  const auto expected = load_data("synthetic", 12);
  REQUIRE(expected.has_value());
  const auto all = share(folder, {false, false});
  for (const auto& one : all)
    check_equal(one->split(), *expected);
  CHECK(all[0]->line() == "data synthetic (no node has the files of " + folder.missing.string() + ")");
}

TEST_CASE("An empty folder is a missing one") {
  const DataFolder folder;
  std::filesystem::create_directory(folder.missing);
  const auto all = share(folder, {true, false});
  for (const auto& one : all)
    CHECK(one->split().training.size() == 12);
  CHECK_FALSE(all[0]->line().empty());
}

TEST_CASE("A rank with a given place and a rank without any share the data") {
  const DataFolder folder;
  ThreadWorld world(2);
  std::vector<std::size_t> sizes(2);
  world.run([&](ThreadWorld::Rank& rank) {
    WorkerEnvironment environment;
    environment.rank = environment.node = rank.rank();
    environment.world_size = 2;
    NodeData data(rank.rank() == 0 ? folder.data.string() : kAutoData, 12, folder.missing);
    if (data.load() && data.share(rank, environment))
      sizes[static_cast<std::size_t>(rank.rank())] = data.split().training.size();
  });
  CHECK(sizes == std::vector<std::size_t>{12, 12});
}

TEST_CASE("A folder that lacks a file is an error, not a reason for other data") {
  const DataFolder folder;
  std::filesystem::remove(folder.data / "t10k-labels-idx1-ubyte");
  NodeData data(kAutoData, 0, folder.data);
  const auto loaded = data.load();
  REQUIRE(loaded.has_error());
  CHECK(
      loaded.error().text.starts_with((folder.data / "t10k-labels-idx1-ubyte").string() + ": no such file"));
}

namespace fs = std::filesystem;

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

}  // namespace
}  // namespace ddp::train
