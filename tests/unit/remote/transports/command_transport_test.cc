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

}  // namespace
}  // namespace ddp::remote
