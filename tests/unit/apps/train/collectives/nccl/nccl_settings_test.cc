#include "apps/train/collectives/nccl/nccl_settings.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/catch.h"

using namespace ddp::train;

namespace {

const char* const kSocket =
    "gpu01:4242:4242 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    "gpu01:4242:4242 [0] NCCL INFO NCCL version 2.27.3+cuda12.9\n"
    "gpu01:4242:4250 [0] NCCL INFO NET/IB : No device found.\n"
    "gpu01:4242:4250 [0] NCCL INFO Failed to initialize NET plugin IB\n"
    "gpu01:4242:4250 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"
    "gpu01:4242:4250 [0] NCCL INFO Initialized NET plugin Socket\n"
    "gpu01:4242:4250 [0] NCCL INFO Assigned NET plugin Socket to comm\n"
    "gpu01:4242:4250 [0] NCCL INFO Using network Socket\n"
    "gpu01:4242:4250 [0] NCCL INFO ncclCommInitRankConfig comm 0x5581 rank 0 nranks 2 cudaDev 0 nvmlDev 0 "
    "busId "
    "1000 commId 0x3ab - Init START\n"
    "gpu01:4242:4250 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 4 p2p channels, 2 "
    "p2p "
    "channels per peer\n"
    "gpu01:4242:4250 [0] NCCL INFO ncclCommInitRankConfig comm 0x5581 rank 0 nranks 2 cudaDev 0 nvmlDev 0 "
    "busId "
    "1000 commId 0x3ab - Init COMPLETE\n"
    "gpu01:4242:4250 [0] NCCL INFO Init timings - ncclCommInitRankConfig: rank 0 nranks 2 total 0.55 "
    "(kernels "
    "0.20, alloc 0.01, bootstrap 0.30, allgathers 0.00, topo 0.03, graphs 0.00, connections 0.01, rest "
    "0.00)\n";

}  // namespace

TEST_CASE("sockets of NCCL 2.27") {
  const NcclLog log = read_nccl_log(kSocket);
  CHECK(log.version == "2.27.3");
  CHECK(log.network == "Socket");
  CHECK(log.devices == std::vector<std::string>{"eth0"});
  CHECK(log.bootstrap == "eth0");
  CHECK(log.channels == 2);
  CHECK(log.seconds == 0.55);
  REQUIRE(log.phases.size() == 8);
  CHECK(log.phases[2] == std::pair<std::string, double>("bootstrap", 0.30));
  CHECK(nccl_line(log) ==
        "NCCL 2.27.3 over Socket eth0, 2 channels, started in 0.55 s (kernels 0.20, bootstrap 0.30)");
}

TEST_CASE("the last communicator counts, and lines of the process count for all") {
  const NcclLog log = read_nccl_log(std::string(kSocket) +
                                    "gpu01:4242:4250 [0] NCCL INFO Using network Socket\n"
                                    "gpu01:4242:4250 [0] NCCL INFO 4 coll channels, 4 collnet channels, 0 "
                                    "nvls channels, 4 p2p channels, 2 p2p "
                                    "channels per peer\n"
                                    "gpu01:4242:4250 [0] NCCL INFO Init timings - ncclCommInitRankConfig: "
                                    "rank 1 nranks 3 total 0.20 (kernels "
                                    "0.00, alloc 0.00, bootstrap 0.20, rest 0.00)\n");
  CHECK(nccl_line(log) == "NCCL 2.27.3 over Socket eth0, 4 channels, started in 0.20 s (bootstrap 0.20)");
}

TEST_CASE("InfiniBand and RoCE, as NCCL 2.19 and 2.28 write them") {
  const NcclLog old = read_nccl_log(
      "NCCL version 2.19.4+cuda12.2\n"
      "a:1:1 [0] NCCL INFO Bootstrap : Using ib0:192.168.1.4<0>\n"
      "a:1:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB ib0:192.168.1.4<0>\n"
      "a:1:9 [0] NCCL INFO Using non-device net plugin version 0\n"
      "a:1:9 [0] NCCL INFO Using network IB\n"
      "a:1:9 [0] NCCL INFO 16 coll channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer\n");
  CHECK(old.bootstrap == "ib0");
  CHECK(nccl_line(old) == "NCCL 2.19.4 over IB mlx5_0:1/IB+mlx5_1:1/RoCE, 16 channels");
  CHECK(sockets_warning(old, {"mlx5_0 port 1"}).empty());

  const NcclLog plugin = read_nccl_log(
      "b:1:9 [0] NCCL INFO Bootstrap: Using eth0:fe80::1%eth0<0>\n"
      "b:1:9 [0] NCCL INFO Assigned NET plugin AWS Libfabric to comm\n"
      "b:1:9 [0] NCCL INFO Using network Libfabric\n");
  CHECK(plugin.bootstrap == "eth0");
  CHECK(nccl_line(plugin) == "NCCL over AWS Libfabric");
}

TEST_CASE("timings of NCCL 2.22, and the transports inside a node") {
  const NcclLog log = read_nccl_log(
      "h:1:2 [1] NCCL INFO Using network IB\n"
      "h:1:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read\n"
      "h:1:2 [1] NCCL INFO Channel 01/0 : 1[1] -> 0[0] via P2P/CUMEM/read\n"
      "h:1:2 [1] NCCL INFO Channel 00 : 1[1] -> 2[2] via SHM/direct/direct\n"
      "h:1:2 [1] NCCL INFO Init timings: rank 1 nranks 3 total 2.46 (kernels 0.18, bootstrap 1.60, "
      "allgathers "
      "0.00, topo 0.52, graphs 0.00, connections 0.12, rest 0.04)\n");
  CHECK(nccl_line(log) == "NCCL over P2P, SHM, started in 2.46 s (bootstrap 1.60, topo 0.52)");
  const NcclLog both = read_nccl_log(
      "h:1:2 [1] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>\n"
      "h:1:2 [1] NCCL INFO Using network Socket\n"
      "h:1:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC\n"
      "h:1:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0\n");
  CHECK(nccl_line(both) == "NCCL over P2P, Socket eth0+eth1");
}

TEST_CASE("warnings are kept with their full text") {
  const NcclLog log = read_nccl_log(
      "\n[2025-11-02 10:00:00] gpu01:7:7 [0] init.cc:903 NCCL WARN Duplicate GPU detected : rank 0 and rank "
      "1 both "
      "on CUDA device 1000\n"
      "gpu01:7:7 [0] NCCL INFO init.cc:1611 -> 5\n");
  CHECK(log.warnings ==
        std::vector<std::string>{"Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000"});
}

TEST_CASE("the use of sockets beside active InfiniBand is a warning") {
  const NcclLog log = read_nccl_log(kSocket);
  CHECK(sockets_warning(log, {}).empty());
  CHECK(sockets_warning(log, {"mlx5_0 port 1", "mlx5_1 port 1"}) ==
        "NCCL uses sockets although InfiniBand is up on this node (mlx5_0 port 1, mlx5_1 port 1); check that "
        "libibverbs is installed and /dev/infiniband is readable (in a container: passed in, memlock "
        "unlimited); NCCL_NET=IB makes NCCL report why InfiniBand does not work");
}

TEST_CASE("active InfiniBand ports are listed with their link layer") {
  const auto root = std::filesystem::temp_directory_path() / ("ddp-infiniband-" + std::to_string(::getpid()));
  const auto port = [&](const char* name, const char* state, const char* layer) {
    std::filesystem::create_directories(root / name);
    std::ofstream(root / name / "state") << state << "\n";
    std::ofstream(root / name / "link_layer") << layer << "\n";
  };
  port("mlx5_1/ports/1", "4: ACTIVE", "Ethernet");
  port("mlx5_0/ports/1", "4: ACTIVE", "InfiniBand");
  port("mlx5_0/ports/2", "1: DOWN", "InfiniBand");
  CHECK(active_infiniband(root.string()) ==
        std::vector<std::string>{"mlx5_0 port 1", "mlx5_1 port 1 (Ethernet)"});
  std::filesystem::remove_all(root);
  CHECK(active_infiniband(root.string()).empty());
}

TEST_CASE("arbitrary text does not break the parser") {
  const std::string text = kSocket;
  for (std::size_t length = 0; length <= text.size(); ++length) {
    (void)nccl_line(read_nccl_log(std::string_view(text).substr(0, length)));
    (void)nccl_line(read_nccl_log(std::string_view(text).substr(length)));
  }
  CHECK(nccl_line(read_nccl_log("")) == "NCCL");
  CHECK(nccl_line(read_nccl_log("NCCL INFO NET/IB : Using [[[0]\nNCCL INFO Using network IB\n")) ==
        "NCCL over IB");
  CHECK(
      nccl_line(read_nccl_log("NCCL INFO Init timings total x (\nNCCL INFO Init timings total 1 (a, b 2,")) ==
      "NCCL, started in 1.00 s (b 2.00)");
}

TEST_CASE("variables for several ranks on one GPU") {
  const auto alone = share_gpu_variables("job-3-77", true);
  CHECK(alone.front() == NcclVariable{"NCCL_HOSTID", "job-3-77", true});
  CHECK(alone.back() == NcclVariable{"NCCL_SOCKET_IFNAME", "lo", false});
  CHECK(share_gpu_variables("job-3-77", false).size() == alone.size() - 1);
}

TEST_CASE("a user's own debug settings stay") {
  const auto none = [](const char*) -> const char* { return nullptr; };
  const auto variables = capture_variables("/proc/self/fd/7", none);
  REQUIRE(variables.size() == 3);
  CHECK(variables[2] == NcclVariable{"NCCL_DEBUG_FILE", "/proc/self/fd/7", false});
  const auto debug = [](const char* name) { return std::string(name) == "NCCL_DEBUG" ? "WARN" : nullptr; };
  CHECK(capture_variables("/proc/self/fd/7", debug).empty());
  const auto ib = [](const char* name) { return std::string(name) == "NCCL_IB_DISABLE" ? "1" : nullptr; };
  const auto zero = [](const char* name) { return std::string(name) == "NCCL_IB_DISABLE" ? "0" : nullptr; };
  CHECK(sockets_are_wanted(ib));
  CHECK_FALSE(sockets_are_wanted(zero));
  CHECK_FALSE(sockets_are_wanted(none));
}
