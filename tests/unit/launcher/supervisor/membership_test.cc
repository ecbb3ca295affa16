// The stage of tests/scenarios/membership: which nodes are in the job, and when an attempt begins, is
// stopped, and is followed by another. The decisions follow each event.
#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "launcher/supervisor/supervisor.h"
#include "tests/support/catch.h"
#include "tests/support/scenario.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using test::quoted_text;
using test::Words;
using Time = Supervisor::Time;

/// One scenario: a Supervisor whose nodes are on one machine. Their stores and probes answer at once, so an
/// attempt runs as soon as it has begun.
class MembershipStage : public test::Stage {
 public:
  std::vector<std::string> act(const Words& words, const std::string& line) override {
    command(words, line);
    return std::exchange(said_, {});
  }

 private:
  std::size_t host(const std::string& name) const {
    for (std::size_t i = 0; i < spec_.hosts.size(); ++i)
      if (spec_.hosts[i].name == name) return i;
    FAIL("no such host: " << name);
    return 0;
  }

  void say(std::string text) { said_.push_back(std::move(text)); }

  /// Adds what the actions decide to the said lines, and answers those that need an answer.
  void carry_out(const job::Actions& actions) {
    const bool stops = std::any_of(actions.begin(), actions.end(), [](const job::Action& action) {
      const auto* event = std::get_if<JournalEvent>(&action);
      return event != nullptr && event->kind == JournalEvent::Kind::kAttemptStopping;
    });
    const bool revokes = std::any_of(actions.begin(), actions.end(), [](const job::Action& action) {
      const auto* send = std::get_if<job::ToNode>(&action);
      return send != nullptr && std::holds_alternative<rendezvous::Revoke>(send->message);
    });
    std::vector<job::Event> answers;
    for (const job::Action& action : actions) {
      if (const auto* event = std::get_if<JournalEvent>(&action)) {
        describe(*event, revokes);
      } else if (const auto* line = std::get_if<job::PrintLine>(&action)) {
        if (!line->terminal_only) say("say \"" + line->text + "\"");
      } else if (const auto* recall = std::get_if<job::Recall>(&action)) {
        say("recall " + spec_.hosts[recall->node].name);
      } else if (const auto* sweep = std::get_if<job::SweepNode>(&action)) {
        answers.emplace_back(
            job::NodeSwept{sweep->node, incarnations_[sweep->node], "nobody could look", false});
      } else if (const auto* drop = std::get_if<job::Disconnect>(&action)) {
        say("disconnect " + spec_.hosts[drop->node].name);
        there_.erase(drop->node);
      } else if (const auto* send = std::get_if<job::ToNode>(&action)) {
        follow(*send, stops, answers);
      }
    }
    const bool over = supervisor_->state() >= Supervisor::State::kEnding;
    if (over && !std::exchange(ended_, true))
      say("end " + std::to_string(make_exit_report(supervisor_->end()).exit_code));
    for (const job::Event& answer : answers)
      carry_out(supervisor_->step(answer, now_));
  }

  void describe(const JournalEvent& event, bool revokes) {
    std::ostringstream text;
    if (event.kind == JournalEvent::Kind::kAttemptStarted) {
      text << "begin " << *event.attempt << ":";
      for (const auto& node : event.nodes)
        text << " " << node.node << "=" << node.first_rank << "+" << node.ranks;
    } else if (event.kind == JournalEvent::Kind::kAttemptStopping) {
      text << (revokes ? "revoke " : "stop ") << *event.attempt << " \"" << event.reason << "\"";
    } else {
      return;
    }
    say(text.str());
  }

  /// Acts as the agent that gets the message.
  void follow(const job::ToNode& send, bool stops, std::vector<job::Event>& answers) {
    const std::string& name = spec_.hosts[send.node].name;
    const auto answer = [&](rendezvous::Message message) {
      answers.emplace_back(
          job::FromNode{send.node, std::move(message), now_, Time(0), incarnations_[send.node]});
    };
    if (const auto* start = std::get_if<rendezvous::JobStart>(&send.message)) {
      rendezvous::JobAccepted accepted{"/bin/x"};
      accepted.predecessor_gone = sees_predecessor_ && !start->predecessor.empty();
      answer(accepted);
    } else if (const auto* open = std::get_if<rendezvous::OpenStore>(&send.message)) {
      answer(rendezvous::StoreOpened{open->attempt, 29400});
    } else if (const auto* probe = std::get_if<rendezvous::Probe>(&send.message)) {
      answer(rendezvous::ProbeResult{probe->attempt, probe->addresses.at(0), ""});
    } else if (const auto* spawn = std::get_if<rendezvous::Spawn>(&send.message)) {
      if (survive_) answer(rendezvous::WorkersGreeted{spawn->attempt});
    } else if (const auto* stop = std::get_if<rendezvous::Stop>(&send.message)) {
      if (!stops)
        say("end-workers " + name + " " + std::to_string(stop->attempt) + " \"" + stop->reason + "\"");
    } else if (std::holds_alternative<rendezvous::Leave>(send.message)) {
      if (supervisor_->state() < Supervisor::State::kLeaving) say("leave " + name);
      there_.erase(send.node);
    }
  }

  void feed(const job::Event& event) { carry_out(supervisor_->step(event, now_)); }
  void feed(std::size_t node, rendezvous::Message message) {
    feed(job::FromNode{node, std::move(message), now_, Time(0),
                       incarnation_ ? *incarnation_ : incarnations_[node]});
  }

  /// Present nodes that are not silent are heard every half second.
  void pass(Time time) {
    for (const auto until = now_ + time; now_ < until;) {
      const auto due = supervisor_->deadline().value_or(until);
      const auto beat = (now_ / 500ms + 1) * 500ms;
      now_ = std::min({std::max(due, now_ + 1ns), Time(beat), until});
      if (now_ % 500ms == 0ns) {
        for (const std::size_t node : std::set<std::size_t>(there_)) {
          if (!silent_.contains(node)) feed(job::NodeHeartbeat{node, incarnations_[node]});
          if (reachable_.contains(node)) feed(job::NodeReachable{node, incarnations_[node]});
        }
      }
      if (now_ >= due) feed(job::Tick{});
    }
  }

  void make(const Words& words) {
    JobRules rules;
    rules.recall = false;
    rules.lease = 25s;
    std::map<std::string, JobRules::Duration*> times{
        {"join-limit", &rules.join_limit},     {"admission-window", &rules.admission_window},
        {"settle", &rules.debounce},           {"suspect", &rules.suspect_after},
        {"node-timeout", &rules.node_timeout}, {"lease", &rules.lease},
        {"backoff", &rules.backoff},           {"progress-after", &rules.progress_after},
        {"fault-window", &rules.fault_window}, {"cool-down", &rules.cool_down},
        {"recall-every", &rules.recall_every}};
    std::map<std::string, int*> numbers{{"min", &rules.min_nodes},
                                        {"max", &rules.max_nodes},
                                        {"spares", &rules.spares},
                                        {"restarts", &rules.max_restarts},
                                        {"faults", &rules.host_faults}};
    for (std::size_t i = 1; i < words.size(); ++i) {
      const auto equals = words[i].find('=');
      const std::string key = words[i].substr(0, equals);
      const std::string value = equals == std::string::npos ? "" : words[i].substr(equals + 1);
      INFO(words[i]);
      if (key == "hosts") {
        for (const std::string& name : test::split_words(value, ',')) {
          spec_.hosts.emplace_back();
          spec_.hosts.back().name = name;
        }
      } else if (key == "recall") {
        rules.recall = true;
      } else if (key == "recall-at-start") {
        rules.recall = rules.recall_at_start = true;
      } else if (key == "fence") {
        rules.fence = value == "all" ? FenceMode::kAll : value == "off" ? FenceMode::kOff : FenceMode::kRank0;
      } else if (key == "scale-up-now") {
        rules.scale_up_now = true;
      } else if (key == "survive") {
        survive_ = true;
      } else if (key == "stop-grace") {
        spec_.failure_grace = std::chrono::milliseconds(std::stol(value));
      } else if (times.contains(key)) {
        *times[key] = std::chrono::milliseconds(std::stol(value));
      } else {
        *numbers.at(key) = std::stoi(value);
      }
    }
    spec_.job_id = "job";
    spec_.max_restarts = rules.max_restarts;
    spec_.start_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(rules.join_limit);
    supervisor_ = std::make_unique<Supervisor>(spec_, rules);
    carry_out(supervisor_->start(now_));
  }

  void join(std::size_t node) {
    CHECK(supervisor_->nodes()[node].state == NodeRecords::State::kConnecting);  // else nobody called it
    ++incarnations_[node];
    there_.insert(node);
    rendezvous::Hello hello;
    hello.machine_id = "m";
    hello.cpus = 64;
    hello.pid_namespace = 1;
    hello.pid = hello.keeper = 7;
    hello.interfaces = {{"lo", "127.0.0.1", 8, true, true}};
    feed(job::NodeUp{node, hello, "127.0.0.1", incarnations_[node], true});
  }

  void command(const Words& words, const std::string& line) {
    const std::string& verb = words[0];
    const auto option = [&](const std::string& key, int otherwise) {
      for (const std::string& word : words)
        if (word.rfind(key + "=", 0) == 0) return std::stoi(word.substr(key.size() + 1));
      return otherwise;
    };
    const auto flag = [&](const std::string& word) {
      return std::find(words.begin(), words.end(), word) != words.end();
    };
    const auto first_rank = [&](std::size_t node) {
      const rendezvous::RankAssignment* ranks = supervisor_->nodes().assignment(node);
      return ranks == nullptr ? 0U : static_cast<std::uint32_t>(ranks->first_rank);
    };
    const auto attempt = [&] { return attempt_.value_or(supervisor_->nodes().attempt()); };
    if (verb == "rules") return make(words);
    if (verb == "pass") return pass(std::chrono::milliseconds(std::stol(words.at(1))));
    if (verb == "sleep") {  // of the master
      now_ += std::chrono::milliseconds(std::stol(words.at(1)));
      return feed(job::Tick{});
    }
    if (verb == "attempt") {  // of the following events; -: the current one
      attempt_.reset();
      if (words.at(1) != "-") attempt_ = static_cast<std::uint32_t>(std::stoul(words[1]));
      return;
    }
    if (verb == "interrupt") return feed(job::UserSignal{SIGINT});
    if (verb == "progress") {  // all workers are ready
      for (const rendezvous::RankAssignment& ranks : supervisor_->nodes().world().assignments)
        feed(ranks.host, rendezvous::WorkersReady{attempt()});
      return;
    }
    const std::size_t node = host(words.at(1));
    if (verb == "life") {  // of the following events: incarnation; -: the last one
      incarnation_.reset();
      if (words.at(2) != "-") incarnation_ = static_cast<std::uint32_t>(std::stoul(words[2]));
    } else if (verb == "join") {
      if (option("slots", 0) > 0) spec_.hosts[node].slots = option("slots", 0);
      sees_predecessor_ = flag("sees-no-predecessor-left");
      join(node);
    } else if (verb == "silent") {
      silent_.insert(node);
    } else if (verb == "loud") {
      silent_.erase(node);
    } else if (verb == "reachable") {
      reachable_.insert(node);
    } else if (verb == "unreachable") {
      reachable_.erase(node);
    } else if (verb == "heard") {
      feed(job::NodeHeartbeat{node, incarnation_.value_or(incarnations_[node])});
    } else if (verb == "lost" || verb == "workers-gone") {
      there_.erase(node);
      feed(job::NodeGone{node, Error{ErrorCode::kLinkLost, quoted_text(line), 0},
                         verb == "workers-gone" || flag("dead"), incarnation_.value_or(incarnations_[node]),
                         flag("left")});
    } else if (verb == "absent") {
      feed(job::NodeFailed{node, Error{ErrorCode::kUnreachable, quoted_text(line), 0}});
    } else if (verb == "failed" || verb == "echo") {
      rendezvous::WorkerExited exited;
      exited.attempt = attempt();
      exited.rank = first_rank(node);
      exited.code = flag("missing") ? 127 : 1;
      exited.pid = flag("missing") ? 0 : 9;
      exited.text = flag("missing") ? "no such program" : "";
      feed(node, exited);
      if (verb == "echo")
        supervisor_->set_last_output(static_cast<int>(exited.rank), {quoted_text(line)}, "");
    } else if (verb == "ended") {
      feed(node,
           rendezvous::AttemptEnded{attempt(), static_cast<std::uint32_t>(option("left", 0)), "pid 9 (x)"});
    } else if (verb == "waits") {
      feed(node, rendezvous::AttemptRevoked{attempt(), {{0, true, 5}}});
    } else if (verb == "refused") {
      const ErrorCode code = flag("leaves") ? ErrorCode::kLinkLost : ErrorCode::kRefused;
      feed(node, rendezvous::Refused{code, 0, quoted_text(line)});
    } else {
      FAIL("unknown command: " << verb);
    }
  }

  JobSpec spec_;
  std::unique_ptr<Supervisor> supervisor_;
  Time now_{0};
  std::map<std::size_t, std::uint32_t> incarnations_;
  std::optional<std::uint32_t> incarnation_;
  std::optional<std::uint32_t> attempt_;
  std::set<std::size_t> there_;
  std::set<std::size_t> silent_;
  std::set<std::size_t> reachable_;
  bool survive_ = false;
  bool sees_predecessor_ = false;
  bool ended_ = false;
  std::vector<std::string> said_;
};

TEST_CASE("membership scenarios") {
  test::run_scenarios("membership", 45, std::make_unique<MembershipStage>);
}

}  // namespace
}  // namespace ddp::launcher
