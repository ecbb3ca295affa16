#include "launcher/keeper/keeper_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"

namespace ddp::launcher {

bool KeeperLink::is_keeper_alive() const {
  pollfd entry{socket_.get(), POLLIN, 0};
  return getppid() == keeper_ && poll(&entry, 1, 0) != 1;
}

/// A full socket means that the keeper is stopped. On waking it reads the queued packets, which suffice as
/// renewals.
void KeeperLink::send(int kind, std::string_view text) {
  while (!unsent_.empty() && send_now(unsent_.front().first, unsent_.front().second))
    unsent_.pop_front();
  const bool sent = unsent_.empty() && send_now(kind, text);
  if (!sent && kind != KeeperPacket::kRenew) unsent_.emplace_back(kind, text);
}

bool KeeperLink::send_now(int kind, std::string_view text) {
  KeeperPacket packet;
  packet.kind = kind;
  packet.sent_ns = boot_now().count();
  packet.lease_ms = lease_.count();
  packet.sleep = sleep_;
  text = text.substr(0, KeeperPacket::kMaxText);
  std::copy(text.begin(), text.end(), packet.text);
  return ::send(socket_.get(), &packet, kKeeperPacketHead + text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
         errno != EAGAIN;
}

}  // namespace ddp::launcher
