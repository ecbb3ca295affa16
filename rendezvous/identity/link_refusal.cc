#include "rendezvous/identity/link_refusal.h"

#include <algorithm>

#include "base/result.h"

namespace ddp::rendezvous {
namespace {

enum Alert : std::uint8_t {
  kHandshakeFailure = 40,
  kIllegalParameter = 47,  // OpenSSL's alert for a binder that does not verify
  kAccessDenied = 49,
  kDecryptError = 51,  // the alert that RFC 8446 requires for it
  kProtocolVersion = 70,
  kUnknownPskIdentity = 115,
};

std::string token_text(std::string_view origin, std::string_view check) {
  std::string words(origin.empty() ? "a derived key" : origin);
  if (!check.empty()) {
    words += " (check ";
    words += check;
    words += ')';
  }
  return words;
}

constexpr std::size_t kMaxRemembered = 4096;  // addresses that failed

}  // namespace

std::optional<std::uint8_t> alert_of(LinkRefusal refusal) {
  switch (refusal) {
    case LinkRefusal::kTokenDiffers:
      return kDecryptError;
    case LinkRefusal::kOtherJob:
      return kUnknownPskIdentity;
    case LinkRefusal::kOtherRole:
      return kAccessDenied;
    case LinkRefusal::kOtherVersion:
      return kProtocolVersion;
    case LinkRefusal::kOtherTls:
      return kHandshakeFailure;
    case LinkRefusal::kHttp:
    case LinkRefusal::kPlain:
    case LinkRefusal::kSilent:
    case LinkRefusal::kEvicted:
    case LinkRefusal::kTooMany:
    case LinkRefusal::kBroken:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<LinkRefusal> refusal_of(std::uint8_t alert) {
  switch (alert) {
    case kIllegalParameter:
    case kDecryptError:
      return LinkRefusal::kTokenDiffers;
    case kUnknownPskIdentity:
      return LinkRefusal::kOtherJob;
    case kAccessDenied:
      return LinkRefusal::kOtherRole;
    case kProtocolVersion:
      return LinkRefusal::kOtherVersion;
    case kHandshakeFailure:
      return LinkRefusal::kOtherTls;
    default:
      return std::nullopt;
  }
}

std::string alert_record(std::uint8_t alert) {
  constexpr char kFatal = 2;
  return {21, 3, 3, 0, 2, kFatal, static_cast<char>(alert)};
}

std::string refusal_line(LinkRefusal refusal, const RefusedPeer& peer, const ListenSide& here) {
  const std::string who = peer.peer + (peer.claim.empty() ? "" : ", which claims to be " + peer.claim + ",");
  const std::string detail = peer.detail.empty() ? "" : ": " + peer.detail;
  switch (refusal) {
    case LinkRefusal::kTokenDiffers:
      return "refused " + peer.peer + (peer.place.empty() ? "" : " (" + peer.place + ")") +
             ": its token differs from ours (" +
             (here.token_origin.empty() ? "a derived key" : here.token_origin) +
             (here.token_check.empty() ? "" : ", check " + here.token_check) + ")";
    case LinkRefusal::kOtherJob:
      return who + " connected to " + here.where + ", where another job runs; refused" + detail;
    case LinkRefusal::kOtherRole:
      return who + " has the wrong role for " + here.where + "; refused" + detail;
    case LinkRefusal::kOtherVersion:
      return who + " has another version of the link protocol than this ddplaunch; refused at " + here.where;
    case LinkRefusal::kHttp:
      return who + " sent HTTP to " + here.where + detail + ", which is not a web server or proxy; closed";
    case LinkRefusal::kPlain:
      return who + " did not use TLS with " + here.where + detail + "; closed";
    case LinkRefusal::kOtherTls:
      return who + " used TLS with " + here.where + " but is not ddplaunch" + detail + "; refused";
    case LinkRefusal::kSilent:
      return who + " connected to " + here.where + " and did not authenticate in time; closed";
    case LinkRefusal::kEvicted:
      return who + " was slow to authenticate while others waited at " + here.where + "; closed";
    case LinkRefusal::kTooMany:
      return who + " has too many unauthenticated or failed connections to " + here.where + "; closed";
    case LinkRefusal::kBroken:
      return who + " disconnected before it had authenticated at " + here.where + detail;
  }
  return {};
}

std::string join_refusal_text(LinkRefusal refusal, const JoinSide& here) {
  const bool to_daemon = here.role == LinkRole::kMaster;
  switch (refusal) {
    case LinkRefusal::kTokenDiffers:
      return "the token differs: " + here.where + " has another token than this node, which uses " +
             token_text(here.token_origin, here.token_check) +
             ". The other side's log names the source and the check of its token. Give both sides the same "
             "token: the "
             "same "
             "DDPLAUNCH_TOKEN, or the same --token-file";
    case LinkRefusal::kOtherJob:
      return here.where + " does not run job " + here.job +
             ": the address is another job's, or this node has another --job-id. Use the same --job-id on "
             "all "
             "nodes, and the MASTER_ADDR and MASTER_PORT of this job";
    case LinkRefusal::kOtherRole:
      return here.where +
             " is ddplaunch, but expects another kind of peer: the master of a job expects its nodes, a "
             "daemon expects masters. Check the address and the port";
    case LinkRefusal::kOtherVersion:
      return here.where +
             " runs ddplaunch with another version of the link protocol. Install the same version on all "
             "nodes" +
             (to_daemon ? ", and restart the daemon" : "");
    case LinkRefusal::kHttp:
    case LinkRefusal::kPlain:
    case LinkRefusal::kOtherTls:
      if (to_daemon) {
        return "the program that answers at " + here.where +
               " is not ddplaunchd --listen. Check the port: port= in the hostfile, or --daemon-port";
      }
      return "the program that answers at " + here.where +
             " is not ddplaunch with a token. Check MASTER_ADDR and MASTER_PORT, and that the other side was "
             "not "
             "started with --insecure";
    case LinkRefusal::kSilent:
      return here.where + " accepted the connection but did not answer in time";
    case LinkRefusal::kEvicted:
    case LinkRefusal::kTooMany:
      return here.where + " has too many connections now; try again later";
    case LinkRefusal::kBroken:
      return here.where + " closed the connection before it answered";
  }
  return {};
}

std::string printable_start(std::string_view bytes, std::size_t limit) {
  std::string line = "\"";
  for (const char c : bytes.substr(0, limit)) {
    if (c == '\r' || c == '\n') break;
    line += c >= 0x20 && c < 0x7F ? c : '.';
  }
  return line + '"';
}

std::optional<LinkRefusal> AdmissionLimiter::admit(Id id, const std::string& address, Time now) {
  const auto failed = failures_.find(address);
  if (failed != failures_.end() && now < failed->second.banned_until) return LinkRefusal::kTooMany;
  if (!make_room(address, now)) return LinkRefusal::kTooMany;
  DDP_REQUIRE(waiting_.empty() || waiting_.rbegin()->first < id, id);
  AddressCounts& counts = per_address_[address];
  ++counts.all;
  ++counts.silent;
  waiting_.emplace(id, PendingConnection{address, now});
  return std::nullopt;
}

bool AdmissionLimiter::make_room(const std::string& address, Time now) {
  const auto counts = per_address_.find(address);
  const std::size_t silent = counts == per_address_.end() ? 0 : counts->second.silent;
  if (silent < limits_.silent_per_address) return true;
  const auto oldest = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& entry) {
    return entry.second.address == address && !entry.second.greeted;
  });
  if (oldest == waiting_.end() || now < oldest->second.since + limits_.grace) return false;
  displaced_.push_back({oldest->first, LinkRefusal::kEvicted});
  ended(oldest->first);
  return true;
}

void AdmissionLimiter::greeted(Id id) {
  const auto entry = waiting_.find(id);
  if (entry == waiting_.end() || std::exchange(entry->second.greeted, true)) return;
  std::size_t& silent = per_address_[entry->second.address].silent;
  DDP_REQUIRE(silent > 0, id);
  --silent;
}

void AdmissionLimiter::ended(Id id) {
  const auto entry = waiting_.find(id);
  if (entry == waiting_.end()) return;
  const auto counts = per_address_.find(entry->second.address);
  DDP_REQUIRE(counts != per_address_.end() && counts->second.all > 0, id);
  DDP_REQUIRE(entry->second.greeted || counts->second.silent > 0, id, counts->second.all);
  if (!entry->second.greeted) --counts->second.silent;
  if (--counts->second.all == 0) per_address_.erase(counts);
  waiting_.erase(entry);
}

void AdmissionLimiter::failed(const std::string& address, Time now) {
  if (failures_.size() >= kMaxRemembered && !failures_.contains(address)) {
    std::erase_if(failures_, [&](const auto& entry) {
      return now >= entry.second.since + limits_.window && now >= entry.second.banned_until;
    });
    if (failures_.size() >= kMaxRemembered) return;
  }
  Failures& failures = failures_[address];
  if (failures.count == 0 || now >= failures.since + limits_.window) {
    failures.count = 0;
    failures.since = now;
  }
  if (++failures.count < limits_.failures) return;
  failures.count = 0;
  failures.banned_until = now + limits_.ban;
}

/// Chooses the oldest connection of the address with the most connections, so that one address cannot evict
/// the others. Connections without a good hello go first.
std::pair<AdmissionLimiter::Id, AdmissionLimiter::Time> AdmissionLimiter::next_to_evict() const {
  const auto most =
      std::max_element(per_address_.begin(), per_address_.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second.silent, a.second.all) < std::pair(b.second.silent, b.second.all);
      });
  const bool silent = most->second.silent > 0;
  const auto first = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& entry) {
    return entry.second.address == most->first && entry.second.greeted != silent;
  });
  DDP_REQUIRE(first != waiting_.end() && "the counts are those of the waiting connections", waiting_.size());
  return {first->first, first->second.since + (silent ? limits_.grace : 8 * limits_.grace)};
}

std::optional<AdmissionLimiter::Time> AdmissionLimiter::next_turn() const {
  if (!displaced_.empty()) return Time::min();
  if (waiting_.empty()) return std::nullopt;
  const Time silent = waiting_.begin()->second.since + limits_.deadline;
  return full() ? std::min(silent, next_to_evict().second) : silent;
}

std::vector<AdmissionLimiter::Overdue> AdmissionLimiter::take_overdue(Time now) {
  std::vector<Overdue> overdue = std::exchange(displaced_, {});
  while (!waiting_.empty() && now >= waiting_.begin()->second.since + limits_.deadline) {
    overdue.push_back({waiting_.begin()->first, LinkRefusal::kSilent});
    ended(overdue.back().id);
  }
  if (full() && !waiting_.empty()) {
    const auto [id, from] = next_to_evict();
    if (now >= from) {
      overdue.push_back({id, LinkRefusal::kEvicted});
      ended(id);
    }
  }
  return overdue;
}

}  // namespace ddp::rendezvous
