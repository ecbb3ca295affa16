#include "apps/train/flight_recorder/recorded_communicator.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "apps/train/collectives/communicator.h"
#include "base/unique_fd.h"

#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::train;

namespace {

std::string make_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "flight-recorder-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  return name;
}

/// Memory for `workers` workers, as an agent provides it.
class SealedMemory {
 public:
  explicit SealedMemory(int workers) : file_(::memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    REQUIRE(::ftruncate(file_.get(),
                        workers * static_cast<off_t>(rendezvous::FlightRecorderMemory::kStride)) == 0);
    REQUIRE(::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

 private:
  UniqueFd file_;
};

/// Its operations on the GPU are complete while `good` is true.
class FakeRanks final : public SingleCommunicator {
 public:
  explicit FakeRanks(const bool& good) : good_(good) {}
  int rank() const override { return 1; }
  int world_size() const override { return 2; }
  bool has_device_operations() const override { return true; }
  Result<> enqueue_on_device(const DeviceOperation&, void*) override { return {}; }
  Result<> wait_for_device(const IsDeviceDone&, std::string_view) override {
    return good_ ? Result<>() : Error{ErrorCode::kTimeout, "too late during all-reduce"};
  }

 private:
  const bool& good_;
};

}  // namespace

TEST_CASE("all-reduces on the GPU are recorded from launch to completion") {
  const std::string folder = make_folder();
  bool good = true;
  {
    const auto file =
        std::make_shared<FlightRecorderFile>(FlightRecorderFile::LogLocation{"", 0, folder}, 1, 2, 0);
    RecordedCommunicator logged(std::make_unique<FakeRanks>(good), file, "world", 0, 2);
    RecordedCommunicator node(std::make_unique<FakeRanks>(good), file, "node 0", 0, 2);
    CHECK(node.barrier().has_value());
    REQUIRE(logged.has_device_operations());
    const DeviceOperation sum{CollectiveKind::kAllReduce, nullptr, 10, NumberType::kFloat32};
    CHECK(logged.enqueue_on_device(sum, nullptr).has_value());  // into a graph, once
    for (int step = 0; step < 3; ++step)
      logged.launched(sum);
    CHECK(logged.wait_for_device({}, "all-reduce").has_value());
    good = false;
    CHECK(logged.wait_for_device({}, "all-reduce").has_error());
    CHECK(logged.barrier().has_value());  // after the failure, operations are not recorded
  }
  std::ifstream written(folder + "/rank-1.jsonl");
  const auto dump = rendezvous::parse_dump(std::string(std::istreambuf_iterator<char>(written), {}));
  REQUIRE(dump);
  CHECK(dump->reason == "too late during all-reduce");
  REQUIRE(dump->groups.size() == 2);
  REQUIRE(dump->groups[0].entries.size() == 3);
  CHECK(dump->groups[0].entries[0].finished != 0);
  CHECK(dump->groups[0].entries[1].finished == 0);
  CHECK(dump->groups[0].entries[2].finished == 0);
  CHECK(dump->groups[0].entries[2].bytes == 40);
  CHECK(dump->groups[0].entries[2].kind == "all-reduce");
  REQUIRE(dump->groups[1].entries.size() == 1);
  CHECK((dump->groups[1].name == "node 0" && dump->groups[1].entries[0].finished != 0));
  std::filesystem::remove_all(folder);
}

TEST_CASE("the launcher reads a rank's operations from the memory that it provided") {
  const SealedMemory given(3);
  const std::string path = given.path();
  bool good = true;
  {
    const auto file =
        std::make_shared<FlightRecorderFile>(FlightRecorderFile::LogLocation{path, 2, ""}, 1, 2, 5);
    RecordedCommunicator logged(std::make_unique<FakeRanks>(good), file, "world", 0, 2);
    CHECK(logged.barrier().has_value());
    logged.launched({CollectiveKind::kBroadcast, nullptr, 20, NumberType::kBfloat16});
  }
  auto memory = std::make_unique<rendezvous::FlightRecorderMemory>();
  std::ifstream written(path);
  written.seekg(2 * rendezvous::FlightRecorderMemory::kStride);
  REQUIRE(written.read(reinterpret_cast<char*>(memory.get()), sizeof *memory));
  const auto dump = read_collectives(*memory);
  REQUIRE(dump);
  CHECK((dump->rank == 1 && dump->world_size == 2 && dump->attempt == 5));
  REQUIRE(dump->groups.size() == 1);
  REQUIRE(dump->groups[0].entries.size() == 2);
  CHECK((dump->groups[0].entries[0].kind == "barrier" && dump->groups[0].entries[0].finished != 0));
  const auto& last = dump->groups[0].entries[1];
  CHECK((last.kind == "broadcast" && last.bytes == 40 && last.type == "bfloat16" && last.finished == 0));
}

TEST_CASE("a rank without valid recorder memory of an agent continues without it") {
  const std::string folder = make_folder();
  const std::string other = folder + "/other";  // another user's file, large enough
  std::ofstream(other) << "his";
  std::filesystem::resize_file(other, rendezvous::FlightRecorderMemory::kStride);
  const SealedMemory given(1);
  bool good = true;
  for (const auto& [memory, local] :
       {std::pair<std::string, int>{folder + "/none", 0}, {folder, 0}, {other, 0}, {given.path(), 1}}) {
    const auto file =
        std::make_shared<FlightRecorderFile>(FlightRecorderFile::LogLocation{memory, local, folder}, 1, 2, 0);
    RecordedCommunicator logged(std::make_unique<FakeRanks>(good), file, "world", 0, 2);
    CHECK(logged.barrier().has_value());
    file->fail({ErrorCode::kTimeout, "too late"});
    std::ifstream written(folder + "/rank-1.jsonl");
    const auto dump = rendezvous::parse_dump(std::string(std::istreambuf_iterator<char>(written), {}));
    REQUIRE(dump);
    CHECK(dump->groups[0].entries.size() == 1);
  }
  std::string his(3, ' ');
  std::ifstream(other).read(his.data(), 3);
  CHECK(his == "his");
  std::filesystem::remove_all(folder);
}
