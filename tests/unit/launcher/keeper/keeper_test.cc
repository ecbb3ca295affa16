#include "launcher/keeper/keeper.h"

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

struct Packet {
  int kind = 0;
  std::int64_t lease_ms = 0;
  std::string text;
};

/// A link whose keeper is this test.
class LinkBench {
 public:
  LinkBench() : link(make_socket(), ::getppid()) {}

  /// Returns all packets that have arrived.
  std::vector<Packet> read() {
    std::vector<Packet> packets;
    KeeperPacket packet;
    for (ssize_t size = 0; (size = ::recv(keeper_.get(), &packet, sizeof packet, MSG_DONTWAIT)) > 0;) {
      REQUIRE(static_cast<std::size_t>(size) >= kKeeperPacketHead);
      packets.push_back({packet.kind, packet.lease_ms,
                         std::string(packet.text, static_cast<std::size_t>(size) - kKeeperPacketHead)});
    }
    return packets;
  }
  void end_keeper() { keeper_.reset(); }

 private:
  UniqueFd make_socket() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    keeper_.reset(ends[0]);
    return UniqueFd(ends[1]);
  }
  UniqueFd keeper_;

 public:
  KeeperSocket link;
};

TEST_CASE("every packet of an agent carries its lease, which a renewal repeats") {
  LinkBench bench;
  bench.link.renew();
  bench.link.set_lease(1500ms);
  bench.link.renew();
  bench.link.set_job_mark("j1");
  const std::vector<Packet> packets = bench.read();
  REQUIRE(packets.size() == 4);
  for (std::size_t i = 0; i < packets.size(); ++i)
    CHECK(packets[i].lease_ms == (i == 0 ? 0 : 1500));
  CHECK(packets[2].kind == KeeperPacket::kRenew);
  CHECK(packets[3].kind == KeeperPacket::kJobMark);
  CHECK(packets[3].text == "j1");
}

TEST_CASE("a text that is too long for a packet is cut") {
  LinkBench bench;
  bench.link.set_directory(std::string(5000, 'd'));
  const std::vector<Packet> packets = bench.read();
  REQUIRE(packets.size() == 1);
  CHECK(packets[0].text == std::string(KeeperPacket::kMaxText, 'd'));
}

TEST_CASE("a stopped keeper gets every message in order when it reads on; renewals may be lost") {
  LinkBench bench;
  for (int i = 0; i < 5000; ++i)
    bench.link.renew();  // more than the socket holds
  bench.link.set_cgroup("/one");
  bench.link.drop_cgroup("/one");
  bench.link.set_directory("/two");
  for (const Packet& packet : bench.read())
    CHECK(packet.kind == KeeperPacket::kRenew);
  bench.link.renew();
  const std::vector<Packet> packets = bench.read();
  REQUIRE(packets.size() == 4);
  CHECK(packets[0].text == "/one");
  CHECK(packets[0].kind == KeeperPacket::kCgroup);
  CHECK(packets[1].kind == KeeperPacket::kCgroupGone);
  CHECK(packets[2].text == "/two");
  CHECK(packets[3].kind == KeeperPacket::kRenew);
}

TEST_CASE("the end of the keeper shows, and sends to it are lost without a failure") {
  LinkBench bench;
  CHECK(bench.link.is_keeper_alive());
  bench.end_keeper();
  CHECK_FALSE(bench.link.is_keeper_alive());
  bench.link.set_directory("/two");
}

}  // namespace
}  // namespace ddp::launcher
