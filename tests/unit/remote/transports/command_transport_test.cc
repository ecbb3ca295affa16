#include "remote/transports/command_transport.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::remote {
namespace {

using Names = std::vector<std::string>;

TEST_CASE("srun gets the node, and its command is passed unchanged") {
  Host host;
  host.name = "gpu 1";
  const auto line = SrunTransport::command_line(host, {"/opt/a b/ddplaunchd", "--stdio"});
  CHECK(line.front() == "srun");
  CHECK(line[3] == "--nodelist=gpu 1");
  CHECK(Names(line.end() - 2, line.end()) == Names{"/opt/a b/ddplaunchd", "--stdio"});
  host.address = "n001";
  CHECK(SrunTransport::command_line(host, {"x"})[3] == "--nodelist=n001");
}

TEST_CASE("algorithms without a common choice are named with their option") {
  CHECK(
      mismatch_advice("\n  Unable to negotiate with 10.0.0.2 port 22: no matching host key type found. "
                      "Their offer: ssh-rsa,ssh-dss\n  more") ==
      "; the server supports none of the HostKeyAlgorithms allowed here, but ssh-rsa,ssh-dss; allow one that "
      "\"ssh -Q HostKeyAlgorithms\" lists for this host in the SSH configuration (HostKeyAlgorithms "
      "+ssh-rsa), "
      "or update its SSH server");
  const auto option_of = [](const std::string& kind) {
    const std::string advice = mismatch_advice("no matching " + kind + " found. Their offer: ext-info-s,a");
    return advice.substr(0, advice.find(';', 1));
  };
  CHECK(option_of("key exchange method") ==
        "; the server supports none of the KexAlgorithms allowed here, but a");
  CHECK(option_of("cipher") == "; the server supports none of the Ciphers allowed here, but a");
  CHECK(option_of("MAC") == "; the server supports none of the MACs allowed here, but a");
  CHECK(option_of("compression method").empty());
  CHECK(mismatch_advice("Connection reset by 10.0.0.2 port 22").empty());
  CHECK(mismatch_advice("no matching MAC found. Their offer: ").empty());
}

}  // namespace
}  // namespace ddp::remote
