#include "launcher/agent/node_facts.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace ddp;
using namespace ddp::launcher;
namespace fs = std::filesystem;

namespace {

/// The files of another machine.
struct FakeRoot : ddp::test::TemporaryDirectory {
  std::uint32_t quota() const { return facts::cpu_quota(path / "proc", path); }
};

const char* const kV2Mount =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

}  // namespace

TEST_CASE("the quota of cgroup v2 is the tightest of the group and its ancestors, rounded up") {
  FakeRoot root;
  root.write("proc/self/mountinfo", kV2Mount);
  root.write("proc/self/cgroup", "0::/user.slice/job.scope\n");
  CHECK(root.quota() == 0);
  root.write("sys/fs/cgroup/user.slice/job.scope/cpu.max", "max 100000\n");
  CHECK(root.quota() == 0);
  root.write("sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n");
  CHECK(root.quota() == 3);
  root.write("sys/fs/cgroup/user.slice/job.scope/cpu.max", "50000 100000\n");
  CHECK(root.quota() == 1);
}

TEST_CASE("the quota of cgroup v1 counts beside a v2 mount without the controller") {
  FakeRoot root;
  root.write("proc/self/mountinfo",
             "33 23 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
             "34 23 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
             "41 23 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  root.write("proc/self/cgroup", "4:cpuset:/\n3:cpu,cpuacct:/batch\n0::/\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/batch/cpu.cfs_quota_us", "400000\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/batch/cpu.cfs_period_us", "100000\n");
  CHECK(root.quota() == 4);
  root.write("sys/fs/cgroup/cpu,cpuacct/batch/cpu.cfs_quota_us", "-1\n");
  CHECK(root.quota() == 0);
}

TEST_CASE("a group outside of what the mounts show has no known quota") {
  FakeRoot root;
  root.write("proc/self/mountinfo", kV2Mount);
  root.write("proc/self/cgroup", "0::/../other\n");
  root.write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  CHECK(root.quota() == 0);
}

TEST_CASE("inside a container the mount shows the process' own group as its top") {
  FakeRoot root;
  root.write("proc/self/mountinfo", "33 23 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
  root.write("proc/self/cgroup", "3:cpu:/docker/abc\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(root.quota() == 2);
}

TEST_CASE("malformed files mean no quota") {
  FakeRoot root;
  CHECK(root.quota() == 0);
  root.write("proc/self/mountinfo", std::string("garbage\n") + kV2Mount);
  root.write("proc/self/cgroup", "0::/../outside\nnonsense\n");
  root.write("sys/fs/cgroup/cpu.max", "lots 0\n");
  CHECK(root.quota() == 0);
}

TEST_CASE("hyperthreads count as one core") {
  FakeRoot root;
  for (int cpu = 0; cpu < 4; ++cpu) {
    root.write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
               cpu % 2 == 0 ? "0,2\n" : "1,3\n");
  }
  CHECK(facts::physical_cores({0, 1, 2, 3}, root.path) == 2);
  CHECK(facts::physical_cores({1, 3}, root.path) == 1);
  CHECK(facts::physical_cores({0, 7}, root.path) == 0);  // one CPU is unknown: no guess
}

TEST_CASE("the facts of this machine are plausible") {
  const auto made = gather_node_facts();
  REQUIRE(made.has_value());
  CHECK_FALSE(made->hello.hostname.empty());
  CHECK(made->hello.pid == static_cast<std::uint32_t>(getpid()));
  CHECK(made->hello.cpus >= 1);
  CHECK(made->hello.cpus <= facts::affinity_cpus().size());
  CHECK(made->cores >= 1);
  CHECK(made->cores <= made->hello.cpus);
  CHECK(made->hello.machine_id.size() > 37);
  CHECK(gather_node_facts()->hello.machine_id == made->hello.machine_id);
  const auto loopback = std::find_if(made->hello.interfaces.begin(), made->hello.interfaces.end(),
                                     [](const auto& interface) { return interface.address == "127.0.0.1"; });
  REQUIRE(loopback != made->hello.interfaces.end());
  CHECK(loopback->name == "lo");
  CHECK(loopback->prefix_length == 8);
  CHECK(loopback->up);
  CHECK(loopback->loopback);
}

namespace ddp::launcher {
namespace {

using Texts = std::vector<std::string>;

/// A fake machine with everything that NCCL needs.
struct Machine : test::TemporaryDirectory {
  Machine() {
    write("dev/infiniband/uverbs0", "");
    write("etc/ld.so.cache", std::string("\0libc.so.6\0libibverbs.so.1\0", 26));
  }
  void adapter(const std::string& name, const std::string& state,
               const std::string& layer = "InfiniBand") const {
    write("sys/class/infiniband/" + name + "/ports/1/state", state + "\n");
    write("sys/class/infiniband/" + name + "/ports/1/link_layer", layer + "\n");
  }
  void remove(const std::string& name) const { std::filesystem::remove_all(path / name); }
};

std::string trouble(const Machine& machine, const EnvVars& env, const EnvVars& asked = {}) {
  return infiniband_trouble(active_infiniband(machine.path), env, asked, machine.path);
}

}  // namespace

TEST_CASE("adapters with an active InfiniBand port") {
  const Machine machine;
  CHECK(active_infiniband(machine.path).empty());
  CHECK(trouble(machine, {{"NCCL_IB_DISABLE", "1"}}).empty());
  machine.adapter("mlx5_1", "4: ACTIVE");
  machine.adapter("mlx5_0", "4: ACTIVE");
  machine.adapter("mlx5_2", "1: DOWN");
  machine.adapter("mlx5_3", "2: INIT");
  machine.adapter("mlx5_bond", "4: ACTIVE", "Ethernet");
  machine.write("sys/class/infiniband/mlx5_2/ports/2/state", "4: ACTIVE\n");
  machine.write("sys/class/infiniband/mlx5_2/ports/2/link_layer", "InfiniBand\n");
  CHECK(active_infiniband(machine.path) == Texts{"mlx5_0", "mlx5_1", "mlx5_2"});
  CHECK(active_rdma(machine.path) == Texts{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_bond"});
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
