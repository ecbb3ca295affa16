#include "apps/train/collectives/nccl/nccl_world.h"

#include <dlfcn.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "apps/train/collectives/nccl/nccl_comms.h"
#include "apps/train/collectives/nccl/nccl_settings.h"
#include "apps/train/gpu/cuda_runtime.h"
#include "tests/support/catch.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/skip.h"
#include "tests/unit/apps/train/collectives/rank_threads.h"

// Ranks as threads over a fake NCCL library and a fake CUDA, each with a GPU of its own.

using namespace ddp;
using namespace ddp::train;
using namespace std::chrono_literals;

namespace {

/// A stream of the caller, with the wait for its work.
struct OwnStream {
  CudaStream stream = std::move(*make_cuda_stream());
  void* get() const { return stream.get(); }
  Result<bool> is_idle() const { return cuda_is_done(cudaStreamQuery(stream.get()), "cudaStreamQuery"); }
};

std::shared_ptr<const NcclLibrary> fake_library() {
  static const auto library = NcclLibrary::open(DDP_FAKE_NCCL);
  return *library;
}

/// The folder in which the fake NCCL's ranks meet. It is made once: a rank that a test case leaves in a hung
/// abort may read the environment at any time.
struct RoomFolder {
  RoomFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "fake-nccl-XXXXXX").string();
    path = ::mkdtemp(name.data());
    ::setenv("FAKE_NCCL_DIR", path.c_str(), 1);
    ::setenv("FAKE_CUDA_GPUS", "160", 1);
    ::unsetenv("CUDA_VISIBLE_DEVICES");  // a run of all tests hides real GPUs
  }
  ~RoomFolder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

/// Resets and returns the settings of the library that fake_library() loaded.
FakeNcclSettings& fresh_settings() {
  static const RoomFolder folder;
  (void)fake_library();
  static void* const handle = ::dlopen(DDP_FAKE_NCCL, RTLD_NOW | RTLD_NOLOAD);
  using Getter = FakeNcclSettings* (*)();
  static FakeNcclSettings* const settings = reinterpret_cast<Getter>(::dlsym(handle, "fake_nccl_settings"))();
  settings->version = 22809;
  settings->init_hangs = settings->all_reduces_hang = false;
  settings->init_fails = settings->remote_error = settings->abort_hangs = 0;
  settings->registers = true;
  settings->errors = 0;
  settings->graphs = 0;
  settings->aborted = settings->destroyed = settings->ids = 0;
  return *settings;
}

WorldConfig config_of(int rank, int world) {
  WorldConfig config;
  config.job_id = "test";
  config.rank = rank;
  config.world_size = world;
  config.start_timeout = 200s;
  config.step_timeout = 200s;
  return config;
}

using Body = std::function<std::string(NcclWorld&)>;
using Change = std::function<void(WorldConfig&)>;

/// Runs one thread per rank; returns the result of each body, or the error before it.
std::vector<std::string> run_ranks(
    int world, const Body& body, const Change& change = [](WorldConfig&) {}) {
  // Ids of another world must not be found.
  MemoryDirectory directory;
  std::vector<std::string> said(static_cast<std::size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      WorldConfig config = config_of(rank, world);
      change(config);
      if (config.rank < 0) return;  // this rank never comes
      auto joined = connect_nccl_over(fake_library(), rank, config, directory);
      said[static_cast<std::size_t>(rank)] = joined ? body(*joined) : joined.error().text;
    });
  }
  for (auto& thread : ranks)
    thread.join();
  return said;
}

template <class T>
std::string sums_are_right(Communicator& communicator, std::size_t size) {
  auto mine = values_of<T>(communicator.rank(), size);
  std::vector<T> right(size, 0);
  for (int rank = 0; rank < communicator.world_size(); ++rank) {
    const auto theirs = values_of<T>(rank, size);
    for (std::size_t i = 0; i < size; ++i)
      right[i] += theirs[i];
  }
  if (auto done = communicator.all_reduce_sum(std::span(mine)); !done) return done.error().text;
  return mine == right ? "" : "wrong sum";
}

}  // namespace

TEST_CASE("every operation over NCCL is right, for odd sizes and world sizes") {
  fresh_settings();
  for (const int world : {2, 3, 5}) {
    const auto said = run_ranks(world, [&](NcclWorld& joined) -> std::string {
      Communicator& all = *joined.communicator;
      if (all.rank() < 0 || all.world_size() != world) return "wrong place";
      for (const std::size_t size : {0, 1, 7, 29'035}) {
        if (auto wrong = sums_are_right<float>(all, size); !wrong.empty()) return wrong;
        if (auto wrong = sums_are_right<double>(all, size); !wrong.empty()) return wrong;
      }
      for (int root = 0; root < world; ++root) {
        auto data = values_of<float>(all.rank(), 33);
        if (auto done = all.broadcast(std::as_writable_bytes(std::span(data)), root); !done)
          return done.error().text;
        if (data != values_of<float>(root, 33)) return "wrong broadcast";
        if (auto wrong = gather_is_right(all, 2'000'003, root); !wrong.empty()) return wrong;
      }
      const std::uint64_t mine[] = {10u + static_cast<std::uint64_t>(all.rank()), 5};
      const auto gathered = all.all_gather(mine);
      if (!gathered) return gathered.error().text;
      for (int rank = 0; rank < world; ++rank) {
        if ((*gathered)[2 * static_cast<std::size_t>(rank)] != 10u + static_cast<std::uint64_t>(rank))
          return "wrong gather";
      }
      auto values = values_of<double>(all.rank(), static_cast<std::size_t>(12 * world));
      if (auto done = all.reduce_scatter_sum(std::span(values)); !done) return done.error().text;
      return all.barrier() ? "" : "no barrier";
    });
    for (const std::string& one : said)
      CHECK(one == "");
  }
}

TEST_CASE("device memory is summed in place") {
  fresh_settings();
  const auto said = run_ranks(2, [](NcclWorld& joined) -> std::string {
    const OwnStream own;
    std::vector<double> values(100, joined.communicator->rank() + 1.0);
    Communicator& all = *joined.communicator;
    auto put = all.enqueue_on_device(
        {CollectiveKind::kAllReduce, values.data(), values.size(), NumberType::kFloat64}, own.get());
    if (!put) return put.error().text;
    const auto is_idle = [&] { return own.is_idle(); };
    if (auto done = all.wait_for_device(is_idle, "step 4"); !done) return done.error().text;
    return values[99] == 3.0 ? "" : "wrong";
  });
  CHECK(said == std::vector<std::string>{"", ""});
}

namespace {

/// An owner of graphs that writes down each call and how many communicators had begun to end before it. The
/// graphs become idle at the second query. A communicator does not end while a graph holds it.
GraphOwner recording_owner(FakeNcclSettings& settings, std::vector<std::string>& calls,
                           bool ever_idle = true) {
  settings.graphs = 1;
  const auto record = [&settings, &calls](const std::string& call) {
    const int begun = settings.aborted + settings.destroyed;
    if (calls.empty() || calls.back() != call + " " + std::to_string(begun))
      calls.push_back(call + " " + std::to_string(begun));
  };
  GraphOwner owner;
  owner.abandon_capture = [record] { record("abandon"); };
  owner.is_idle = [&settings, record, ever_idle, asked = 0]() mutable {
    // An abort begins on another thread.
    if (!ever_idle || (settings.all_reduces_hang && settings.aborted == 0)) return false;
    if (++asked < 2) return false;
    record("idle");
    return true;
  };
  owner.drop = [&settings, record] {
    record("drop");
    settings.graphs = 0;
  };
  return owner;
}

}  // namespace

TEST_CASE("an abort begins before graphs are dropped, which become idle by it; an orderly end follows them") {
  FakeNcclSettings& settings = fresh_settings();
  for (const bool fails : {false, true}) {
    settings.aborted = settings.destroyed = 0;
    settings.all_reduces_hang = fails;
    std::vector<std::string> calls;
    {
      MemoryDirectory directory;
      WorldConfig limits;
      limits.step_timeout = 20ms;
      const auto made = NcclComms::make(fake_library(), 0, limits);
      REQUIRE(made.has_value());
      NcclComms& comms = **made;
      const auto comm = comms.open(directory, "world", 0, 1);
      REQUIRE(comm.has_value());
      NcclCommunicator sums(*made, *comm, 0, 1);
      sums.on_end(recording_owner(settings, calls));
      if (fails) {
        const auto done = sums.wait_for_device([]() -> Result<bool> { return false; }, "all-reduce");
        REQUIRE(done.has_error());
        CHECK(done.error().text ==
              "rank 0 over NCCL: the other ranks did not join the operation within 20 ms during all-reduce");
        CHECK(calls == std::vector<std::string>{"abandon 0", "idle 1", "drop 1"});
      }
    }
    if (!fails) CHECK(calls == std::vector<std::string>{"abandon 0", "idle 0", "drop 0"});
    CHECK(calls.size() == 3);
    CHECK(settings.aborted == (fails ? 1 : 0));
    CHECK(settings.destroyed == (fails ? 0 : 1));
  }
  CHECK_FALSE(gpus_are_given_up());
}

TEST_CASE("an end without a failure aborts if the graphs do not become idle by themselves") {
  FakeNcclSettings& settings = fresh_settings();
  settings.all_reduces_hang = true;
  std::vector<std::string> calls;
  {
    MemoryDirectory directory;
    WorldConfig limits;
    limits.end_timeout = 3s;
    const auto made = NcclComms::make(fake_library(), 0, limits);
    REQUIRE(made.has_value());
    NcclComms& comms = **made;
    REQUIRE(comms.open(directory, "world", 0, 1).has_value());
    comms.on_end(recording_owner(settings, calls));
  }
  CHECK(calls == std::vector<std::string>{"abandon 0", "idle 1", "drop 1"});
  CHECK(settings.destroyed == 0);
  CHECK_FALSE(gpus_are_given_up());
}

TEST_CASE("operations inside and between nodes of unequal size are right") {
  fresh_settings();
  const auto node_of = [](int rank) { return rank < 3 ? 7 : rank < 4 ? 2 : 5; };  // sizes 3, 1, 2
  const auto said = run_ranks(
      6,
      [&](NcclWorld& joined) -> std::string {
        const int rank = joined.communicator->rank(), node = node_of(rank);
        const int first = node == 7 ? 0 : node == 2 ? 3 : 4, size = node == 7 ? 3 : node == 2 ? 1 : 2;
        if (joined.node_count != 3) return "wrong count";
        if (joined.node->world_size() != size || joined.node->rank() != rank - first)
          return "wrong place in the node";
        const int number = node == 7 ? 0 : node == 2 ? 1 : 2;
        if (joined.between->world_size() != 3 || joined.between->rank() != number)
          return "wrong place between";
        if (auto wrong = sums_are_right<double>(*joined.node, 50); !wrong.empty()) return "node: " + wrong;
        if (auto wrong = sums_are_right<float>(*joined.between, 50); !wrong.empty())
          return "between: " + wrong;
        if (auto wrong = sums_are_right<float>(*joined.communicator, 50); !wrong.empty()) return wrong;
        const std::uint64_t mine[] = {static_cast<std::uint64_t>(node)};
        const auto all = joined.between->all_gather(mine);
        if (!all || *all != std::vector<std::uint64_t>{7, 2, 5}) return "wrong gather";
        std::vector<std::byte> data(9, static_cast<std::byte>(number));
        if (!joined.between->broadcast(data, 2) || data[8] != std::byte{2}) return "wrong broadcast";
        return joined.between->barrier() ? "" : "no barrier";
      },
      [&](WorldConfig& config) {
        config.with_nodes = true;
        config.node = node_of(config.rank);
      });
  for (const std::string& one : said)
    CHECK(one == "");
}

TEST_CASE("operations on the GPU's memory are right") {
  fresh_settings();
  const int world = 3;
  const auto said = run_ranks(world, [](NcclWorld& joined) -> std::string {
    Communicator& all = *joined.communicator;
    const OwnStream own;
    const std::size_t size = 12, part = size / world;
    std::vector<float> got;
    const auto after = [&](CollectiveKind kind, int root = 0) {
      got = values_of<float>(all.rank(), size);
      const auto is_idle = [&] { return own.is_idle(); };
      return all.enqueue_on_device({kind, got.data(), size, NumberType::kFloat32, root}, own.get()) &&
             all.wait_for_device(is_idle, "test");
    };
    using Kind = CollectiveKind;
    std::vector<float> sums(size), gathered(size);
    for (std::size_t i = 0; i < size; ++i) {
      for (int rank = 0; rank < world; ++rank)
        sums[i] += values_of<float>(rank, size)[i];
      gathered[i] = values_of<float>(static_cast<int>(i / part), size)[i];
    }
    const std::size_t first = part * static_cast<std::size_t>(all.rank());
    if (!after(Kind::kAllReduce) || got != sums) return "all-reduce";
    if (!after(Kind::kBroadcast, 1) || got != values_of<float>(1, size)) return "broadcast";
    if (!after(Kind::kAllGather) || got != gathered) return "all-gather";
    if (!after(Kind::kReduceScatter) || !std::equal(got.begin() + static_cast<std::ptrdiff_t>(first),
                                                    got.begin() + static_cast<std::ptrdiff_t>(first + part),
                                                    sums.begin() + static_cast<std::ptrdiff_t>(first)))
      return "reduce-scatter";
    return "";
  });
  for (const std::string& one : said)
    CHECK(one == "");
}

TEST_CASE("memory from NCCL is zeroed, registered, and freed in the right order") {
  FakeNcclSettings& settings = fresh_settings();
  bool hangs = false;
  const auto share = [&](NcclWorld& joined) -> std::string {
    const auto memory = joined.communicator->share_device_memory(1'000).bytes;
    if (memory.size() != 1'000) return "none";
    for (const std::byte byte : memory) {
      if (byte != std::byte{0}) return "not zeroed";
    }
    if (!joined.communicator->barrier()) return "no first barrier";
    if (hangs) settings.all_reduces_hang = true;  // all ranks are through the first barrier
    return joined.communicator->barrier() ? "there" : "no barrier";
  };
  CHECK(run_ranks(2, share) == std::vector<std::string>{"there", "there"});
  CHECK(settings.destroyed == 2);
  hangs = true;  // also when the communicators are aborted
  const auto hang = [](WorldConfig& config) { config.step_timeout = 3s; };
  CHECK(run_ranks(2, share, hang) == std::vector<std::string>{"no barrier", "no barrier"});
  hangs = settings.all_reduces_hang = false;
  settings.registers = false;
  CHECK(run_ranks(2, share) == std::vector<std::string>{"none", "none"});
  CHECK(settings.errors == 0);
  CHECK(settings.registrations == 0);
  CHECK(settings.blocks == 0);
}

TEST_CASE("communicators are destroyed at the end, and every attempt has new IDs") {
  FakeNcclSettings& settings = fresh_settings();
  for (int attempt = 1; attempt <= 3; ++attempt) {
    const auto said =
        run_ranks(2, [](NcclWorld& joined) { return sums_are_right<float>(*joined.communicator, 3); });
    CHECK(said == std::vector<std::string>{"", ""});
    CHECK(settings.ids == attempt);
    CHECK(settings.destroyed == 2 * attempt);
  }
  CHECK(settings.aborted == 0);
  CHECK_FALSE(gpus_are_given_up());
}

TEST_CASE("a rank that never joins ends the start at its deadline") {
  FakeNcclSettings& settings = fresh_settings();
  const auto without = [](int missing) {
    return [missing](WorldConfig& config) {
      config.start_timeout = 100ms;
      config.step_timeout = 50ms;
      if (config.rank == missing) config.rank = -1;
    };
  };
  const auto said = run_ranks(
      2, [](NcclWorld&) { return "joined"; }, without(1));
  CHECK(said[0] == "rank 0 over NCCL: the other ranks did not join the operation within 100 ms during start");
  CHECK(settings.aborted == 1);
  CHECK(
      run_ranks(
          2, [](NcclWorld&) { return "joined"; }, without(0))[1] ==
      "rank 1 over NCCL: rank 0 of world has not published its NCCL id; check that it started during start");
  // A longer step deadline also extends the start's deadline.
  const auto patient = [&](WorldConfig& config) {
    without(1)(config);
    config.step_timeout = 300ms;
  };
  CHECK(run_ranks(
            2, [](NcclWorld&) { return "joined"; }, patient)[0] ==
        "rank 0 over NCCL: the other ranks did not join the operation within 300 ms during start");
}

TEST_CASE("NCCL's error text of a failed start is passed on") {
  FakeNcclSettings& settings = fresh_settings();
  settings.init_fails = 6;
  const auto said = run_ranks(2, [](NcclWorld&) { return "joined"; });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(
        said[static_cast<std::size_t>(rank)] ==
        "rank " + std::to_string(rank) +
            " over NCCL: ncclRemoteError: remote process exited or there was a network error during start of "
            "NCCL 2.28.9 (" DDP_FAKE_NCCL ")");
  }
  settings.init_fails = 5;
  CHECK(run_ranks(1, [](NcclWorld&) { return "joined"; })[0] ==
        "rank 0 over NCCL: ncclInvalidUsage: an injected error during start of NCCL 2.28.9 (" DDP_FAKE_NCCL
        "); two ranks on one GPU need --comm nccl --share-gpu");
}

TEST_CASE("an operation that does not complete ends at its deadline, and all later ones at once") {
  FakeNcclSettings& settings = fresh_settings();
  settings.all_reduces_hang = true;
  const auto said = run_ranks(
      2,
      [](NcclWorld& joined) -> std::string {
        std::vector<float> values(5);
        const auto first = joined.communicator->all_reduce_sum(std::span(values));
        const auto second = joined.communicator->broadcast(std::as_writable_bytes(std::span(values)), 0);
        if (first || second) return "went on";
        if (first.error().code != ErrorCode::kTimeout) return "wrong kind";
        return first.error().text == second.error().text ? first.error().text : second.error().text;
      },
      [](WorldConfig& config) { config.step_timeout = 50ms; });
  CHECK(said[1] ==
        "rank 1 over NCCL: the other ranks did not join the operation within 50 ms during all-reduce");
  CHECK(settings.aborted == 2);
  CHECK(settings.destroyed == 0);
}

TEST_CASE("a peer that aborted is detected where the network reports the abort") {
  FakeNcclSettings& settings = fresh_settings();
  settings.all_reduces_hang = true;
  settings.remote_error = 6;
  const auto said = run_ranks(
      2,
      [](NcclWorld& joined) -> std::string {
        std::vector<float> values(5);
        const auto done = joined.communicator->all_reduce_sum(std::span(values));
        if (done) return "went on";
        return done.error().code == ErrorCode::kLinkLost ? "lost" : done.error().text;
      },
      [](WorldConfig& config) {
        if (config.rank == 0) config.step_timeout = 50ms;
      });
  CHECK(said[0] ==
        "rank 0 over NCCL: the other ranks did not join the operation within 50 ms during all-reduce");
  CHECK(said[1] == "lost");
}

TEST_CASE("a revoke ends a running operation and a running start") {
  FakeNcclSettings& settings = fresh_settings();
  const int revoked = ::eventfd(1, EFD_CLOEXEC);
  settings.all_reduces_hang = true;
  const int later = ::eventfd(0, EFD_CLOEXEC);
  const auto said = run_ranks(
      2,
      [&](NcclWorld& joined) -> std::string {
        std::vector<float> values(5);
        const std::uint64_t one = 1;
        if (joined.communicator->rank() == 0) (void)!::write(later, &one, sizeof one);
        const auto done = joined.communicator->all_reduce_sum(std::span(values));
        return done ? "went on" : done.error().text;
      },
      [&](WorldConfig& config) { config.interrupt = later; });
  CHECK(said[0] == "rank 0 over NCCL: revoked during all-reduce");
  settings.init_hangs = true;
  const auto start = run_ranks(
      2, [](NcclWorld&) { return "joined"; }, [&](WorldConfig& config) { config.interrupt = revoked; });
  CHECK(start[0] == "rank 0 over NCCL: revoked during start");
  ::close(revoked);
  ::close(later);
}

TEST_CASE("more than 128 ranks use several NCCL roots where the library can") {
  CHECK(nccl_roots(1, 128) == 1);
  CHECK(nccl_roots(128, 128) == 1);
  CHECK(nccl_roots(129, 128) == 2);
  CHECK(nccl_roots(1'024, 128) == 8);
  // Distributed like in NCCL: 10 ranks over 3 ids are 4, 3 and 3.
  CHECK(nccl_root_rank(0, 3, 10) == 0);
  CHECK(nccl_root_rank(1, 3, 10) == 4);
  CHECK(nccl_root_rank(2, 3, 10) == 7);
  FakeNcclSettings& settings = fresh_settings();
  const auto said =
      run_ranks(130, [](NcclWorld& joined) { return sums_are_right<float>(*joined.communicator, 2); });
  CHECK(said == std::vector<std::string>(130));
  CHECK(settings.ids == 2);
  CHECK(settings.ids_of_last_init == 2);
}

TEST_CASE("NCCL IDs as text") {
  const std::string id(128, '\xa5');
  const std::string text = encode_nccl_id(id, 22809);
  CHECK(decode_nccl_id(text, 22809, "rank 0").value() == id);
  CHECK(decode_nccl_id(text, 22703, "rank 0").error().text ==
        "rank 0 has NCCL 2.28.9 and this rank has NCCL 2.27.3; install the same version for all ranks");
  for (const std::string& wrong :
       {std::string(), std::string("22809"), text + "0", "x" + text, text.substr(1)})
    CHECK(decode_nccl_id(wrong, 22809, "rank 0").has_error());
  CHECK(nccl_version_text(2804) == "2.8.4");
}

TEST_CASE("a library that is missing, too old or not NCCL is refused with its path") {
  CHECK(NcclLibrary::open("/nonexistent/libnccl.so.2").error().text ==
        "--comm nccl: DDPLAUNCH_NCCL_LIBRARY names a library that cannot be loaded: "
        "/nonexistent/libnccl.so.2: cannot "
        "open "
        "shared object file: No such file or directory");
  FakeNcclSettings& settings = fresh_settings();
  settings.version = 21804;
  CHECK(NcclLibrary::open(DDP_FAKE_NCCL).error().text == "--comm nccl: " DDP_FAKE_NCCL
                                                         " is NCCL 2.18.4; 2.19.0 or newer is needed");
  const auto other = NcclLibrary::open("libz.so.1");
  REQUIRE(other.has_error());
  CHECK(other.error().code == ErrorCode::kUsage);
  CHECK(other.error().text.ends_with("is not NCCL: ncclGetVersion is missing or fails"));
  settings.version = 22809;
  const auto right = NcclLibrary::open(DDP_FAKE_NCCL);
  REQUIRE(right.has_value());
  CHECK((*right)->name() == "NCCL 2.28.9 (" DDP_FAKE_NCCL ")");
  CHECK((**right)->init_rank_scalable != nullptr);
  CHECK((**right)->split != nullptr);
}

TEST_CASE("the installed NCCL library refuses a rank without a GPU in its own words", "[nccl_without_gpu]") {
  const auto real = NcclLibrary::open("");
  if (!real) SKIP_TEST(real.error().text);
  if (std::filesystem::exists("/dev/nvidia0")) SKIP_TEST("there is a GPU");
  CHECK((*real)->version() >= NcclLibrary::kOldest);
  MemoryDirectory directory;
  const auto made = NcclComms::make(*real, 0, {});
  REQUIRE(made.has_value());
  NcclComms& comms = **made;
  const auto comm = comms.open(directory, "world", 0, 1);
  REQUIRE(comm.has_error());
  CHECK(comm.error().code == ErrorCode::kSystem);
  CHECK(comm.error().text.starts_with("rank 0 over NCCL: ncclUnhandledCudaError: "));
  CHECK(comm.error().text.ends_with(" during start of " + (*real)->name()));
  // The rank made and published an id before it searched for a GPU.
  CHECK(directory.find(nccl_root_key("world", 0), 1ms).has_value());
}

TEST_CASE("the GPU of a rank") {
  CHECK(choose_gpu(8, 3, false, false).value() == 3);
  CHECK(choose_gpu(1, 3, true, false).value() == 0);
  CHECK(choose_gpu(2, 3, false, true).value() == 1);
  CHECK(choose_gpu(2, 3, true, false).error().text == "this process sees 2 GPUs, none for local rank 3");
}

// The last tests: gpus_are_given_up() stays true afterwards.
TEST_CASE("graphs that never become idle are not dropped, and the GPUs are given up") {
  FakeNcclSettings& settings = fresh_settings();
  settings.all_reduces_hang = true;
  std::vector<std::string> calls;
  MemoryDirectory directory;
  {
    WorldConfig limits;
    limits.step_timeout = 20ms;
    limits.end_timeout = 50ms;
    const auto made = NcclComms::make(fake_library(), 0, limits);
    REQUIRE(made.has_value());
    NcclComms& comms = **made;
    const auto comm = comms.open(directory, "world", 0, 1);
    REQUIRE(comm.has_value());
    comms.on_end(recording_owner(settings, calls, false));
    const auto done = comms.wait(*comm, "all-reduce", []() -> Result<bool> { return false; });
    REQUIRE(done.has_error());
    CHECK(done.error().text ==
          "rank 0 over NCCL: the other ranks did not join the operation within 20 ms; NCCL did not abort "
          "within 50 ms during all-reduce");
  }
  CHECK(calls == std::vector<std::string>{"abandon 0"});
  CHECK(gpus_are_given_up());
  settings.graphs = 0;
}

TEST_CASE("an abort that hangs is abandoned after its deadline") {
  FakeNcclSettings& settings = fresh_settings();
  settings.all_reduces_hang = true;
  MemoryDirectory directory;
  {
    WorldConfig limits;
    limits.step_timeout = 20ms;
    limits.end_timeout = 50ms;
    const auto made = NcclComms::make(fake_library(), 0, limits);
    REQUIRE(made.has_value());
    NcclComms& comms = **made;
    const auto comm = comms.open(directory, "world", 0, 1);
    REQUIRE(comm.has_value());
    settings.abort_hangs = 1;
    const auto done = comms.wait(*comm, "all-reduce", []() -> Result<bool> { return false; });
    REQUIRE(done.has_error());
    CHECK(done.error().text ==
          "rank 0 over NCCL: the other ranks did not join the operation within 20 ms; NCCL did not abort "
          "within "
          "50 ms during all-reduce");
  }
  CHECK(gpus_are_given_up());
  settings.abort_hangs = 0;
  settings.abort_hangs.notify_all();
}
