#include "rendezvous/worker/worker_protocol.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/scenario.h"

namespace ddp::rendezvous {
namespace {

using Wire = nlohmann::ordered_json;

constexpr auto kMost32 = std::numeric_limits<std::uint32_t>::max();
constexpr auto kMost64 = std::numeric_limits<std::uint64_t>::max();

std::string without_end(std::string line) {
  REQUIRE(line.size() <= kWorkerLineBytes);
  REQUIRE(line.find('\n') == line.size() - 1);
  line.pop_back();
  return line;
}

template <class Word>
void there_and_back(const Word& word, const std::string& wire) {
  const std::string line = without_end(encode_line(word));
  CHECK(line == wire);
  if constexpr (std::is_same_v<Word, WorkerMessage>) {
    const auto back = decode_worker_line(line);
    REQUIRE(back.has_value());
    CHECK(*back == word);
  } else {
    const auto back = decode_agent_line(line);
    REQUIRE(back.has_value());
    CHECK(*back == word);
  }
}

std::string worker_error(const std::string& line) {
  const auto word = decode_worker_line(line);
  if (word) return "decoded";
  CHECK(word.error().code == ErrorCode::kProtocol);
  return word.error().text;
}

std::string agent_error(const std::string& line) {
  const auto word = decode_agent_line(line);
  if (word) return "decoded";
  CHECK(word.error().code == ErrorCode::kProtocol);
  return word.error().text;
}

TEST_CASE("worker protocol: every message survives its encoding") {
  there_and_back(WorkerMessage(WorkerHello{1, 77, true, false}),
                 R"({"hello":1,"pid":77,"rejoin":true,"sharded":false})");
  there_and_back(WorkerMessage(WorkerHello{1, kMost32, false, true}),
                 R"({"hello":1,"pid":4294967295,"rejoin":false,"sharded":true})");
  there_and_back(WorkerMessage(WorkerStep{7, "all-reduce"}), R"({"step":7,"in":"all-reduce"})");
  there_and_back(WorkerMessage(WorkerStep{kMost64, ""}), R"({"step":18446744073709551615})");
  there_and_back(WorkerMessage(WorkerStep{8, "", -0.25}), R"({"step":8,"loss":-0.25})");
  CHECK(encode_line(WorkerMessage(WorkerStep{8, "", std::nan("")})) == "{\"step\":8}\n");
  there_and_back(WorkerMessage(WorkerStep{9, "", {}, StepDurations{{{33, 7}, {146, 1}}, 0.25}}),
                 R"({"step":9,"durations":[[33,7],[146,1]],"seconds":0.25})");
  there_and_back(WorkerMessage(WorkerStep{9, "", {}, StepDurations{{{33, 7}}, 0.25, 0.125}}),
                 R"({"step":9,"durations":[[33,7]],"seconds":0.25,"waited":0.125})");
  there_and_back(WorkerMessage(WorkerStep{9, "", {}, StepDurations{}}),
                 R"({"step":9,"durations":[],"seconds":0.0})");
  there_and_back(WorkerMessage(WorkerTrouble{2, "a \"b\"\n\x01 é", {3, kMost32}}),
                 R"({"failed":2,"error":"a \"b\"\n\u0001 é","peers":[3,4294967295]})");
  there_and_back(WorkerMessage(WorkerTrouble{0, "", {}}), R"({"failed":0,"error":"","peers":[]})");
  there_and_back(WorkerMessage(WorkerTrouble{0, "", {}, false}),
                 R"({"failed":0,"error":"","peers":[],"retry":false})");
  there_and_back(WorkerMessage(WorkerRevoked{3, 1234}), R"({"revoked":3,"step":1234})");
  there_and_back(WorkerMessage(WorkerRevoked{3, std::nullopt}), R"({"revoked":3,"step":null})");
  there_and_back(WorkerMessage(WorkerReady{kMost32}), R"({"ready":4294967295})");
  there_and_back(AgentMessage(AttemptOrder{1, 2, 4, 0, 2, 1, 2, "[fe80::1]:29500", false, 3}),
                 R"({"attempt":1,"rank":2,"world":4,"local_rank":0,"local_world":2,"node_rank":1,"nodes":2,)"
                 R"("store":"[fe80::1]:29500","agent_store":false,"from":3})");
  there_and_back(AgentMessage(AttemptOrder{0, 0, 1, 0, 1, 0, 1, "h:1", true, std::nullopt}),
                 R"({"attempt":0,"rank":0,"world":1,"local_rank":0,"local_world":1,"node_rank":0,"nodes":1,)"
                 R"("store":"h:1","agent_store":true,"from":null})");
  there_and_back(AgentMessage(RevokeOrder{0, "rank 3 on gpu02 was killed by SIGKILL", 5000}),
                 R"({"revoke":0,"reason":"rank 3 on gpu02 was killed by SIGKILL","deadline_ms":5000})");
  there_and_back(AgentMessage(StopOrder{"user", 25000}), R"({"stop":"user","grace_ms":25000})");
}

/// Checks a line without each key, with each other type, and with numbers out of range.
template <class Decode>
void each_key_wrong(const std::string& line, const std::vector<std::string>& optional, Decode error_of) {
  const Wire good = Wire::parse(line);
  REQUIRE(error_of(line) == "decoded");
  const std::string first = good.begin().key();
  for (const auto& [key, value] : good.items()) {
    INFO(line << ": " << key);
    Wire less = good;
    less.erase(key);
    const bool may_miss = std::find(optional.begin(), optional.end(), key) != optional.end();
    if (key != first) CHECK(error_of(less.dump()) == (may_miss ? "decoded" : "\"" + key + "\" is missing"));
    for (const Wire& other : {Wire("text"), Wire(true), Wire(1.0), Wire(-1), Wire(7), Wire::array({"x"}),
                              Wire::object(), Wire(nullptr)}) {
      // Skip the types that the key may have, and null where the protocol allows it.
      if (value.is_string() && other.is_string()) continue;
      if (value.is_boolean() && other.is_boolean()) continue;
      if (other.is_null() && (key == "from" || (first == "revoked" && key == "step"))) continue;
      Wire changed = good;
      changed[key] = other;
      const std::string said = error_of(changed.dump());
      if (value.is_number() && other == 7 &&
          (said == "decoded" || said.find("is not below") != std::string::npos))
        continue;
      INFO(changed.dump());
      CHECK(said.starts_with("\"" + key + "\" is "));
    }
    if (!value.is_number()) continue;
    for (const char* number :
         {"18446744073709551616", "1e3", "1e400", "99999999999999999999999999999999", "-0.5"}) {
      Wire changed = good;
      changed[key] = "@";
      std::string text = changed.dump();
      text.replace(text.find("\"@\""), 3, number);
      INFO(text);
      CHECK(error_of(text) != "decoded");
    }
  }
}

TEST_CASE("worker protocol: durations that cannot be right are refused") {
  const auto error = [](const std::string& durations) {
    return worker_error(R"({"step":7,"durations":)" + durations + "}");
  };
  const std::string no_list = "\"durations\" is not a list of [bucket, steps]";
  CHECK(error(R"([[146,1000000000]],"seconds":1e9)") == "decoded");
  CHECK(error(R"([[0,1000000001]],"seconds":1)") == "\"durations\" is out of range");
  CHECK(error(R"([[0,0]],"seconds":1)") == "\"durations\" is out of range");
  CHECK(error(R"([[147,1]],"seconds":1)") == "\"durations\" is out of range");
  CHECK(error(R"([[-1,1]],"seconds":1)") == "\"durations\" is not a whole number in range");
  CHECK(error(R"([0,0,0,1],"seconds":1)") == no_list);  // as before these buckets
  CHECK(error(R"([[1]],"seconds":1)") == no_list);
  CHECK(error(R"({"0":1},"seconds":1)") == no_list);
  CHECK(error(R"([[0,1]],"seconds":-1)") == "\"seconds\" is missing or out of range");
  CHECK(error(R"([[0,1]],"seconds":1.1e9)") == "\"seconds\" is missing or out of range");
  CHECK(error(R"([[0,1]],"seconds":1,"waited":2)") == "\"waited\" is out of range");
  CHECK(error(R"([[0,1]],"seconds":1,"waited":-1)") == "\"waited\" is out of range");
  CHECK(error("[[0,1]]") == "\"seconds\" is missing or out of range");
}

TEST_CASE("worker protocol: every key may be missing, of another type, or out of range") {
  each_key_wrong(R"({"hello":1,"pid":77,"rejoin":true,"sharded":false})", {"sharded"}, worker_error);
  each_key_wrong(R"({"step":7,"in":"all-reduce"})", {"in"}, worker_error);
  each_key_wrong(R"({"failed":2,"error":"e","peers":[3],"retry":false})", {"peers", "retry"}, worker_error);
  each_key_wrong(R"({"revoked":3,"step":1234})", {}, worker_error);
  each_key_wrong(R"({"ready":3})", {}, worker_error);
  each_key_wrong(
      R"({"attempt":1,"rank":2,"world":4,"local_rank":0,"local_world":2,"node_rank":1,"nodes":2,"store":"h:1","agent_store":true,"from":3})",
      {"from"}, agent_error);
  each_key_wrong(R"({"revoke":0,"reason":"r","deadline_ms":5000})", {}, agent_error);
  each_key_wrong(R"({"stop":"user","grace_ms":1})", {}, agent_error);
}

TEST_CASE("worker protocol: numbers outside their range are refused") {
  CHECK(worker_error(R"({"hello":0,"pid":1,"rejoin":true})") == "\"hello\" is out of range");
  CHECK(worker_error(R"({"hello":2147483648,"pid":1,"rejoin":true})") == "\"hello\" is out of range");
  CHECK(worker_error(R"({"hello":1,"pid":4294967296,"rejoin":true})") == "\"pid\" is out of range");
  CHECK(worker_error(R"({"ready":4294967296})") == "\"ready\" is out of range");
  CHECK(worker_error(R"({"failed":0,"error":"","peers":[1,4294967296]})") == "\"peers\" is out of range");
  CHECK(worker_error(R"({"failed":0,"error":"","peers":[null]})") == "\"peers\" is not a number");
  const auto attempt = [](const std::string& key, const std::string& value) {
    std::string line =
        R"({"attempt":1,"rank":1,"world":2,"local_rank":0,"local_world":1,"node_rank":1,"nodes":2,"store":"h:1","agent_store":true,"from":0})";
    const std::size_t at = line.find("\"" + key + "\":") + key.size() + 3;
    line.replace(at, line.find_first_of(",}", at) - at, value);
    return agent_error(line);
  };
  CHECK(attempt("rank", "1") == "decoded");
  CHECK(attempt("rank", "2") == "\"rank\" is not below \"world\"");
  CHECK(attempt("world", "0") == "\"world\" is out of range");
  CHECK(attempt("local_rank", "1") == "\"local_rank\" is not below \"local_world\"");
  CHECK(attempt("local_world", "0") == "\"local_world\" is out of range");
  CHECK(attempt("node_rank", "2") == "\"node_rank\" is not below \"nodes\"");
  CHECK(attempt("nodes", "0") == "\"nodes\" is out of range");
  CHECK(attempt("from", "2") == "\"from\" is not below \"world\"");
  CHECK(attempt("from", "null") == "decoded");
}

TEST_CASE("worker protocol: lines that are no message are refused") {
  for (const char* line : {"", " ", "{", "[]", "null", "1", "\"hello\"", "{\"step\":1}}", "{\"step\":1} {}",
                           "{\"step\":\"\xff\"}", "{\"step\":1,\"in\":\"\xc3\"}", "{'step':1}"}) {
    INFO(line);
    CHECK(worker_error(line) == "a line is not a JSON object");
    CHECK(agent_error(line) == "a line is not a JSON object");
  }
  CHECK(worker_error("{}") == "a line has no key of a known message");
  CHECK(worker_error(R"({"attempt":1})") == "a line has no key of a known message");
  CHECK(agent_error(R"({"step":1})") == "a line has no key of a known message");
  CHECK(worker_error(std::string(4096, ' ')) == "a line is longer than 4096 bytes");
  CHECK(worker_error(R"({"step":1})" + std::string(4085, ' ')) == "decoded");
  CHECK(worker_error(std::string(4095, '[')) == "a line is not a JSON object");
}

TEST_CASE("worker protocol: unusual but valid lines are decoded") {
  const auto revoked = decode_worker_line(R"({"step":5,"revoked":1})");
  REQUIRE(revoked.has_value());
  CHECK(*revoked == WorkerMessage(WorkerRevoked{1, 5}));
  const auto later = decode_worker_line(R"({"hello":2,"pid":"none"})");
  REQUIRE(later.has_value());
  CHECK(std::get<WorkerHello>(*later).version == 2);
  CHECK(decode_worker_line("\t{\"ready\":1,\"new\":[{}]} \r").has_value());
}

TEST_CASE("worker protocol: any text is sent, and cut where the line would be too long") {
  std::vector<std::uint32_t> many(1000, kMost32);
  for (const std::string& piece : {std::string("x"), std::string("\xff"), std::string(1, '\0'),
                                   std::string("é"), std::string("\xf0\x9f\x98\x80"), std::string("\""),
                                   std::string("\n\\"), std::string("\xf0\x9f"), std::string("\x80")}) {
    std::string text;
    while (text.size() < 9000)
      text += piece;
    const auto trouble =
        decode_worker_line(without_end(encode_line(WorkerMessage(WorkerTrouble{1, text, many}))));
    REQUIRE(trouble.has_value());
    CHECK(std::get<WorkerTrouble>(*trouble).peers.size() == 128);
    CHECK(std::get<WorkerTrouble>(*trouble).error.ends_with("…"));
    CHECK(std::get<WorkerTrouble>(*trouble).error.size() > 300);
    CHECK(decode_worker_line(without_end(encode_line(WorkerMessage(WorkerStep{kMost64, text})))).has_value());
    CHECK(
        decode_agent_line(without_end(encode_line(AgentMessage(RevokeOrder{1, text, kMost32})))).has_value());
    CHECK(decode_agent_line(without_end(encode_line(AgentMessage(StopOrder{text, kMost32})))).has_value());
    AttemptOrder order{kMost32, kMost32 - 1, kMost32, 0, kMost32, 0, kMost32, text, true, kMost32 - 1};
    CHECK(decode_agent_line(without_end(encode_line(AgentMessage(order)))).has_value());
  }
  // A text is never cut inside a character, and a text that fits is not cut.
  for (std::size_t size = 2030; size < 2060; ++size) {
    const std::string text = std::string(size, 'x') + "éé";
    const auto word = decode_agent_line(without_end(encode_line(AgentMessage(StopOrder{text, 0}))));
    REQUIRE(word.has_value());
    const std::string& back = std::get<StopOrder>(*word).reason;
    CHECK(back.find("\xef\xbf\xbd") == std::string::npos);
    CHECK(back.size() <= 2048);
    if (text.size() <= 2048)
      CHECK(back == text);
    else
      CHECK(back.ends_with("…"));
  }
}

TEST_CASE("worker lines: lines are split at their ends and limited in length") {
  WorkerLines lines;
  CHECK_FALSE(lines.next()->has_value());
  lines.add("a\n\nb");
  CHECK(lines.next()->value() == "a");
  CHECK(lines.next()->value().empty());
  CHECK_FALSE(lines.next()->has_value());
  lines.add("c\n" + std::string(kWorkerLineBytes - 1, 'x') + "\n" + std::string(kWorkerLineBytes - 1, 'y'));
  CHECK(lines.next()->value() == "bc");
  CHECK(lines.next()->value().size() == kWorkerLineBytes - 1);
  CHECK_FALSE(lines.next()->has_value());
  lines.add("y\n");
  CHECK(lines.next().error().code == ErrorCode::kProtocol);
  CHECK(lines.next().error().text == "a line is longer than 4096 bytes");
}

// The stage of tests/scenarios/worker_protocol: the events and messages of a WorkerSession follow what its
// worker sends and its agent orders.

std::string session_state_name(WorkerSession::State state) {
  switch (state) {
    case WorkerSession::State::kSilent: return "silent";
    case WorkerSession::State::kGreeted: return "greeted";
    case WorkerSession::State::kInAttempt: return "in-attempt";
    case WorkerSession::State::kLeavingAttempt: return "letting-go";
    case WorkerSession::State::kFree: return "free";
    case WorkerSession::State::kIgnored: return "ignored";
  }
  return "?";
}

struct SessionTranscript {
  std::ostringstream text = {};
  void operator()(const WorkerHello& hello) {
    text << "hello pid=" << hello.pid << (hello.rejoin ? " rejoin" : "") << (hello.sharded ? " sharded" : "");
  }
  void operator()(const WorkerStep& step) { text << "step " << step.step << " \"" << step.phase << '"'; }
  void operator()(const WorkerTrouble& trouble) {
    text << "failed " << trouble.attempt << " \"" << trouble.error << '"';
    for (const std::uint32_t peer : trouble.peers)
      text << ' ' << peer;
    if (!trouble.retry) text << " no retry";
  }
  void operator()(const WorkerRevoked& answer) {
    text << "revoked " << answer.attempt << " step=";
    if (answer.step)
      text << *answer.step;
    else
      text << "none";
  }
  void operator()(const WorkerReady& ready) { text << "ready " << ready.attempt; }
  void operator()(const WorkerMisbehaved& misbehaved) { text << "odd \"" << misbehaved.words << '"'; }
};

class SessionStage : public test::Stage {
 public:
  std::vector<std::string> act(const test::Words& words, const std::string& line) override {
    command(words, line);
    collect();
    return std::exchange(said_, {});
  }

 private:
  void hear(const std::string& bytes) {
    for (const WorkerEvent& event : session_.receive(bytes)) {
      SessionTranscript words;
      std::visit([&words](const auto& it) { words(it); }, event);
      said_.push_back(words.text.str());
    }
  }

  void collect() {
    std::istringstream out(session_.take_output());
    for (std::string line; std::getline(out, line);)
      said_.push_back("> " + line);
    const std::string state =
        "state " + session_state_name(session_.state()) + (session_.can_rejoin() ? " rejoins" : "");
    if (state != state_) said_.push_back(state);
    state_ = state;
  }

  void command(const test::Words& words, const std::string& line) {
    const std::string& verb = words[0];
    const auto number = [](const std::string& text) { return static_cast<std::uint32_t>(std::stoul(text)); };
    if (verb == "begin") {
      AttemptOrder order{number(words.at(1)), 1, 4, 1, 2, 0, 2, "10.0.0.2:29500", true, std::nullopt};
      if (words.size() > 2) order.from = number(words[2].substr(std::string("from=").size()));
      session_.begin(order);
    } else if (verb == "revoke") {
      session_.revoke({number(words.at(1)), test::quoted_text(line), 5000});
    } else if (verb == "stop") {
      session_.stop({test::quoted_text(line), 25'000});
    } else if (verb == "bytes") {
      hear(std::string(number(words.at(1)), 'x') + "\n");
    } else if (verb == "part") {
      hear(line.substr(5));
    } else if (verb == "end") {
      hear("\n");
    } else if (verb == "fresh") {
      session_ = WorkerSession();
      state_ = "state silent";
    } else {
      hear(line + "\n");
    }
  }

  WorkerSession session_;
  std::string state_ = "state silent";
  std::vector<std::string> said_;
};

TEST_CASE("the worker session passes its scenarios") {
  test::run_scenarios("worker_protocol", 14, std::make_unique<SessionStage>);
}

TEST_CASE("a worker session: the chunking of the bytes does not matter") {
  const std::string said =
      "{\"hello\":1,\"pid\":7,\"rejoin\":true}\n{\"step\":1,\"in\":\"a\"}\nbroken\n{\"step\":2}\n";
  WorkerSession whole;
  const auto expected = whole.receive(said);
  REQUIRE(expected.size() == 4);
  for (std::size_t cut = 1; cut < said.size(); ++cut) {
    WorkerSession session;
    std::vector<WorkerEvent> events;
    for (std::size_t at = 0; at < said.size(); at += cut)
      for (WorkerEvent& event : session.receive(std::string_view(said).substr(at, cut)))
        events.push_back(std::move(event));
    CHECK(events == expected);
  }
}

}  // namespace
}  // namespace ddp::rendezvous
