#include "rendezvous/link/link_hello.h"

#include <algorithm>
#include <utility>

#include "base/result.h"
#include "base/text.h"

namespace ddp::rendezvous {
namespace {

constexpr std::string_view kPrefix = "ddplaunch-link/";

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

/// Takes the word before the next space off `text`, with the space. Without a space, takes all of `text`.
std::string_view take_word(std::string_view& text) {
  const std::size_t space = text.find(' ');
  const std::string_view word = text.substr(0, space);
  text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  return word;
}

std::optional<LinkRole> role_of(std::string_view name) {
  for (const LinkRole role : {LinkRole::kAgent, LinkRole::kMaster}) {
    if (name == role_name(role)) return role;
  }
  return std::nullopt;
}

bool read_nonce(std::string_view text, std::array<std::uint8_t, 16>& nonce) {
  const auto bytes = parse_hex(text);
  if (!bytes || bytes->size() != nonce.size()) return false;
  std::copy(bytes->begin(), bytes->end(), nonce.begin());
  return true;
}

}  // namespace

std::string_view role_name(LinkRole role) {
  switch (role) {
    case LinkRole::kAgent: return "agent";
    case LinkRole::kMaster: return "master";
  }
  return "?";
}

bool is_link_name(std::string_view name) {
  return !name.empty() && name.size() <= LinkIdentity::kMaxName &&
         std::all_of(name.begin(), name.end(), is_name_character);
}

std::string link_name_of(std::string_view host) {
  std::string name(host.substr(0, LinkIdentity::kMaxName));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !is_name_character(c); }, '_');
  return name.empty() ? "-" : name;
}

std::string identity_text(const LinkIdentity& identity) {
  DDP_REQUIRE(is_link_name(identity.job) && is_link_name(identity.node), identity.job, identity.node);
  const std::string_view nonce(reinterpret_cast<const char*>(identity.nonce.data()), identity.nonce.size());
  return concat(kPrefix, LinkIdentity::kVersion, ' ', role_name(identity.role), ' ', identity.job, ' ',
                identity.node, ' ', format_hex(nonce));
}

boost::system::result<LinkIdentity, LinkRefusal> parse_identity(std::string_view text) {
  if (!text.starts_with(kPrefix)) return LinkRefusal::kOtherTls;
  text.remove_prefix(kPrefix.size());
  const std::string_view version = take_word(text);
  if (!is_digits(version) || version[0] == '0' || version.size() > 5) return LinkRefusal::kOtherTls;
  if (version != std::to_string(LinkIdentity::kVersion)) return LinkRefusal::kOtherLink;
  LinkIdentity identity;
  const auto role = role_of(take_word(text));
  const std::string_view job = take_word(text);
  const std::string_view node = take_word(text);
  if (!role || !is_link_name(job) || !is_link_name(node) || !read_nonce(text, identity.nonce))
    return LinkRefusal::kOtherTls;
  identity.role = *role;
  identity.job = job;
  identity.node = node;
  return identity;
}

namespace {

constexpr std::size_t kRecordHeader = 5;
constexpr std::uint8_t kHandshakeRecord = 22;
constexpr std::uint8_t kClientHello = 1;
constexpr std::size_t kSha256Size = 32;

enum ExtensionType : std::uint16_t {
  kPreSharedKey = 41,
  kEarlyData = 42,
  kSupportedVersions = 43,
  kKeyExchangeModes = 45,
};

/// Takes fields off the front. After a missing field, good() stays false.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}

  bool good() const { return good_; }
  bool empty() const { return bytes_.empty(); }
  bool done() const { return good_ && bytes_.empty(); }
  std::size_t number(std::size_t width) {
    std::size_t value = 0;
    for (const char c : take(width))
      value = value << 8 | static_cast<std::uint8_t>(c);
    return value;
  }
  std::string_view take(std::size_t size) {
    if (size > bytes_.size()) {
      good_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  /// Takes a field that follows its length, a number of `width` bytes.
  std::string_view sized(std::size_t width) { return take(number(width)); }

 private:
  std::string_view bytes_;
  bool good_ = true;
};

/// Returns whether a list of numbers of `width` bytes contains `wanted`.
bool holds(std::string_view list, std::size_t width, std::size_t wanted) {
  Fields fields(list);
  bool found = false;
  while (fields.good() && !fields.empty())
    found = fields.number(width) == wanted || found;
  return fields.good() && found;
}

ParsedClientHello other(std::string_view why) {
  return {LinkRefusal::kOtherTls, why};
}

constexpr std::string_view kMalformed = "its hello is malformed";

struct Offer {
  bool tls13 = false;
  bool with_dhe = false;
  bool early_data = false;
  std::optional<std::string_view> keys;  ///< the pre_shared_key extension
};

/// Returns false when malformed. pre_shared_key must be the last extension, since its binder covers all bytes
/// before it.
bool read_extensions(std::string_view bytes, Offer& offer) {
  Fields fields(bytes);
  while (fields.good() && !fields.empty()) {
    if (offer.keys) return false;
    const std::size_t type = fields.number(2);
    const std::string_view body = fields.sized(2);
    Fields in_body(body);
    if (type == kSupportedVersions)
      offer.tls13 = holds(in_body.sized(1), 2, 0x0304);
    else if (type == kKeyExchangeModes)
      offer.with_dhe = holds(in_body.sized(1), 1, 1);  // psk_dhe_ke
    else if (type == kEarlyData)
      offer.early_data = true;
    else if (type == kPreSharedKey)
      offer.keys = body;
  }
  return fields.good();
}

ParsedClientHello read_keys(std::string_view extension) {
  Fields fields(extension);
  Fields identities(fields.sized(2));
  Fields binders(fields.sized(2));
  const std::string_view identity = identities.sized(2);
  (void)identities.take(4);  // the age of a ticket
  const std::string_view binder = binders.sized(1);
  if (!fields.done() || !identities.good() || !binders.good()) return other(kMalformed);
  if (!identities.empty() || !binders.empty()) return other("it offers more than one key");
  if (identity.empty() || binder.size() != kSha256Size) return other(kMalformed);
  return {.identity = identity};
}

/// `bytes` is the hello's body.
ParsedClientHello read_hello(std::string_view bytes) {
  Fields fields(bytes);
  const std::size_t version = fields.number(2);
  (void)fields.take(32);  // random
  const std::string_view session = fields.sized(1);
  const std::string_view suites = fields.sized(2);
  const std::string_view compressions = fields.sized(1);
  // TLS 1.3 names itself only in an extension. This field says 1.2 (RFC 8446, 4.1.2).
  if (!fields.good() || version != 0x0303 || session.size() > 32 || fields.empty())
    return other("it is not TLS 1.3");
  const std::string_view extensions = fields.sized(2);
  Offer offer;
  if (!fields.done() || compressions != std::string_view("\0", 1) || !read_extensions(extensions, offer))
    return other(kMalformed);
  if (!offer.tls13) return other("it offers no TLS 1.3");
  if (!holds(suites, 2, 0x1301)) return other("it does not offer TLS_AES_128_GCM_SHA256");
  if (offer.early_data) return other("it sends early data");
  if (!offer.keys) return other("it offers no key");
  if (!offer.with_dhe) return other("it offers a key without Diffie-Hellman");
  return read_keys(*offer.keys);
}

/// Classifies bytes that are not TLS, for the log. Waits for a whole HTTP method if the bytes may start one.
ParsedClientHello read_plain(std::string_view bytes) {
  static constexpr std::array<std::string_view, 9> kMethods{
      "GET ", "POST ", "HEAD ", "PUT ", "OPTIONS ", "CONNECT ", "DELETE ", "TRACE ", "PRI * "};
  for (const std::string_view method : kMethods) {
    if (bytes.starts_with(method)) return {LinkRefusal::kHttp};
    if (method.starts_with(bytes)) return {};
  }
  return {LinkRefusal::kPlain};
}

}  // namespace

ParsedClientHello parse_client_hello(std::string_view bytes) {
  if (bytes.empty()) return {};
  if (static_cast<std::uint8_t>(bytes[0]) != kHandshakeRecord) return read_plain(bytes);
  // The record's major version is 3 from SSL 3.0 to TLS 1.3.
  if (bytes.size() >= 2 && bytes[1] != 3) return {LinkRefusal::kPlain};
  if (bytes.size() < kRecordHeader) return {};
  Fields record(bytes);
  (void)record.take(3);
  const std::size_t length = record.number(2);
  if (length < 4 || length > kMaxClientHello - kRecordHeader)
    return other("its hello is longer than a hello of ddplaunch");
  if (bytes.size() < kRecordHeader + length) {
    // The bytes so far may already be wrong; then do not wait for the rest.
    if (bytes.size() > kRecordHeader && bytes[kRecordHeader] != kClientHello) return other(kMalformed);
    return {};
  }
  if (bytes.size() > kRecordHeader + length) return other("it does not wait for an answer");
  Fields handshake(record.take(length));
  if (handshake.number(1) != kClientHello) return other(kMalformed);
  const std::string_view body = handshake.sized(3);
  if (!handshake.done()) return other(kMalformed);
  return read_hello(body);
}

namespace {

constexpr std::string_view kJoin = "ddplaunch-join ";
constexpr std::string_view kSlot = "ddplaunch-slot ";
constexpr std::string_view kRefused = "ddplaunch-refused ";
constexpr std::size_t kMaxText = 800;

constexpr std::pair<LinkRefusal, std::string_view> kWords[] = {
    {LinkRefusal::kTaken, "taken"},
    {LinkRefusal::kOutOfRange, "range"},
    {LinkRefusal::kFull, "full"},
    {LinkRefusal::kOtherSize, "size"},
    {LinkRefusal::kOtherVersion, "version"},
    {LinkRefusal::kNoAgent, "agent"},
};

Error foreign(std::string_view line) {
  return Error{ErrorCode::kProtocol, "unknown line: " + one_line(std::string(line.substr(0, 80))), 0};
}

std::optional<int> number_of(std::string_view word) {
  const auto value = parse_number<int>(word);
  return value && *value >= 0 ? value : std::nullopt;
}

}  // namespace

std::string hello_line(const LinkHello& hello) {
  DDP_REQUIRE(!hello.version.empty() && hello.version.find(' ') == std::string::npos, hello.version);
  const std::string rank = hello.rank ? std::to_string(*hello.rank) : "-";
  return concat(kJoin, hello.protocol, ' ', hello.version, ' ', rank, ' ', hello.nodes, '\n');
}

Result<LinkHello> parse_hello(std::string_view line) {
  if (!line.starts_with(kJoin)) return foreign(line);
  std::string_view rest = line.substr(kJoin.size());
  LinkHello hello;
  const auto protocol = number_of(take_word(rest));
  hello.version = take_word(rest);
  const std::string_view rank = take_word(rest);
  hello.rank = number_of(rank);
  const auto nodes = number_of(rest);
  if (!protocol || hello.version.empty() || (!hello.rank && rank != "-") || !nodes) return foreign(line);
  hello.protocol = *protocol;
  hello.nodes = *nodes;
  return hello;
}

std::string answer_line(const LinkAnswer& answer) {
  DDP_REQUIRE(!answer.rank || (*answer.rank >= 0 && !answer.job_id.empty()), *answer.rank, answer.job_id);
  if (answer.rank) return concat(kSlot, *answer.rank, ' ', answer.job_id, '\n');
  std::string line(kRefused);
  for (const auto& [refusal, word] : kWords) {
    if (refusal == answer.refusal) line += word;
  }
  return line + ' ' + one_line(answer.text).substr(0, kMaxText) + '\n';
}

Result<LinkAnswer> parse_answer(std::string_view line) {
  LinkAnswer answer;
  if (line.starts_with(kSlot)) {
    std::string_view rest = line.substr(kSlot.size());
    answer.rank = number_of(take_word(rest));
    answer.job_id = one_line(rest);
    if (!answer.rank || rest.empty()) return foreign(line);
    return answer;
  }
  if (!line.starts_with(kRefused)) return foreign(line);
  std::string_view rest = line.substr(kRefused.size());
  const std::string_view word = take_word(rest);
  answer.text = one_line(rest);
  for (const auto& [refusal, name] : kWords) {
    if (name != word) continue;
    answer.refusal = refusal;
    return answer;
  }
  return foreign(line);
}

namespace {

/// OpenSSL's alert for a binder that does not verify; RFC 8446 requires decrypt_error.
constexpr std::uint8_t kIllegalParameter = 47;

constexpr std::pair<LinkRefusal, std::uint8_t> kAlerts[] = {
    {LinkRefusal::kTokenDiffers, 51},  // decrypt_error
    {LinkRefusal::kOtherJob, 115},     // unknown_psk_identity
    {LinkRefusal::kOtherRole, 49},     // access_denied
    {LinkRefusal::kOtherLink, 70},     // protocol_version
    {LinkRefusal::kOtherTls, 40},      // handshake_failure
};

}  // namespace

std::string alert_record(LinkRefusal refusal) {
  constexpr char kFatal = 2;
  for (const auto& [known, alert] : kAlerts)
    if (known == refusal) return {21, 3, 3, 0, 2, kFatal, static_cast<char>(alert)};
  return {};
}

std::optional<LinkRefusal> refusal_of(std::uint8_t alert) {
  if (alert == kIllegalParameter) return LinkRefusal::kTokenDiffers;
  for (const auto& [refusal, known] : kAlerts)
    if (known == alert) return refusal;
  return std::nullopt;
}

std::string refusal_line(LinkRefusal refusal, const std::string& address,
                         const std::optional<LinkIdentity>& claim, const std::string& what,
                         const LinkSide& here) {
  const std::string who = address + (claim ? ", which claims to be " + std::string(role_name(claim->role)) +
                                                 " " + claim->node + " of job " + claim->job + ","
                                           : "");
  const std::string detail = what.empty() ? "" : ": " + what;
  switch (refusal) {
    case LinkRefusal::kTokenDiffers:
      return "refused " + address + (claim ? " (node " + claim->node + ", job " + claim->job + ")" : "") +
             ": its token differs from ours (" + here.token_origin + ", check " + here.token_check + ")";
    case LinkRefusal::kOtherJob:
      return who + " connected to " + here.where + ", where another job runs; refused" + detail;
    case LinkRefusal::kOtherRole: return who + " has the wrong role for " + here.where + "; refused" + detail;
    case LinkRefusal::kOtherLink:
      return who + " has another version of the link protocol than this ddplaunch; refused at " + here.where;
    case LinkRefusal::kHttp:
      return who + " sent HTTP to " + here.where + detail + ", which is not a web server or proxy; closed";
    case LinkRefusal::kPlain: return who + " did not use TLS with " + here.where + detail + "; closed";
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
    default:  // kBadHello. A later refusal has a text of the listening end's own
      return address + (claim ? " (" + claim->node + ")" : "") + " sent an invalid request" + detail +
             "; closed";
  }
}

std::string join_refusal_text(LinkRefusal refusal, const LinkSide& here) {
  const bool to_daemon = here.role == LinkRole::kMaster;
  switch (refusal) {
    case LinkRefusal::kTokenDiffers:
      return "the token differs: " + here.where + " has another token than this node, which uses " +
             here.token_origin + " (check " + here.token_check +
             "). The other side's log names the source and the check of its token. Give both sides the same "
             "token: the same DDPLAUNCH_TOKEN, or the same --token-file";
    case LinkRefusal::kOtherJob:
      return here.where + " does not run job " + here.job +
             ": the address is another job's, or this node has another --job-id. Use the same --job-id on "
             "all nodes, and the MASTER_ADDR and MASTER_PORT of this job";
    case LinkRefusal::kOtherRole:
      return here.where +
             " is ddplaunch, but expects another kind of peer: the master of a job expects its nodes, a "
             "daemon expects masters. Check the address and the port";
    case LinkRefusal::kOtherLink:
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
             "not started with --insecure";
    case LinkRefusal::kSilent: return here.where + " accepted the connection but did not answer in time";
    case LinkRefusal::kEvicted:
    case LinkRefusal::kTooMany: return here.where + " has too many connections now; try again later";
    case LinkRefusal::kBroken: return here.where + " closed the connection before it answered";
    case LinkRefusal::kBadHello:
      return here.where + " accepted the link but did not answer" +
             (to_daemon ? "; the reason is in the daemon's log there (journalctl --user -u ddplaunchd)" : "");
    case LinkRefusal::kNoAgent: return "the daemon could not start an agent there";
    default: return here.where + " refused this node";
  }
}

std::string printable_start(std::string_view bytes) {
  std::string line = "\"";
  for (const char c : bytes.substr(0, 40)) {
    if (c == '\r' || c == '\n') break;
    line += c >= 0x20 && c < 0x7F ? c : '.';
  }
  return line + '"';
}

namespace {

constexpr std::size_t kMaxRemembered = 4096;  // addresses that failed

}  // namespace

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
    // The memory is bounded: a peer with more addresses than that within the window is not banned.
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

std::optional<std::string> RefusalLog::pass(LinkRefusal why, const std::string& address, std::string line,
                                            Time now) {
  if (now >= since_ + kWindow) {
    since_ = now;
    said_.clear();
  }
  if (said_.size() >= kLines || !said_.emplace(why, address).second) {
    ++unsaid_[why];
    return std::nullopt;
  }
  if (const std::size_t count = std::exchange(unsaid_[why], 0); count > 0)
    line += " (" + std::to_string(count) + " more of this kind were not logged)";
  return line;
}

}  // namespace ddp::rendezvous
