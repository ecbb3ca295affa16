#include "rendezvous/identity/link_refusal.h"

#include <utility>

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

}  // namespace ddp::rendezvous
