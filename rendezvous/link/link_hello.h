#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

// The hello of a TCP link, and its refusals, as bytes and texts (sans-IO). Nodes that join a job and masters
// that connect to a daemon use the same ones (docs/developers/protocol.md, "Links over TCP";
// docs/users/security.md):
//   1. the ClientHello of TLS with the identity of the end that connects, in the clear;
//   2. when the key is proven, one line from that end, and one line as the answer.
// And which peers may wait for it, before they have proved anything.

namespace ddp::rendezvous {

/// Role of the end that opens a TCP link. The key depends on it, so a key for one role fits no other.
enum class LinkRole : std::uint8_t {
  kAgent,   ///< a node that joins its job's master
  kMaster,  ///< a master that connects to a node's daemon
};
std::string_view role_name(LinkRole role);

/// The reason why a TCP link was refused. A peer that has not proved itself gets it as a TLS alert, or, where
/// there is no alert for it, only the end of the connection. A peer that has proved itself gets it as a line.
enum class LinkRefusal : std::uint8_t {
  kTokenDiffers,  ///< the key fits the identity but not the token
  kOtherJob,      ///< the identity names a job that does not run here
  kOtherRole,     ///< a master connected to a port for agents, or vice versa
  kOtherLink,     ///< another version of the link: identity, key derivation, hello, or what follows
  kHttp,          ///< HTTP from a browser, a scanner or a proxy
  kPlain,         ///< bytes that are not TLS
  kOtherTls,      ///< TLS, but not a hello of ddplaunch
  kSilent,        ///< the deadline passed
  kEvicted,       ///< too slow while others waited
  kTooMany,       ///< its address has too many unproven connections, or failed too often
  kBroken,        ///< hung up, or violated the protocol
  kBadHello,      ///< proved itself, but its hello is invalid or did not come in time
  // For a peer that has proved itself:
  kTaken,         ///< another node with this rank has joined
  kOutOfRange,    ///< the job has no such rank
  kFull,          ///< all ranks are taken
  kOtherSize,     ///< --nnodes differs
  kOtherVersion,  ///< another version of ddplaunch
  kNoAgent,       ///< the daemon could not start an agent
};

/// Identity of the end that opens a TCP link: the identity of TLS's pre-shared key, sent in the clear. It
/// contains no secret, and it is unproven until the handshake has ended. Its text, also used on the wire:
///   ddplaunch-link/2 agent JOB NODE 0123…(32 hexadecimal digits of the nonce)
struct LinkIdentity {
  /// Version of the link. An end of another version gets kOtherLink, which all versions understand.
  static constexpr int kVersion = 2;
  static constexpr std::size_t kMaxName = 64;
  static constexpr std::size_t kMaxText = 200;

  LinkRole role = LinkRole::kAgent;
  std::string job;   ///< 1 … 64 letters, digits, '.', '_', '-'
  std::string node;  ///< same characters; "-" when it has no name
  std::array<std::uint8_t, 16> nonce{};

  friend bool operator==(const LinkIdentity&, const LinkIdentity&) = default;
};

/// Returns whether `name` is valid as job or node.
bool is_link_name(std::string_view name);
/// Turns a host's name into such a name, with '_' for other characters.
std::string link_name_of(std::string_view host);

std::string identity_text(const LinkIdentity& identity);
/// Strict: accepts only text that `identity_text` produces. Errors: kOtherTls, not an identity of ddplaunch;
/// kOtherLink.
boost::system::result<LinkIdentity, LinkRefusal> parse_identity(std::string_view text);

/// Result of parsing the first bytes of a connection that has not proved its identity.
struct ParsedClientHello {
  std::optional<LinkRefusal> refusal{};  ///< kHttp, kPlain or kOtherTls
  std::string_view why{};                ///< with kOtherTls, static text: "it offers no TLS 1.3"
  /// Of the one key that a whole TLS 1.3 ClientHello offers: arbitrary bytes, a view into the parsed bytes.
  /// Empty without a refusal: more bytes are needed.
  std::string_view identity{};
};

/// A ddplaunch hello has about 450 bytes. A longer one is not from ddplaunch.
constexpr std::size_t kMaxClientHello = 1024;

/// Parses all bytes so far (kMaxClientHello at most), before any memory or TLS library is spent on them.
/// Strict: accepts only one record with TLS 1.3, TLS_AES_128_GCM_SHA256, one pre-shared key with (EC)DHE, and
/// no early data. Bytes after that record give kOtherTls, since an honest client waits for the answer. RFC
/// 8446, 4.1.2 and 4.2.
ParsedClientHello parse_client_hello(std::string_view bytes);

/// A line has at most so many bytes.
inline constexpr std::size_t kMaxHelloLine = 1024;

/// The first line of the end that connects. A daemon uses neither rank nor number of nodes.
struct LinkHello {
  int protocol = 0;
  std::string version;
  std::optional<int> rank{};  ///< --node-rank; unset: any
  int nodes = 0;              ///< --nnodes; 0: not given
};
/// "ddplaunch-join PROTOCOL VERSION RANK|- NODES\n"
std::string hello_line(const LinkHello& hello);
/// `line` has no newline. Error: kProtocol.
Result<LinkHello> parse_hello(std::string_view line);

/// The answer to it.
struct LinkAnswer {
  std::optional<int> rank{};  ///< of the node in the job; 0 from a daemon; unset: refused
  std::string job_id{};       ///< if not refused: the job's name at the listening end
  LinkRefusal refusal = LinkRefusal::kBadHello;
  std::string text{};  ///< with a refusal: text for the user of the other end
};
/// "ddplaunch-slot RANK JOB\n" or "ddplaunch-refused WORD TEXT\n"
std::string answer_line(const LinkAnswer& answer);
/// The texts of the answer are one line each, safe for a terminal. Error: kProtocol.
Result<LinkAnswer> parse_answer(std::string_view line);

/// Returns the fatal alert for a refusal (RFC 8446, 6.2) as one TLS record. Empty if the peer does not speak
/// TLS or would not wait.
std::string alert_record(LinkRefusal refusal);
/// Returns the refusal that an alert means to the joining end, or nothing if the alert is no such refusal.
std::optional<LinkRefusal> refusal_of(std::uint8_t alert);

/// One end of a link, for the texts of a refusal: where it listens or whom it asked, and its token.
struct LinkSide {
  std::string where;                 ///< "the control port 29400"; to a joining end: "gpu01:29400 (10.0.0.2)"
  std::string token_origin;          ///< LinkToken::origin
  std::string token_check;           ///< token_check() of the token
  std::string job{};                 ///< of a joining end
  LinkRole role = LinkRole::kAgent;  ///< of a joining end
};
/// Builds the listening end's log line. `claim` is unproven; `detail` is what the peer sent or what is wrong
/// with it, printable.
std::string refusal_line(LinkRefusal refusal, const std::string& address,
                         const std::optional<LinkIdentity>& claim, const std::string& detail,
                         const LinkSide& here);
/// Builds the joining end's text: who refused, what this end has, what to do.
std::string join_refusal_text(LinkRefusal refusal, const LinkSide& here);

/// Returns at most 40 bytes from an unproven peer as one line of printable ASCII.
std::string printable_start(std::string_view bytes);

struct AdmissionLimits {
  std::size_t waiting = 256;            ///< unproven connections at once; others stay in the kernel's queue
  std::size_t silent_per_address = 64;  ///< per address, without a good hello
  std::chrono::milliseconds deadline{10'000};  ///< from accept to the hello behind the proof
  /// Once a limit above is reached, a connection older than this is evicted. A good hello extends the time
  /// eightfold. If all connections of an address are younger, its new connection is closed.
  std::chrono::milliseconds grace{500};
  unsigned failures = 20;  ///< failed proofs of one address in `window` that cause a ban
  std::chrono::milliseconds window{10'000};
  std::chrono::milliseconds ban{2'000};  ///< connections of that address are closed unread for this time
};

/// Decides which unproven connections may wait, how long, and which are evicted (sans-IO). An address is a
/// string for one address or for a whole IPv6 /64. The driver's duties:
///   1. call `admit` for each accepted connection; close it when that returns a reason;
///   2. call `greeted` when the connection has sent a valid ddplaunch hello. It still counts in total, but
///      not against its address, which many nodes may share (a test, address translation);
///   3. call `ended` when the connection has proved its identity and sent its hello, or has closed; call
///      `failed` before that when the proof was wrong;
///   4. accept no more while `full`;
///   5. at `next_turn`, which `admit` may have changed, close the connections from `take_overdue`.
class AdmissionLimiter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Id = std::uint64_t;
  struct Overdue {
    Id id;
    LinkRefusal why;  ///< kSilent or kEvicted
  };

  explicit AdmissionLimiter(AdmissionLimits limits) : limits_(limits) {}

  /// Ids must increase. Returns nothing when admitted, else the reason.
  std::optional<LinkRefusal> admit(Id id, const std::string& address, Time now);
  void greeted(Id id);
  void ended(Id id);
  void failed(const std::string& address, Time now);
  bool full() const { return waiting_.size() >= limits_.waiting; }
  std::size_t waiting() const { return waiting_.size(); }

  std::optional<Time> next_turn() const;
  /// The returned connections are no longer counted.
  std::vector<Overdue> take_overdue(Time now);

 private:
  struct PendingConnection {
    std::string address;
    Time since;
    bool greeted = false;
  };
  struct AddressCounts {
    std::size_t all = 0;
    std::size_t silent = 0;
  };
  struct Failures {
    unsigned count = 0;
    Time since;
    Time banned_until;
  };
  /// Makes room for one more connection of the address, if necessary by evicting its oldest. Returns false if
  /// there is no room.
  bool make_room(const std::string& address, Time now);
  /// Returns the next connection to evict, and the time of it. At least one connection must wait.
  std::pair<Id, Time> next_to_evict() const;

  AdmissionLimits limits_;
  std::map<Id, PendingConnection> waiting_;  ///< ordered by age
  std::map<std::string, AddressCounts> per_address_;
  std::map<std::string, Failures> failures_;
  std::vector<Overdue> displaced_;  ///< evicted, not counted, and not yet returned
};

/// Keeps peers from filling the log (sans-IO). Per minute it passes the first line of each reason and
/// address, and at most kLines lines. It counts the rest; the next line of the same reason shows the count.
class RefusalLog {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kWindow{60};
  static constexpr std::size_t kLines = 20;

  /// Returns the line to log, or nothing if the line is only counted.
  std::optional<std::string> pass(LinkRefusal why, const std::string& address, std::string line, Time now);

 private:
  Time since_{};
  std::set<std::pair<LinkRefusal, std::string>> said_;
  std::map<LinkRefusal, std::size_t> unsaid_;
};

}  // namespace ddp::rendezvous
