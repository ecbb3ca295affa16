// The lines of the protocol, in both directions and both ways; then WorkerLines, which splits a stream; then
// WorkerSession, the agent's view of one worker.
#include "rendezvous/worker/worker_protocol.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace ddp::rendezvous {
namespace {

using Json = nlohmann::json;

// Limits for escaped text. With kPeers ranks of eleven characters each, and the keys, a line stays below
// kWorkerLineBytes.
constexpr std::size_t kTextBytes = 2048;
constexpr std::size_t kPhaseBytes = 256;
constexpr std::size_t kPeers = 128;
constexpr std::string_view kCutMark = "…";

/// The keys are ordered, so that the key that names the message comes first for readers.
using OrderedJson = nlohmann::ordered_json;

std::string dumped(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

/// Returns the bytes of the character at `at` (of valid UTF-8), and the maximum bytes that it takes in JSON.
std::pair<std::size_t, std::size_t> character_at(const std::string& text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  // JSON (RFC 8259) writes a control character as \u00NN, and escapes only quotes and backslashes of the
  // others.
  if (lead < 0x20) return {1, 6};
  if (lead == '"' || lead == '\\') return {1, 2};
  const std::size_t bytes = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return {bytes, bytes};
}

/// Returns valid UTF-8 that takes at most `limit` bytes in JSON. A mark shows that text was cut.
std::string fitting(const std::string& text, std::size_t limit) {
  // The rest of a huge text is not needed. Do not cut in the middle of a character.
  std::size_t start_of_rest = std::min(limit, text.size());
  for (int i = 0; i < 3 && start_of_rest < text.size() && (text[start_of_rest] & 0xc0) == 0x80; ++i)
    --start_of_rest;
  // Replaces invalid bytes.
  const std::string whole = Json::parse(dumped(text.substr(0, start_of_rest))).get<std::string>();
  std::size_t taken = 0;
  std::size_t end = 0;
  std::size_t last_with_room = 0;  // end of the text that leaves room for the mark
  while (end < whole.size()) {
    const auto [bytes, cost] = character_at(whole, end);
    if (taken + cost > limit) break;
    taken += cost;
    end += bytes;
    if (taken + kCutMark.size() <= limit) last_with_room = end;
  }
  if (end == whole.size() && text.size() <= limit) return whole;
  return whole.substr(0, last_with_room) + std::string(kCutMark);
}

Error wrong(const std::string& what) {
  return {ErrorCode::kProtocol, what};
}

/// Reads the keys of one message and keeps the first error.
class Keys {
 public:
  explicit Keys(const Json& object) : object_(object) {}

  template <class Number>
  Number number(const char* key, Number least = 0, Number most = std::numeric_limits<Number>::max()) {
    const Json* value = required(key);
    return value ? number_of(*value, key, least, most) : least;
  }
  /// Returns nothing if the key is missing or null.
  template <class Number>
  std::optional<Number> number_or_none(const char* key) {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return std::nullopt;
    return number_of(*found, key, Number{0}, std::numeric_limits<Number>::max());
  }
  std::optional<double> real_or_none(const char* key) {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return std::nullopt;
    if (found->is_number()) return found->get<double>();
    fail(key, "is not a number");
    return std::nullopt;
  }
  bool flag(const char* key) {
    const Json* value = required(key);
    if (value && !value->is_boolean()) fail(key, "is neither true nor false");
    return value && value->is_boolean() && value->get<bool>();
  }
  bool flag_or(const char* key, bool otherwise) { return object_.contains(key) ? flag(key) : otherwise; }
  std::string text(const char* key) {
    const Json* value = required(key);
    if (value && !value->is_string()) fail(key, "is not a string");
    return value && value->is_string() ? value->get<std::string>() : std::string();
  }
  std::string text_or_empty(const char* key) { return object_.contains(key) ? text(key) : std::string(); }
  std::vector<std::uint32_t> ranks_or_none(const char* key) {
    std::vector<std::uint32_t> ranks;
    const auto found = object_.find(key);
    if (found == object_.end()) return ranks;
    if (!found->is_array()) fail(key, "is not a list");
    for (const Json& rank : found->is_array() ? *found : Json::array())
      ranks.push_back(number_of(rank, key, std::uint32_t{0}, std::numeric_limits<std::uint32_t>::max()));
    return ranks;
  }
  /// Returns nothing if `counts` is missing.
  std::optional<StepDurations> durations_or_none(const char* counts, const char* sum, const char* waited) {
    const auto found = object_.find(counts);
    if (found == object_.end()) return std::nullopt;
    StepDurations durations;
    const auto is_pair = [](const Json& pair) { return pair.is_array() && pair.size() == 2; };
    require(found->is_array() && std::ranges::all_of(*found, is_pair), counts,
            "is not a list of [bucket, steps]");
    if (!wrong_.empty()) return std::nullopt;
    for (const Json& pair : *found) {
      const auto bucket = number_of(pair[0], counts, std::uint64_t{0}, std::uint64_t{StepDurations::kBounds});
      durations.add(bucket, number_of(pair[1], counts, std::uint64_t{1}, StepDurations::kMost));
    }
    durations.seconds = real_or_none(sum).value_or(-1);
    require(durations.seconds >= 0 && durations.seconds <= static_cast<double>(StepDurations::kMost), sum,
            "is missing or out of range");
    durations.waited = real_or_none(waited).value_or(0);
    require(durations.waited >= 0 && durations.waited <= durations.seconds, waited, "is out of range");
    return durations;
  }
  void require_present(const char* key) { (void)required(key); }
  void require(bool holds, const char* key, const char* otherwise) {
    if (!holds) fail(key, otherwise);
  }

  template <class Word, class Message>
  Result<Word> result(Message message) const {
    if (!wrong_.empty()) return wrong(wrong_);
    return Word(std::move(message));
  }

 private:
  const Json* required(const char* key) {
    const auto found = object_.find(key);
    if (found != object_.end()) return &*found;
    fail(key, "is missing");
    return nullptr;
  }
  template <class Number>
  Number number_of(const Json& value, const char* key, Number least, Number most) {
    // The parser does not read numbers with a point, an exponent or too many digits as integers.
    if (!value.is_number_unsigned()) {
      fail(key, value.is_number() ? "is not a whole number in range" : "is not a number");
      return least;
    }
    const auto found = value.get<std::uint64_t>();
    if (found >= static_cast<std::uint64_t>(least) && found <= static_cast<std::uint64_t>(most))
      return static_cast<Number>(found);
    fail(key, "is out of range");
    return least;
  }
  void fail(const char* key, const char* what) {
    if (wrong_.empty()) wrong_ = std::string("\"") + key + "\" " + what;
  }

  const Json& object_;
  std::string wrong_;
};

Result<WorkerMessage> decode_hello(Keys keys) {
  WorkerHello hello;
  hello.version = keys.number<int>("hello", 1);
  // The other keys of another version are unknown.
  if (hello.version != kWorkerProtocol) return keys.result<WorkerMessage>(hello);
  hello.pid = keys.number<std::uint32_t>("pid");
  hello.rejoin = keys.flag("rejoin");
  hello.sharded = keys.flag_or("sharded", false);
  return keys.result<WorkerMessage>(hello);
}

Result<WorkerMessage> decode_step(Keys keys) {
  WorkerStep step;
  step.step = keys.number<std::uint64_t>("step");
  step.phase = keys.text_or_empty("in");
  step.loss = keys.real_or_none("loss");
  step.durations = keys.durations_or_none("durations", "seconds", "waited");
  return keys.result<WorkerMessage>(std::move(step));
}

Result<WorkerMessage> decode_failed(Keys keys) {
  WorkerTrouble trouble;
  trouble.attempt = keys.number<std::uint32_t>("failed");
  trouble.error = keys.text("error");
  trouble.peers = keys.ranks_or_none("peers");
  trouble.retry = keys.flag_or("retry", true);
  return keys.result<WorkerMessage>(std::move(trouble));
}

Result<WorkerMessage> decode_revoked(Keys keys) {
  WorkerRevoked revoked;
  revoked.attempt = keys.number<std::uint32_t>("revoked");
  // "step" is required, since it decides which rank provides the training state.
  keys.require_present("step");
  revoked.step = keys.number_or_none<std::uint64_t>("step");
  return keys.result<WorkerMessage>(revoked);
}

Result<WorkerMessage> decode_ready(Keys keys) {
  return keys.result<WorkerMessage>(WorkerReady{keys.number<std::uint32_t>("ready")});
}

Result<AgentMessage> decode_attempt(Keys keys) {
  AttemptOrder order;
  order.attempt = keys.number<std::uint32_t>("attempt");
  order.rank = keys.number<std::uint32_t>("rank");
  order.world = keys.number<std::uint32_t>("world", 1);
  order.local_rank = keys.number<std::uint32_t>("local_rank");
  order.local_world = keys.number<std::uint32_t>("local_world", 1);
  order.node_rank = keys.number<std::uint32_t>("node_rank");
  order.nodes = keys.number<std::uint32_t>("nodes", 1);
  order.store = keys.text("store");
  order.agent_store = keys.flag("agent_store");
  order.from = keys.number_or_none<std::uint32_t>("from");
  keys.require(order.rank < order.world, "rank", "is not below \"world\"");
  keys.require(order.local_rank < order.local_world, "local_rank", "is not below \"local_world\"");
  keys.require(order.node_rank < order.nodes, "node_rank", "is not below \"nodes\"");
  keys.require(!order.from || *order.from < order.world, "from", "is not below \"world\"");
  return keys.result<AgentMessage>(std::move(order));
}

Result<AgentMessage> decode_revoke(Keys keys) {
  RevokeOrder order;
  order.attempt = keys.number<std::uint32_t>("revoke");
  order.reason = keys.text("reason");
  order.deadline_ms = keys.number<std::uint32_t>("deadline_ms");
  return keys.result<AgentMessage>(std::move(order));
}

Result<AgentMessage> decode_stop(Keys keys) {
  StopOrder order;
  order.reason = keys.text("stop");
  order.grace_ms = keys.number<std::uint32_t>("grace_ms");
  return keys.result<AgentMessage>(std::move(order));
}

template <class Word>
struct FieldKind {
  const char* key;
  Result<Word> (*decode)(Keys);
};

/// The first key of the list that the object contains determines the message.
template <class Word, std::size_t kCount>
Result<Word> decode(std::string_view line, const FieldKind<Word> (&kinds)[kCount]) {
  if (line.size() >= kWorkerLineBytes) return wrong("a line is longer than 4096 bytes");
  const Json object = Json::parse(line.begin(), line.end(), nullptr, false);
  if (!object.is_object()) return wrong("a line is not a JSON object");
  // Unknown keys are no error, so that a later version may add some.
  for (const FieldKind<Word>& kind : kinds)
    if (object.contains(kind.key)) return kind.decode(Keys(object));
  return wrong("a line has no key of a known message");
}

// "step" comes last, since "revoked" also has a "step".
constexpr FieldKind<WorkerMessage> kWorkerKinds[] = {{"hello", decode_hello},
                                                     {"failed", decode_failed},
                                                     {"revoked", decode_revoked},
                                                     {"ready", decode_ready},
                                                     {"step", decode_step}};
constexpr FieldKind<AgentMessage> kAgentKinds[] = {
    {"attempt", decode_attempt}, {"revoke", decode_revoke}, {"stop", decode_stop}};

OrderedJson json_of(const WorkerHello& hello) {
  return {{"hello", hello.version}, {"pid", hello.pid}, {"rejoin", hello.rejoin}, {"sharded", hello.sharded}};
}
OrderedJson json_of(const WorkerStep& step) {
  OrderedJson object{{"step", step.step}};
  if (!step.phase.empty()) object["in"] = fitting(step.phase, kPhaseBytes);
  if (step.loss && std::isfinite(*step.loss)) object["loss"] = *step.loss;
  if (step.durations) {
    // In the order of StepDurations::counts; the buckets of a report are few.
    object["durations"] = OrderedJson::array();
    for (const auto& [bucket, steps] : step.durations->counts)
      object["durations"].push_back({bucket, steps});
    object["seconds"] = step.durations->seconds;
    if (step.durations->waited > 0) object["waited"] = step.durations->waited;
  }
  return object;
}
OrderedJson json_of(const WorkerTrouble& trouble) {
  std::vector<std::uint32_t> peers = trouble.peers;
  // Peers are evidence only. With so many of them lost, the rest adds nothing.
  if (peers.size() > kPeers) peers.resize(kPeers);
  OrderedJson object{
      {"failed", trouble.attempt}, {"error", fitting(trouble.error, kTextBytes)}, {"peers", peers}};
  if (!trouble.retry) object["retry"] = false;
  return object;
}
OrderedJson json_of(const WorkerRevoked& revoked) {
  OrderedJson object{{"revoked", revoked.attempt}, {"step", nullptr}};
  if (revoked.step) object["step"] = *revoked.step;
  return object;
}
OrderedJson json_of(const WorkerReady& ready) {
  return {{"ready", ready.attempt}};
}
OrderedJson json_of(const AttemptOrder& order) {
  OrderedJson object{{"attempt", order.attempt},
                     {"rank", order.rank},
                     {"world", order.world},
                     {"local_rank", order.local_rank},
                     {"local_world", order.local_world},
                     {"node_rank", order.node_rank},
                     {"nodes", order.nodes},
                     {"store", fitting(order.store, kTextBytes)},
                     {"agent_store", order.agent_store},
                     {"from", nullptr}};
  if (order.from) object["from"] = *order.from;
  return object;
}
OrderedJson json_of(const RevokeOrder& order) {
  return {{"revoke", order.attempt},
          {"reason", fitting(order.reason, kTextBytes)},
          {"deadline_ms", order.deadline_ms}};
}
OrderedJson json_of(const StopOrder& order) {
  return {{"stop", fitting(order.reason, kTextBytes)}, {"grace_ms", order.grace_ms}};
}

template <class Message>
std::string line_of(const Message& message) {
  std::string line = dumped(json_of(message)) + "\n";
  DDP_REQUIRE(line.size() <= kWorkerLineBytes, line.size());
  return line;
}

}  // namespace

std::string encode_line(const WorkerMessage& word) {
  return std::visit([](const auto& message) { return line_of(message); }, word);
}

std::string encode_line(const AgentMessage& word) {
  return std::visit([](const auto& message) { return line_of(message); }, word);
}

Result<WorkerMessage> decode_worker_line(std::string_view line) {
  return decode(line, kWorkerKinds);
}

Result<WorkerStep> decode_worker_report(std::string_view datagram) {
  auto word = DDP_TRY(decode_worker_line(datagram));
  if (auto* step = std::get_if<WorkerStep>(&word)) return std::move(*step);
  return wrong("a line has no \"step\"");
}

Result<AgentMessage> decode_agent_line(std::string_view line) {
  return decode(line, kAgentKinds);
}

Result<std::optional<std::string>> WorkerLines::next() {
  const std::size_t end = std::string_view(buffer_).substr(0, kWorkerLineBytes).find('\n');
  if (end == std::string::npos) {
    if (buffer_.size() < kWorkerLineBytes) return std::optional<std::string>();
    return wrong("a line is longer than 4096 bytes");
  }
  std::optional<std::string> line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

namespace {

/// Names a message in an error text.
std::string quoted_key(const char* word, std::uint32_t attempt) {
  return std::string("\"") + word + "\" for attempt " + std::to_string(attempt);
}

}  // namespace

std::vector<WorkerEvent> WorkerSession::receive(std::string_view bytes) {
  if (state_ != State::kIgnored) lines_.add(bytes);
  while (state_ != State::kIgnored) {
    const auto next = lines_.next();
    if (!next) {
      misbehaved(Misbehavior::kTooLong, "sent an invalid line over DDPLAUNCH_CONTROL: " + next.error().text +
                                            "; its further messages are ignored");
      state_ = State::kIgnored;
      break;
    }
    if (!*next) break;
    line(**next);
  }
  DDP_REQUIRE(troubles_ <= kMostTroubles && (!ready_ || attempt_), troubles_, ready_);
  return std::exchange(events_, {});
}

void WorkerSession::line(std::string_view text) {
  const auto word = decode_worker_line(text);
  if (!word) {
    misbehaved(Misbehavior::kBroken,
               "sent a line over DDPLAUNCH_CONTROL that is ignored: " + word.error().text);
    return;
  }
  if (state_ == State::kSilent && !std::holds_alternative<WorkerHello>(*word)) {
    misbehaved(Misbehavior::kNoHello, "sent a message over DDPLAUNCH_CONTROL before its hello; ignored");
    return;
  }
  std::visit([this](const auto& message) { receive(message); }, *word);
}

void WorkerSession::receive(const WorkerHello& hello) {
  if (state_ != State::kSilent) {
    if (hello.version == kWorkerProtocol && hello_.rejoin && !hello.rejoin) {  // it has finished its part
      hello_.rejoin = false;
      events_.emplace_back(hello);
      return;
    }
    misbehaved(Misbehavior::kSecondHello, "sent a second hello over DDPLAUNCH_CONTROL; ignored");
    return;
  }
  if (hello.version != kWorkerProtocol) {
    misbehaved(Misbehavior::kVersion, "speaks version " + std::to_string(hello.version) +
                                          " of the worker protocol, not " + std::to_string(kWorkerProtocol) +
                                          "; its messages are ignored");
    state_ = State::kIgnored;
    return;
  }
  hello_ = hello;
  state_ = State::kGreeted;
  events_.emplace_back(hello);
  send_waiting();
}

/// A step counts as activity in any attempt.
void WorkerSession::receive(const WorkerStep& step) {
  events_.emplace_back(step);
}

void WorkerSession::receive(const WorkerTrouble& trouble) {
  if (!trouble.retry) {  // it ends, whatever the agent has ordered
    events_.emplace_back(trouble);
    return;
  }
  if (!is_present("failed", trouble.attempt)) return;
  if (state_ == State::kInAttempt && troubles_ < kMostTroubles) {
    ++troubles_;
    events_.emplace_back(trouble);
  } else if (state_ == State::kInAttempt) {
    misbehaved(Misbehavior::kTroubles, "sent " + quoted_key("failed", trouble.attempt) + " more than " +
                                           std::to_string(kMostTroubles) + " times; the rest is ignored");
  }
  // In kLeavingAttempt another report merely crossed the revoke order, and says nothing new.
  if (state_ == State::kFree)
    misbehaved(Misbehavior::kOutOfTurn,
               "sent " + quoted_key("failed", trouble.attempt) + " after it had left the attempt; ignored");
}

void WorkerSession::receive(const WorkerRevoked& answer) {
  if (!is_present("revoked", answer.attempt)) return;
  if (state_ != State::kLeavingAttempt) {
    misbehaved(Misbehavior::kOutOfTurn,
               "sent " + quoted_key("revoked", answer.attempt) +
                   (state_ == State::kFree ? " twice; ignored" : " without an order; ignored"));
    return;
  }
  state_ = State::kFree;
  events_.emplace_back(answer);
}

void WorkerSession::receive(const WorkerReady& ready) {
  if (!is_present("ready", ready.attempt)) return;
  if (state_ == State::kLeavingAttempt && !ready_) return;  // it crossed the revoke order
  if (ready_ || state_ != State::kInAttempt) {
    misbehaved(Misbehavior::kOutOfTurn,
               "sent " + quoted_key("ready", ready.attempt) +
                   (ready_ ? " twice; ignored" : " after it had left the attempt; ignored"));
    return;
  }
  ready_ = true;
  events_.emplace_back(ready);
}

bool WorkerSession::is_present(const char* word, std::uint32_t attempt) {
  if (attempt_ == attempt) return true;
  misbehaved(Misbehavior::kForeign,
             "sent " + quoted_key(word, attempt) +
                 (attempt_ ? ", but is in attempt " + std::to_string(*attempt_) + "; ignored"
                           : ", but has no attempt yet; ignored"));
  return false;
}

void WorkerSession::misbehaved(Misbehavior misbehavior, std::string words) {
  const unsigned bit = 1U << static_cast<unsigned>(misbehavior);
  if ((misbehaved_ & bit) != 0) return;
  misbehaved_ |= bit;
  events_.emplace_back(WorkerMisbehaved{std::move(words)});
}

bool WorkerSession::can_rejoin() const {
  return state_ != State::kSilent && state_ != State::kIgnored && hello_.rejoin && !hello_.sharded;
}

void WorkerSession::begin(AttemptOrder order) {
  if (stopped_) return;
  if (state_ == State::kSilent) {
    waiting_attempt_ = std::move(order);
    waiting_revoke_.reset();
    return;
  }
  attempt_ = order.attempt;
  ready_ = false;
  troubles_ = 0;
  if (state_ != State::kIgnored) state_ = State::kInAttempt;
  send(std::move(order));
}

void WorkerSession::revoke(RevokeOrder order) {
  if (stopped_) return;
  if (state_ == State::kSilent) {
    // The worker may still send its hello in time and answer.
    if (waiting_attempt_ && waiting_attempt_->attempt == order.attempt && !waiting_revoke_)
      waiting_revoke_ = std::move(order);
    return;
  }
  if (state_ != State::kInAttempt || attempt_ != order.attempt || !can_rejoin()) return;
  state_ = State::kLeavingAttempt;
  send(std::move(order));
}

void WorkerSession::stop(StopOrder order) {
  if (stopped_) return;
  stopped_ = true;
  if (state_ == State::kSilent) {
    waiting_stop_ = std::move(order);
    return;
  }
  send(std::move(order));
}

void WorkerSession::send_waiting() {
  // A stop is the last order. Whatever waited before it has no effect any more.
  if (waiting_stop_) return send(*waiting_stop_);
  if (waiting_attempt_) begin(*std::exchange(waiting_attempt_, std::nullopt));
  if (waiting_revoke_) revoke(*std::exchange(waiting_revoke_, std::nullopt));
}

void WorkerSession::send(const AgentMessage& word) {
  DDP_REQUIRE(state_ != State::kSilent, word.index());  // orders wait for the hello
  if (state_ != State::kIgnored) output_ += encode_line(word);
}

std::string WorkerSession::take_output() {
  return std::exchange(output_, {});
}

}  // namespace ddp::rendezvous
