// Runs the scenario files of tests/scenarios/worker_protocol. A line is a message of the worker or an order
// of the agent. The indented lines below it are exactly the actions that WorkerSession must return, in order.
// The README there explains the words.
#include "rendezvous/worker/worker_protocol.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

std::string session_state_name(WorkerSession::State state) {
  switch (state) {
    case WorkerSession::State::kSilent:
      return "silent";
    case WorkerSession::State::kGreeted:
      return "greeted";
    case WorkerSession::State::kInAttempt:
      return "in-attempt";
    case WorkerSession::State::kLeavingAttempt:
      return "letting-go";
    case WorkerSession::State::kFree:
      return "free";
    case WorkerSession::State::kIgnored:
      return "ignored";
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

class SessionScenario {
 public:
  void run(const std::filesystem::path& file) {
    std::ifstream in(file);
    REQUIRE(in);
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      if (line.empty() || line[0] == '#') continue;
      INFO(file.filename().string() << ":" << number << ": " << line);
      if (line[0] == ' ') {
        REQUIRE(next_ < said_.size());
        CHECK(said_[next_++] == line.substr(line.find_first_not_of(' ')));
        continue;
      }
      nothing_more();
      said_.clear();
      next_ = 0;
      command(line);
      collect();
    }
    INFO(file.filename().string() << ": at the end");
    nothing_more();
  }

 private:
  void nothing_more() {
    for (; next_ < said_.size(); ++next_)
      FAIL_CHECK("unexpected result: " << said_[next_]);
  }

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

  void command(const std::string& line) {
    std::istringstream in(line);
    std::string verb;
    in >> verb;
    const auto quote = line.find('"');
    const std::string quoted =
        quote == std::string::npos ? "" : line.substr(quote + 1, line.rfind('"') - quote - 1);
    if (verb == "begin") {
      AttemptOrder order{0, 1, 4, 1, 2, 0, 2, "10.0.0.2:29500", true, std::nullopt};
      std::string from;
      in >> order.attempt >> from;
      if (from.starts_with("from=")) order.from = static_cast<std::uint32_t>(std::stoul(from.substr(5)));
      session_.begin(order);
    } else if (verb == "revoke") {
      RevokeOrder order{0, quoted, 5000};
      in >> order.attempt;
      session_.revoke(order);
    } else if (verb == "stop") {
      session_.stop({quoted, 25'000});
    } else if (verb == "bytes") {
      std::size_t count = 0;
      in >> count;
      hear(std::string(count, 'x') + "\n");
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
  std::size_t next_ = 0;
};

TEST_CASE("the worker session passes its scenarios") {
  const std::filesystem::path folder =
      std::filesystem::path(DDP_SOURCE_DIR) / "tests/scenarios/worker_protocol";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= 14);
  for (const auto& file : files)
    SessionScenario().run(file);
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
