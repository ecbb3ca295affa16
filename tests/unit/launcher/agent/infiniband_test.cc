#include "launcher/agent/node_facts.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

/// A fake machine below a directory, with everything that NCCL needs.
class Machine {
 public:
  Machine() {
    std::string name = (fs::temp_directory_path() / "ddp-infiniband-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
    write("dev/infiniband/uverbs0", "");
    write("etc/ld.so.cache", std::string("\0libc.so.6\0libibverbs.so.1\0", 26));
  }
  ~Machine() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  void write(const std::string& path, const std::string& content) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::binary) << content;
  }
  void adapter(const std::string& name, const std::string& state,
               const std::string& layer = "InfiniBand") const {
    write("sys/class/infiniband/" + name + "/ports/1/state", state + "\n");
    write("sys/class/infiniband/" + name + "/ports/1/link_layer", layer + "\n");
  }
  void remove(const std::string& path) const { fs::remove_all(root_ / path); }
  std::string root() const { return root_.string(); }

 private:
  fs::path root_;
};

std::string trouble(const Machine& machine, const EnvVars& env, const EnvVars& asked = {}) {
  return infiniband_trouble(active_infiniband(machine.root()), env, asked, machine.root());
}

}  // namespace

TEST_CASE("adapters with an active InfiniBand port") {
  const Machine machine;
  CHECK(active_infiniband(machine.root()).empty());
  CHECK(trouble(machine, {{"NCCL_IB_DISABLE", "1"}}).empty());
  machine.adapter("mlx5_1", "4: ACTIVE");
  machine.adapter("mlx5_0", "4: ACTIVE");
  machine.adapter("mlx5_2", "1: DOWN");
  machine.adapter("mlx5_3", "2: INIT");
  machine.adapter("mlx5_bond", "4: ACTIVE", "Ethernet");
  machine.write("sys/class/infiniband/mlx5_2/ports/2/state", "4: ACTIVE\n");
  machine.write("sys/class/infiniband/mlx5_2/ports/2/link_layer", "InfiniBand\n");
  CHECK(active_infiniband(machine.root()) == Texts{"mlx5_0", "mlx5_1", "mlx5_2"});
  CHECK(active_rdma(machine.root()) == Texts{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_bond"});
  CHECK(trouble(machine, {}).empty());
}

TEST_CASE("variables that turn InfiniBand off are reported, unless the user set them") {
  const Machine machine;
  machine.adapter("mlx5_0", "4: ACTIVE");
  CHECK(trouble(machine, {{"NCCL_IB_DISABLE", "1"}}) == "NCCL_IB_DISABLE is set");
  CHECK(trouble(machine, {{"NCCL_IB_DISABLE", "0"}}).empty());
  CHECK(trouble(machine, {{"NCCL_NET", "Socket"}}) == "NCCL_NET asks for sockets");
  CHECK(trouble(machine, {{"NCCL_NET", "IB"}}).empty());
  CHECK(trouble(machine, {{"NCCL_IB_DISABLE", "1"}}, {{"NCCL_IB_DISABLE", "1"}}).empty());
  CHECK(trouble(machine, {{"NCCL_NET", "Socket"}}, {{"NCCL_NET", "Socket"}}).empty());
}

TEST_CASE("a list of adapters without any active one is reported") {
  const Machine machine;
  machine.adapter("mlx5_1", "4: ACTIVE");
  machine.adapter("mlx5_10", "4: ACTIVE");
  const auto with = [&](const std::string& list) { return trouble(machine, {{"NCCL_IB_HCA", list}}); };
  for (const std::string fine : {"mlx5", "mlx5_1", "=mlx5_10", "mlx4,mlx5_1:1", "^mlx5_0", "^=mlx5_1", ""})
    CHECK(with(fine).empty());
  for (const std::string bad : {"mlx5_0", "=mlx5", "^mlx5", "=mlx5_100:1"})
    CHECK(with(bad) == "NCCL_IB_HCA leaves out every active adapter");
}

TEST_CASE("a missing library or device is reported") {
  const Machine machine;
  machine.adapter("mlx5_0", "4: ACTIVE");
  machine.remove("etc/ld.so.cache");
  CHECK(trouble(machine, {}) == "libibverbs.so.1 is not installed");
  machine.write("opt/rdma/libibverbs.so.1", "");
  CHECK(trouble(machine, {{"LD_LIBRARY_PATH", "/nowhere:/opt/rdma"}}).empty());
  machine.write("usr/lib64/libibverbs.so.1", "");
  CHECK(trouble(machine, {}).empty());
  machine.remove("dev/infiniband");
  CHECK(trouble(machine, {}) ==
        "there is no /dev/infiniband/uverbs*; in a container, pass these devices to it");
}

}  // namespace ddp::launcher
